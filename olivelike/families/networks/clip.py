"""CLIP's text encoders, of transformers, and the safety checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import Input, Interface, Network
from olivelike.model.components import SAFETY_CHECKER

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config


def _text_encoder(config: Config, pooled: str) -> Interface:
    """Return a text encoder's interface; SDXL's second one has the projected text first, as optimum does."""
    layers = config["num_hidden_layers"]
    ids = Input("input_ids", "int32", ("text_batch", "text_sequence"), (2, config["max_position_embeddings"]))
    hidden = tuple(f"hidden_states.{index}" for index in range(layers + 1))
    first = ("last_hidden_state", pooled) if pooled == "pooler_output" else (pooled, "last_hidden_state")
    return Interface((ids,), (*first, *hidden))


def _safety_checker(config: Config) -> Interface:
    vision = config["vision_config"]
    size = vision["image_size"]
    return Interface(
        (
            Input("clip_input", "float32", ("clip_batch", None, None, None), (2, 3, size, size)),
            Input("images", "float32", ("image_batch", "image_height", "image_width", None), (2, 32, 48, 3)),
        ),
        ("out_images", "has_nsfw_concepts"),
    )


def _forward_text_encoder(self: Any, input_ids: torch.Tensor) -> Any:
    output = self.network(input_ids, output_hidden_states=True, return_dict=True)
    return output.last_hidden_state, output.pooler_output, *output.hidden_states


def _forward_text_encoder_2(self: Any, input_ids: torch.Tensor) -> Any:
    output = self.network(input_ids, output_hidden_states=True, return_dict=True)
    return output.text_embeds, output.last_hidden_state, *output.hidden_states


def _forward_safety_checker(self: Any, clip_input: torch.Tensor, images: torch.Tensor) -> Any:
    import torch

    # `forward_onnx` writes into `images` under a mask; the same choice without the write.
    _, flagged = self.network.forward_onnx(clip_input, images[:, :1, :1, :].clone())
    # The order of the arguments is that of the nodes.
    return torch.where(flagged[:, None, None, None], torch.zeros((), dtype=images.dtype), images), flagged


PROJECTED: Final = Network(
    "CLIPTextModelWithProjection",
    ("text_encoder_2",),
    lambda config: _text_encoder(config, "text_embeds"),
    lambda network: _forward_text_encoder_2,  # noqa: ARG005
)
NETWORKS: Final = (
    Network(
        "CLIPTextModel",
        ("text_encoder",),
        lambda config: _text_encoder(config, "pooler_output"),
        lambda network: _forward_text_encoder,  # noqa: ARG005
    ),
    PROJECTED,
    Network(
        "StableDiffusionSafetyChecker",
        (SAFETY_CHECKER,),
        _safety_checker,
        lambda network: _forward_safety_checker,  # noqa: ARG005
    ),
)
