"""Diffusers' `UNet2DConditionModel`, the denoiser of Stable Diffusion 1.x, 2.x and XL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import Input, Interface, Network, shown
from olivelike.model.guides import IMAGE_STRENGTH, IMAGE_TOKENS

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Architecture, Config

_TIME_IDS = 6
"""Length of SDXL's `time_ids`: original size, crop's corner, target size."""
COMPONENT: Final = "unet"
IMAGE_PROMPT: Final = "image_prompt"
"""In the config of a UNet: it has an IP-Adapter. Libraries do not know it."""
_REFINER_TIME_IDS = 5
"""Length of the refiner's: original size, crop's corner, aesthetic score."""


def unet_interface(config: Config) -> Interface:
    """Return what the UNet takes and gives."""
    # Wide enough that the innermost of the levels is wider than 1, and neither square nor a common size.
    side = 2 ** (len(config["block_out_channels"]) - 1)
    channels, context = config["in_channels"], config["cross_attention_dim"]
    dims = tuple(f"unet_sample_{dim}" for dim in ("batch", "height", "width"))
    return Interface(
        inputs=(
            Input("sample", "float32", (dims[0], None, dims[1], dims[2]), (2, channels, side * 4, side * 6)),
            Input("timestep", "float32", ("unet_time_batch",), (1,)),
            Input(
                "encoder_hidden_states",
                "float32",
                ("unet_hidden_batch", "unet_hidden_sequence", None),
                (2, 77, context),
            ),
            *_added_conditions(config),
            *_guidance(config),
            *_image_prompt(config),
        ),
        outputs=("out_sample",),
        sized_like={"out_sample": "sample"},
    )


def _added_conditions(config: Config) -> tuple[Input, ...]:
    """Return what SDXL adds to the time embedding: the pooled text, and sizes of the picture."""
    if config.get("addition_embed_type") != "text_time":
        return ()
    whole, each = config["projection_class_embeddings_input_dim"], config["addition_time_embed_dim"]
    # The refiner has one text encoder, so its prompt's vectors are as wide as the pooled one; the base has two.
    refines = whole - _REFINER_TIME_IDS * each == config["cross_attention_dim"]
    count = _REFINER_TIME_IDS if refines else _TIME_IDS
    return (
        Input("text_embeds", "float32", ("unet_text_embeds_batch", None), (2, whole - count * each)),
        Input("time_ids", "float32", ("unet_time_ids_batch", None), (2, count)),
    )


def _guidance(config: Config) -> tuple[Input, ...]:
    """Return what a UNet takes that was distilled with its guidance, as LCM's are: an embedding of the scale."""
    width = config.get("time_cond_proj_dim")
    return () if width is None else (Input("timestep_cond", "float32", ("unet_guidance_batch", None), (2, width)),)


def with_image_prompt(architecture: Architecture) -> Architecture:
    """Return the architecture of a UNet that attends to a picture's tokens too, as `ip_adapter` makes it."""
    return replace(architecture, config={**architecture.config, IMAGE_PROMPT: True})


def _image_prompt(config: Config) -> tuple[Input, ...]:
    if not config.get(IMAGE_PROMPT):
        return ()
    tokens = ("unet_image_batch", "unet_image_sequence", None)
    return (
        Input(IMAGE_TOKENS, "float32", tokens, (2, 4, config["cross_attention_dim"])),
        Input(IMAGE_STRENGTH, "float32", (None,), (1,)),
    )


def _forward_unet(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    timestep_cond: torch.Tensor | None = None,
) -> Any:
    return self.network(sample, timestep, encoder_hidden_states, timestep_cond=timestep_cond, return_dict=False)[0]


def _forward_unet_xl(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    text_embeds: torch.Tensor,
    time_ids: torch.Tensor,
    timestep_cond: torch.Tensor | None = None,
) -> Any:
    added = {"text_embeds": text_embeds, "time_ids": time_ids}
    return self.network(
        sample, timestep, encoder_hidden_states, timestep_cond=timestep_cond, added_cond_kwargs=added, return_dict=False
    )[0]


