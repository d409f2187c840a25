"""The inputs and outputs of each component, named and shaped as clients expect them.

Names follow the folders that diffusers, optimum and the DirectML clients load; see `docs/clients.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError, UsageError
from olivelike.model.adapter_features import given_features
from olivelike.model.families import (
    ADAPTER_PICTURE,
    CONTROL_PICTURE,
    CONTROLNETS,
    IMAGE_ENCODER,
    IMAGE_STRENGTH,
    IMAGE_TOKENS,
    MID_RESIDUAL,
    NO_IMAGE_TOKENS,
    STRENGTH,
    T2I_ADAPTERS,
    adapter_feature,
    down_residual,
)

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture, Config

_TIME_IDS = 6
"""Length of SDXL's `time_ids`: original size, crop's corner, target size."""
IMAGE_PROMPT: Final = "image_prompt"
"""In the config of a UNet: it has an IP-Adapter. Libraries do not know it."""
_REFINER_TIME_IDS = 5
"""Length of the refiner's: original size, crop's corner, aesthetic score."""


@dataclass(frozen=True)
class Input:
    """One input: its dtype, and per dimension a name if it is dynamic, and the size to trace with."""

    name: str
    dtype: str
    """As torch names it: `float32`, `int32`."""
    dims: tuple[str | None, ...]
    """Name of each dynamic dimension; `None` where the network fixes the size."""
    example: tuple[int, ...]
    """Shape to trace with; a named dimension traced at 1 is fixed in the trace and broadcast by the graph."""


@dataclass(frozen=True)
class Interface:
    """Inputs in order, and output names in order."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    sized_like: Mapping[str, str] = field(default_factory=dict)
    """Output → input whose batch, height and width it has; the trace knows them as formulas only."""


def interface_of(component: str, config: Config) -> Interface:
    """Return the interface of `component` for a network with this config.

    Raises `UsageError` for a component that `convert` does not know, and `PassError` for a config that lacks what
    decides the interface.
    """
    if component not in _INTERFACES:
        raise UsageError(f"convert knows no component {component!r}")
    try:
        return _INTERFACES[component](config)
    except KeyError as error:
        raise PassError(
            f"{component}: its config has no {error.args[0]!r}, which decides the inputs; it is the config of another "
            "class, or not complete"
        ) from error


def traced_unevenly(interface: Interface, component: str) -> Interface:
    """Return the interface of a UNet with a size to trace with that can't be halved.

    That makes diffusers' `UNet2DConditionModel` pass sizes on its way up. Raises `PassError` for other networks.
    """
    if component != "unet":
        raise PassError(f"{component}: any_size is for the UNet; what else there is takes any size as it is")
    sample, *others = interface.inputs
    pictures, channels, height, width = sample.example
    uneven = replace(sample, example=(pictures, channels, height + 1, width + 3))
    return replace(interface, inputs=(uneven, *others))


def _unet(config: Config) -> Interface:
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


def _controlnet(config: Config) -> Interface:
    """Return a ControlNet's interface: what the UNet takes, a picture and a strength; residuals for the UNet."""
    latents, *others = _unet(config).inputs
    batch, _, height, width = latents.example
    times = 2 ** (len(config["conditioning_embedding_out_channels"]) - 1)
    dims = (latents.dims[0], None, "controlnet_cond_height", "controlnet_cond_width")
    levels = len(config["block_out_channels"])
    # One behind the first convolution, one behind each layer, and one where sizes are halved.
    connections = levels * (config["layers_per_block"] + 1)
    return Interface(
        (
            latents,
            *others,
            Input(CONTROL_PICTURE, "float32", dims, (batch, 3, height * times, width * times)),
            Input(STRENGTH, "float32", (None,), (1,)),
        ),
        (*(down_residual(number) for number in range(connections)), MID_RESIDUAL),
    )


def _t2i_adapter(config: Config) -> Interface:
    """Return a T2I-Adapter's interface: a picture; features for the UNet."""
    features = given_features(config)
    side = max(feature.scale for feature in features)
    dims = ("adapter_batch", None, "adapter_height", "adapter_width")
    return Interface(
        (Input(ADAPTER_PICTURE, "float32", dims, (2, config["in_channels"], side * 2, side * 3)),),
        tuple(adapter_feature(number) for number in range(len(features))),
    )


def _vae_encoder(config: Config) -> Interface:
    tiny = "encoder_block_out_channels" in config
    side = 2 ** (len(config["encoder_block_out_channels" if tiny else "block_out_channels"]) - 1)
    dims = ("encoder_batch", None, "encoder_height", "encoder_width")
    sample = Input("sample", "float32", dims, (2, config["in_channels"], side * 4, side * 6))
    # A tiny VAE has latents alone, no distribution of them.
    return Interface((sample,), ("latent_sample",) if tiny else ("latent_sample", "latent_parameters"))


def _vae_decoder(config: Config) -> Interface:
    dims = ("decoder_batch", None, "decoder_height", "decoder_width")
    return Interface((Input("latent_sample", "float32", dims, (2, config["latent_channels"], 6, 10)),), ("sample",))


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


def _image_encoder(config: Config) -> Interface:
    """Return an image encoder's interface: of an embedding, tokens of no picture are those of zeros in its place."""
    size, projection = config["image_size"], config["image_projection"]
    pixels = Input("pixel_values", "float32", ("image_batch", None, None, None), (2, 3, size, size))
    pooled = projection["class_name"] == "ImageProjection"
    return Interface((pixels,), (IMAGE_TOKENS, NO_IMAGE_TOKENS) if pooled else (IMAGE_TOKENS,))


_INTERFACES: Final[Mapping[str, Callable[[Config], Interface]]] = {
    "unet": _unet,
    **dict.fromkeys(CONTROLNETS, _controlnet),
    **dict.fromkeys(T2I_ADAPTERS, _t2i_adapter),
    IMAGE_ENCODER: _image_encoder,
    "vae_encoder": _vae_encoder,
    "vae_decoder": _vae_decoder,
    "preview_decoder": _vae_decoder,
    "text_encoder": lambda config: _text_encoder(config, "pooler_output"),
    "text_encoder_2": lambda config: _text_encoder(config, "text_embeds"),
    "safety_checker": _safety_checker,
}
