"""Networks that lead a UNet: ControlNets, T2I-Adapters, and the image encoder of an IP-Adapter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import Input, Interface, Network, Stored, Tensors, diffusers_converter, shown
from olivelike.families.networks import clip
from olivelike.families.networks.unet import COUNTS, SIZES, check_unet, takes_pooled_text, unet_interface
from olivelike.model.adapter_features import TYPES, given_features
from olivelike.model.guides import CONTROLNET, IMAGE_TOKENS, IP_ADAPTER, MIDDLE, NO_IMAGE_TOKENS, STRENGTH, T2I_ADAPTER

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config


def _controlnet(config: Config) -> Interface:
    """Return a ControlNet's interface: what the UNet takes, a picture and a strength; residuals for the UNet."""
    latents, *others = unet_interface(config).inputs
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
            Input(CONTROLNET.picture, "float32", dims, (batch, 3, height * times, width * times)),
            Input(STRENGTH, "float32", (None,), (1,)),
        ),
        tuple(CONTROLNET.input(*place) for place in enumerate([*range(connections), MIDDLE])),
    )


def _t2i_adapter(config: Config) -> Interface:
    """Return a T2I-Adapter's interface: a picture; features for the UNet."""
    features = given_features(config)
    side = max(feature.scale for feature in features)
    dims = ("adapter_batch", None, "adapter_height", "adapter_width")
    return Interface(
        (Input(T2I_ADAPTER.picture, "float32", dims, (2, config["in_channels"], side * 2, side * 3)),),
        tuple(T2I_ADAPTER.gives.format(number) for number in range(len(features))),
    )


def _image_encoder(config: Config) -> Interface:
    """Return an image encoder's interface: of an embedding, tokens of no picture are those of zeros in its place."""
    size, projection = config["image_size"], config["image_projection"]
    pixels = Input(IP_ADAPTER.picture, "float32", ("image_batch", None, None, None), (2, 3, size, size))
    pooled = projection["class_name"] == "ImageProjection"
    return Interface((pixels,), (IMAGE_TOKENS, NO_IMAGE_TOKENS) if pooled else (IMAGE_TOKENS,))


def _forward_controlnet(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    controlnet_cond: torch.Tensor,
    conditioning_scale: torch.Tensor,
) -> Any:
    down, middle = self.network(
        sample, timestep, encoder_hidden_states, controlnet_cond, conditioning_scale, return_dict=False
    )
    return *down, middle


def _forward_controlnet_xl(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    text_embeds: torch.Tensor,
    time_ids: torch.Tensor,
    controlnet_cond: torch.Tensor,
    conditioning_scale: torch.Tensor,
) -> Any:
    added = {"text_embeds": text_embeds, "time_ids": time_ids}
    down, middle = self.network(
        sample, timestep, encoder_hidden_states, controlnet_cond, conditioning_scale,
        added_cond_kwargs=added, return_dict=False,
    )  # fmt: skip
    return *down, middle


def _forward_t2i_adapter(self: Any, adapter_input: torch.Tensor) -> Any:
    return tuple(self.network(adapter_input))


def _forward_image_encoder(self: Any, pixel_values: torch.Tensor) -> Any:
    import torch

    project = self.network.image_projection
    if type(project).__name__ == "ImageProjection":
        embeds = self.network(pixel_values).image_embeds
        return project(embeds), project(torch.zeros_like(embeds))
    return project(self.network(pixel_values, output_hidden_states=True).hidden_states[-2])


def _controlnet_forward(network: Any) -> Any:
    return _forward_controlnet_xl if takes_pooled_text(network) else _forward_controlnet


def _check_controlnet(component: str, class_name: str, config: Config) -> None:
    check_unet(component, class_name, config)
    if (channels := config.get("conditioning_channels", 3)) != 3:
        raise SourceError(
            f"{component}: {class_name} takes pictures of {shown(channels)} channels, and there are RGB's; take one "
            "for those"
        )


def _check_adapter(component: str, class_name: str, config: Config) -> None:
    for option, supported in (("adapter_type", TYPES), ("in_channels", (1, 3))):
        if (value := config.get(option, supported[-1])) not in supported:
            raise SourceError(
                f"{component}: {class_name} with `{option}: {shown(value)}` is not known; there are "
                f"{', '.join(map(str, supported))}"
            )
    for option, kind, words in (("channels", list | tuple, "a list"), ("downscale_factor", int, "a number")):
        value = config.get(option, [1] if option == "channels" else 1)
        if not isinstance(value, kind) or not value:
            raise SourceError(f"{component}: {class_name} with `{option}: {shown(value)}` is not known; it is {words}")


def _controlnet_to_diffusers(config: Config, tensors: Tensors) -> Tensors:
    # What SDXL's adds to the time embedding, which diffusers' converter does not know.
    added = {
        f"add_embedding.linear_{number}.{kind}": tensors.get(f"label_emb.0.{2 * number - 2}.{kind}")
        for number in (1, 2)
        for kind in ("weight", "bias")
    }
    return diffusers_converter("convert_controlnet_checkpoint")(tensors, dict(config)) | added


def _adapter_to_diffusers(config: Config, tensors: Tensors) -> Tensors:
    del config
    light = "body.0.out_conv.weight" in tensors
    return {f"adapter.{_adapter_name(name, light)}": tensor for name, tensor in tensors.items()}


def _adapter_name(name: str, light: bool) -> str:
    """Return what diffusers calls a T2I-Adapter's tensor: where layers stand in one list, each level has two."""
    if light:
        return re.sub(r"^(body\.\d+)\.body\.", r"\1.resnets.", name)
    match name.split("."):
        case ["body", number, ("block1" | "block2") as block, kind]:
            return f"body.{int(number) // 2}.resnets.{int(number) % 2}.{block}.{kind}"
        case ["body", number, "in_conv", kind]:
            return f"body.{int(number) // 2}.in_conv.{kind}"
    return name


NETWORKS: Final = (
    Network(
        CONTROLNET.network[1],
        CONTROLNET.components,
        _controlnet,
        _controlnet_forward,
        _check_controlnet,
        counts=COUNTS,
        sizes=SIZES | {"conditioning_channels", "conditioning_embedding_out_channels"},
        stored=(Stored(name=CONTROLNET.name, to_library=_controlnet_to_diffusers, prefixes=("control_model.",)),),
    ),
    Network(
        T2I_ADAPTER.network[1],
        T2I_ADAPTER.components,
        _t2i_adapter,
        lambda _: _forward_t2i_adapter,
        _check_adapter,
        counts=frozenset({"num_res_blocks"}),
        sizes=frozenset({"in_channels", "channels", "downscale_factor"}),
        stored=(Stored(name=T2I_ADAPTER.name, to_library=_adapter_to_diffusers),),
    ),
    Network(
        IP_ADAPTER.network[1],
        IP_ADAPTER.components,
        _image_encoder,
        lambda _: _forward_image_encoder,
        counts=clip.COUNTS,
        sizes=clip.SIZES,
    ),
)