def _with_image_prompt(forward: Any) -> Any:
    """Return a UNet's `forward` that takes tokens of a picture, and their strength, behind its other inputs."""

    def run(self: Any, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor, *more: Any) -> Any:
        *others, tokens, strength = more
        for processor in self.network.attn_processors.values():
            if hasattr(processor, "to_k_ip"):
                processor.scale = [strength]
        return forward(self, sample, timestep, (states, [tokens]), *others)

    return run


def _attending_to_images(network: Any) -> Any:
    """Return a UNet whose cross-attentions have the weights of an IP-Adapter, as diffusers' `load_ip_adapter` does."""
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0

    processors = dict(network.attn_processors)
    for name in processors:
        if name.endswith("attn2.processor"):
            keys = network.get_submodule(name.removesuffix(".processor")).to_k
            processors[name] = IPAdapterAttnProcessor2_0(keys.out_features, keys.in_features)
    network.set_attn_processor(processors)
    return network


def _attends_to_images(network: Any) -> bool:
    return any(name.endswith("_ip.0.weight") for name, _ in network.named_parameters())


def _forward(network: Any) -> Any:
    forward = _forward_unet_xl if takes_pooled_text(network) else _forward_unet
    return _with_image_prompt(forward) if _attends_to_images(network) else forward


def takes_pooled_text(network: Any) -> bool:
    """Tell whether a network has SDXL's additions to the time embedding."""
    return getattr(network.config, "addition_embed_type", None) == "text_time"


def _prepare(network: Any, config: Config) -> Any:
    return _attending_to_images(network) if config.get(IMAGE_PROMPT) else network


def _uneven(interface: Interface) -> Interface:
    sample, *others = interface.inputs
    pictures, channels, height, width = sample.example
    uneven = replace(sample, example=(pictures, channels, height + 1, width + 3))
    return replace(interface, inputs=(uneven, *others))


_OPTIONS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "class_embed_type": ((None,), "it takes a class, a noise level or a picture's embedding beside the text"),
    "num_class_embeds": ((None,), "it takes the number of a class beside the text"),
    "encoder_hid_dim": ((None,), "it takes text or pictures of another width than it attends to"),
    "encoder_hid_dim_type": ((None,), "it takes text or pictures of another width than it attends to"),
    "addition_embed_type": ((None, "text_time"), "it takes more text or a picture, of which no client knows"),
    "dual_cross_attention": ((None, False), "it attends to two texts"),
}
"""Option of a UNet → values that are supported, and what any other means."""

_TEXT_TIME: Final = ("addition_time_embed_dim", "projection_class_embeddings_input_dim")
_NUMBERS: Final = 5
"""Numbers that such a UNet takes with the pooled text, at least."""


def check_unet(component: str, class_name: str, config: Config) -> None:
    """Raise `SourceError` for an option that adds an input or takes one away."""
    for option, (supported, meaning) in _OPTIONS.items():
        value = config.get(option)
        if value not in supported:
            raise SourceError(f"{component}: {class_name} with `{option}: {shown(value)}` is not supported: {meaning}")
    width = config.get("cross_attention_dim", 1)
    if width is None or isinstance(width, list | tuple):
        meaning = "it attends to no text" if width is None else "it attends to texts of several widths"
        raise SourceError(
            f"{component}: {class_name} with `cross_attention_dim: {shown(width)}` is not supported: {meaning}"
        )
    if config.get("addition_embed_type") == "text_time":
        each, whole = (config.get(option) for option in _TEXT_TIME)
        if not isinstance(each, int) or not isinstance(whole, int) or whole <= _NUMBERS * each:
            raise SourceError(
                f"{component}: {class_name} with `addition_embed_type: text_time` needs {' and '.join(_TEXT_TIME)}, "
                f"the second more than {_NUMBERS} times the first, and has {shown(each)} and {shown(whole)}; get its "
                "config.json again"
            )


NETWORKS: Final = (
    Network("UNet2DConditionModel", (COMPONENT,), unet_interface, _forward, check_unet, _uneven, _prepare),
)
