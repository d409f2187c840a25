"""Networks as torch modules whose `forward` has a component's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike._light_diffusers import light_diffusers
from olivelike.errors import PassError
from olivelike.graphs.interface.component_interface import IMAGE_PROMPT
from olivelike.model.families import CONTROLNETS, IMAGE_ENCODER, T2I_ADAPTERS
from olivelike.model.supported import REFUSALS, refused_config

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from olivelike.model import Architecture

PREFIX = "network."
"""What a wrapped module's parameter names start with; the rest is the library's own name."""


def build_network(architecture: Architecture) -> torch.nn.Module:
    """Build the library's network with its parameters on the meta device and its buffers real.

    Raises:
        PassError: when the library has no such class, or refuses the config.
    """
    from accelerate import init_empty_weights

    network_class = find_class(architecture)
    try:
        with init_empty_weights(include_buffers=False):
            network = _instantiate(network_class, architecture)
    except REFUSALS as error:
        raise PassError(refused_config(architecture.component, architecture.class_name, error)) from error
    return network.eval()


def find_class(architecture: Architecture) -> type[torch.nn.Module]:
    """Return the torch class that the architecture names."""
    with light_diffusers():
        import diffusers
        import transformers
        from diffusers.pipelines.stable_diffusion import safety_checker

        homes: tuple[Any, ...] = (diffusers, safety_checker, transformers)
        for home in homes:
            found: type[torch.nn.Module] | None = getattr(home, architecture.class_name, None)
            if found is not None:
                return found
    raise PassError(
        f"{architecture.component}: neither diffusers nor transformers has a class "
        f"{architecture.class_name!r}; a newer version may"
    )


def _instantiate(network_class: Any, architecture: Architecture) -> Any:
    config = dict(architecture.config)
    prompted = config.pop(IMAGE_PROMPT, False)
    if architecture.library == "diffusers":
        network = network_class.from_config(config)
        return _attending_to_images(network) if prompted else network
    network = network_class(network_class.config_class.from_dict(config))
    if (projection := config.get("image_projection")) is not None:
        from olivelike.sources.names.image_projection import build_projection

        network.image_projection = build_projection(projection)
    return network


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


def replace_parameters_by_fakes(network: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Put fake CPU tensors in place of all parameters: they trace like real ones and take no memory."""
    import torch

    fakes: dict[int, torch.nn.Parameter] = {}
    with mode:
        for module in network.modules():
            for name, parameter in module._parameters.items():  # noqa: SLF001  (setattr would check devices)
                if parameter is None:
                    continue
                if id(parameter) not in fakes:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                    fakes[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
                module._parameters[name] = fakes[id(parameter)]  # noqa: SLF001


def wrap(component: str, network: torch.nn.Module) -> torch.nn.Module:
    """Return a module that takes and returns a component's inputs and outputs, as tensors in order."""
    import torch

    forward: Any = _FORWARD.get(component)
    if component in _FORWARD_XL and getattr(network.config, "addition_embed_type", None) == "text_time":
        forward = _FORWARD_XL[component]
    if type(network).__name__ == "AutoencoderTiny":
        forward = _TINY[component]
    if any(name.endswith("_ip.0.weight") for name, _ in network.named_parameters()):
        forward = _with_image_prompt(forward)
    wrapper: torch.nn.Module = type("Wrapper", (torch.nn.Module,), {"forward": forward})()
    wrapper.network = network
    return wrapper.eval()


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


def _forward_vae_encoder(self: Any, sample: torch.Tensor) -> Any:
    import torch

    parameters = self.network.encoder(sample)
    if self.network.quant_conv is not None:
        parameters = self.network.quant_conv(parameters)
    mean, _ = torch.chunk(parameters, 2, dim=1)
    return mean, parameters


def _forward_vae_decoder(self: Any, latent_sample: torch.Tensor) -> Any:
    if self.network.post_quant_conv is not None:
        latent_sample = self.network.post_quant_conv(latent_sample)
    return self.network.decoder(latent_sample)


def _encode_tiny(self: Any, sample: torch.Tensor) -> Any:
    return self.network.encoder(sample)


def _decode_tiny(self: Any, latent_sample: torch.Tensor) -> Any:
    return self.network.decoder(latent_sample)


def _forward_text_encoder(self: Any, input_ids: torch.Tensor) -> Any:
    output = self.network(input_ids, output_hidden_states=True, return_dict=True)
    return output.last_hidden_state, output.pooler_output, *output.hidden_states


def _forward_text_encoder_2(self: Any, input_ids: torch.Tensor) -> Any:
    output = self.network(input_ids, output_hidden_states=True, return_dict=True)
    return output.text_embeds, output.last_hidden_state, *output.hidden_states


def _forward_image_encoder(self: Any, pixel_values: torch.Tensor) -> Any:
    import torch

    project = self.network.image_projection
    if type(project).__name__ == "ImageProjection":
        embeds = self.network(pixel_values).image_embeds
        return project(embeds), project(torch.zeros_like(embeds))
    return project(self.network(pixel_values, output_hidden_states=True).hidden_states[-2])


def _forward_safety_checker(self: Any, clip_input: torch.Tensor, images: torch.Tensor) -> Any:
    import torch

    # `forward_onnx` writes into `images` under a mask; the same choice without the write.
    _, flagged = self.network.forward_onnx(clip_input, images[:, :1, :1, :].clone())
    # The order of the arguments is that of the nodes.
    return torch.where(flagged[:, None, None, None], torch.zeros((), dtype=images.dtype), images), flagged


_FORWARD: Final = {
    "unet": _forward_unet,
    **dict.fromkeys(CONTROLNETS, _forward_controlnet),
    **dict.fromkeys(T2I_ADAPTERS, _forward_t2i_adapter),
    IMAGE_ENCODER: _forward_image_encoder,
    "vae_encoder": _forward_vae_encoder,
    "vae_decoder": _forward_vae_decoder,
    "text_encoder": _forward_text_encoder,
    "text_encoder_2": _forward_text_encoder_2,
    "safety_checker": _forward_safety_checker,
}
_FORWARD_XL: Final = {"unet": _forward_unet_xl, **dict.fromkeys(CONTROLNETS, _forward_controlnet_xl)}
"""Of networks with SDXL's additions to the time embedding."""
_TINY: Final = {"vae_encoder": _encode_tiny, "vae_decoder": _decode_tiny, "preview_decoder": _decode_tiny}
"""Of an `AutoencoderTiny`."""
