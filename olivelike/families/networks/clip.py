"""CLIP's text encoders, of transformers, and the safety checker."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import (
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    Tensors,
    diffusers_converter,
    head_count,
    layer_count,
    renamed,
)  # fmt: skip
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


_TOKENS: Final = re.compile(r"((?:.*?\.)??)((?:text_model\.)?embeddings\.)?token_embedding\.weight")
PROJECTION: Final = "text_projection.weight"
"""Name of the matrix behind the pooled text, of the classes that have one."""
_HEAD_WIDTH: Final = 64
_LAYERS_OF_H: Final = 24
"""Layers of open_clip's ViT-H, of which SD 2 takes all but the last."""
_OUTER: Final = {
    "embeddings.token_embedding": "token_embedding",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm": "ln_final",
}
_LAYER: Final = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_OWN_LAYER: Final = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def _prefix_at(name: str, *, level: bool) -> str | None:
    """Return what stands before the table of tokens, if it is one with or without transformers' level of names."""
    found = _TOKENS.fullmatch(name)
    # Some early files lack the level `text_model`.
    return None if found is None or bool(found[2]) != level else found[1]


def _open_clip_names(names: Collection[str]) -> Callable[[str], str | None]:
    """Return what gives open_clip's name of a parameter; it has none of q, k and v, which it stores as one.

    https://github.com/mlfoundations/open_clip (`transformer.py`).
    """
    del names

    def original(name: str) -> str | None:
        if (found := _OWN_LAYER.fullmatch(name)) is None:
            return renamed(name, _OUTER)
        inner = renamed(found[2], _LAYER)
        return None if inner is None else f"transformer.resblocks.{found[1]}.{inner}"

    return original


def _from_open_clip(config: Config, tensors: Tensors) -> Tensors:
    network = SimpleNamespace(config=SimpleNamespace(hidden_size=config["hidden_size"]))
    return diffusers_converter("convert_open_clip_checkpoint")(network, tensors, prefix="")


def _clip_config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del published, head_width
    projection = shapes.get(PROJECTION)
    return {
        **_text_config(
            {name.removeprefix("text_model."): shape for name, shape in shapes.items()},
            tokens="embeddings.token_embedding.weight",
            positions="embeddings.position_embedding.weight",
            layer=r"^encoder\.layers\.(\d+)\.",
            inner="encoder.layers.0.mlp.fc1.weight",
        ),
        **({} if projection is None else {"projection_dim": projection[0]}),
    }


def _open_clip_config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del head_width
    found = _text_config(
        shapes,
        tokens="token_embedding.weight",
        positions="positional_embedding",
        layer=r"^transformer\.resblocks\.(\d+)\.",
        inner="transformer.resblocks.0.mlp.c_fc.weight",
    )
    if published["num_hidden_layers"] != _LAYERS_OF_H - 1:
        projection = shapes.get("text_projection", (0, published["projection_dim"]))
        return {**found, "projection_dim": projection[1]}
    # SD 2 takes the last but one layer; files that programs wrote without the last have no projection either.
    layers = found["num_hidden_layers"]
    if "text_projection" in shapes or layers == _LAYERS_OF_H:
        return {**found, "num_hidden_layers": layers - 1}
    return found


def _text_config(shapes: Shapes, *, tokens: str, positions: str, layer: str, inner: str) -> Config:
    vocabulary, width = shapes[tokens]
    return {
        "hidden_size": width,
        "intermediate_size": shapes[inner][0],
        "max_position_embeddings": shapes[positions][0],
        "num_attention_heads": head_count(width, _HEAD_WIDTH),
        "num_hidden_layers": layer_count(shapes, layer),
        "vocab_size": vocabulary,
    }


CLIP: Final = Stored(
    name="clip",
    to_library=lambda config, tensors: diffusers_converter("convert_ldm_clip_checkpoint")(tensors),  # noqa: ARG005
    prefix_at=partial(_prefix_at, level=True),
    expected="cond_stage_model.transformer.",
    config=_clip_config,
)
OPEN_CLIP: Final = Stored(
    name="open_clip",
    to_library=_from_open_clip,
    prefix_at=partial(_prefix_at, level=False),
    # Without a prefix the converter does not drop SD 2's layer 23, which a network of another size may have.
    config=_open_clip_config,
    original=_open_clip_names,
)
COUNTS: Final = frozenset({"num_hidden_layers"})
SIZES: Final = frozenset(
    {
        "hidden_size", "intermediate_size", "num_attention_heads", "projection_dim", "vocab_size",
        "max_position_embeddings", "num_channels", "patch_size", "image_size",
    }
)  # fmt: skip
_INERT: Final = frozenset(
    {"attention_dropout", "initializer_factor", "initializer_range", "bos_token_id", "pad_token_id"}
)
_CHECKER_INERT: Final = frozenset(
    {
        "initializer_factor", "logit_scale_init_value", "text_config", "vision_config.attention_dropout",
        "vision_config.initializer_factor", "vision_config.initializer_range", "vision_config.projection_dim",
    }
)  # fmt: skip
PROJECTED: Final = Network(
    "CLIPTextModelWithProjection",
    ("text_encoder_2",),
    lambda config: _text_encoder(config, "text_embeds"),
    lambda network: _forward_text_encoder_2,  # noqa: ARG005
    counts=COUNTS,
    sizes=SIZES,
    inert=_INERT,
    stored=(OPEN_CLIP, CLIP),
)
NETWORKS: Final = (
    Network(
        "CLIPTextModel",
        ("text_encoder",),
        lambda config: _text_encoder(config, "pooler_output"),
        lambda network: _forward_text_encoder,  # noqa: ARG005
        counts=COUNTS,
        sizes=SIZES,
        inert=_INERT | {"projection_dim"},
        stored=(CLIP, OPEN_CLIP),
    ),
    PROJECTED,
    Network(
        "StableDiffusionSafetyChecker",
        (SAFETY_CHECKER,),
        _safety_checker,
        lambda network: _forward_safety_checker,  # noqa: ARG005
        counts=COUNTS,
        sizes=SIZES,
        inert=_CHECKER_INERT,
    ),
)
