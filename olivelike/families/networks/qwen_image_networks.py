"""Networks of Qwen-Image: diffusers' denoiser and VAE, and what of transformers' Qwen2.5-VL reads texts.

The denoiser's graph takes latents and packs them itself, so that places follow from sizes. The VAE is one of videos:
its graph takes and makes a picture, and its convolutions over time see what is the only picture's.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import Input, Interface, Network, check_base, packing_interface, shown, size_of
from olivelike.families.networks import qwen3
from olivelike.model.components import VAES, latent_channels, pixels_per_latent

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_PATCH: Final = 2
"""Latents along a side of the squares that are one token."""
_TEXT: Final = 24
"""Tokens of the text that it is traced with."""
_AXES: Final = 3
"""Parts of a head: turned by time, row and column, which of a text are one."""
_FRAMES: Final = 2
"""Axis of a video's pictures."""


def _transformer(config: Config) -> Interface:
    return packing_interface(_PATCH, config["in_channels"] // _PATCH**2, _TEXT, config["joint_attention_dim"])


def _predict(self: Any, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor) -> Any:
    """Pack latents, run the library's forward on texts of one length, and unpack what it makes."""
    import torch

    batch, _, height, width = sample.shape
    rows, columns = height // _PATCH, width // _PATCH
    packed = torch.nn.functional.pixel_unshuffle(sample, _PATCH).flatten(2).transpose(1, 2)
    made = self.network(
        packed,
        encoder_hidden_states,
        timestep=timestep.expand(batch),
        # All have one size; a list as long as the batch would fix that.
        img_shapes=[[(1, rows, columns)]],
        return_dict=False,
    )[0]
    squares = made.transpose(1, 2).reshape(batch, made.shape[2], rows, columns)
    return torch.nn.functional.pixel_shuffle(squares, _PATCH)


def _turns(
    self: Any, video_fhw: Any, device: Any = None, max_txt_seq_len: Any = None
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return cosines and sines of the places of a picture's tokens, whose middle is 0, and of a text's behind them.

    The library has tables of complex numbers for them, of which it takes what a size says.
    """
    import torch

    del device
    ((_, height, width),) = video_fhw[0]
    row, column = (torch.arange(count) - (count - count // 2) for count in (height, width))
    behind = torch.maximum(row.max(), column.max()) + 1 + torch.arange(max_txt_seq_len)
    places = (
        torch.zeros_like(row)[:, None].expand(height, width),
        row[:, None].expand(height, width),
        column[None].expand(height, width),
    )

    def of(places: Any) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        for place, size in zip(places, self.axes_dim, strict=True):
            frequencies = 1.0 / torch.pow(self.theta, torch.arange(0, size, 2, dtype=torch.float32) / size)
            parts.append(place.reshape(-1, 1) * frequencies)
        angles = torch.cat(parts, dim=-1)
        return angles.cos(), angles.sin()

    return of(places), of([behind] * len(self.axes_dim))


def _places_of_sizes(network: Any) -> None:
    """Compute places of what a graph knows, with real numbers."""
    network.pos_embed.forward = MethodType(_turns, network.pos_embed)


def _check_transformer(component: str, class_name: str, config: Config) -> None:
    """Refuse a denoiser that takes more than text and latents, as those that edit pictures and layers do."""
    taken, made = config.get("in_channels", 64), config.get("out_channels", 16)
    if config.get("patch_size", _PATCH) != _PATCH or taken != (made or 0) * _PATCH**2:
        raise SourceError(
            f"{component}: {class_name} with `patch_size: {shown(config.get('patch_size'))}`, `in_channels: "
            f"{shown(taken)}` and `out_channels: {shown(made)}` is not supported: it takes or makes more than latents "
            f"in squares of {_PATCH} by {_PATCH}"
        )
    for key in ("guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"):
        if config.get(key):
            raise SourceError(
                f"{component}: {class_name} with `{key}: {shown(config[key])}` is not supported: it takes more than "
                "text and latents"
            )


def _encoder(config: Config) -> Interface:
    side = pixels_per_latent(config)
    dims = ("encoder_batch", None, "encoder_height", "encoder_width")
    sample = Input("sample", "float32", dims, (2, config["input_channels"], side * 4, side * 6))
    return Interface((sample,), ("latent_sample", "latent_parameters"))


def _decoder(config: Config) -> Interface:
    dims = ("decoder_batch", None, "decoder_height", "decoder_width")
    return Interface((Input("latent_sample", "float32", dims, (2, latent_channels(config) or 0, 6, 10)),), ("sample",))


def _encode(self: Any, sample: torch.Tensor) -> Any:
    import torch

    posterior = self.network.encode(sample.unsqueeze(_FRAMES), return_dict=False)[0]
    parameters = posterior.parameters.squeeze(_FRAMES)
    mean, _ = torch.chunk(parameters, 2, dim=1)
    return mean, parameters


def _decode(self: Any, latent_sample: torch.Tensor) -> Any:
    return self.network.decode(latent_sample.unsqueeze(_FRAMES), return_dict=False)[0].squeeze(_FRAMES)


def _of_one_picture(self: Any, x: torch.Tensor, cache_x: None = None) -> torch.Tensor:
    """Convolve a video's only picture: those before it are zeros, which all but the last weights are for."""
    import torch

    del cache_x
    left, right, top, bottom, *_ = self._padding
    picture = torch.nn.functional.pad(x.squeeze(_FRAMES), (left, right, top, bottom))
    weight = self.weight[:, :, -1]
    return torch.nn.functional.conv2d(picture, weight, self.bias, self.stride[1:]).unsqueeze(_FRAMES)


def _as_pictures(network: Any) -> None:
    """Let convolutions be those of one picture, and sizes be doubled by the operator that this is exactly."""
    import torch

    for module in network.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.forward = MethodType(_of_one_picture, module)
        elif isinstance(module, torch.nn.Upsample):
            module.mode = "nearest"


def _read(self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
    return self.network.model.language_model(input_ids, attention_mask, use_cache=False).last_hidden_state


def _check_text(component: str, class_name: str, config: Config) -> None:
    """Refuse a network whose layers see a part of the text, and turns of its heads that are none."""
    text = config.get("text_config") or config
    if not isinstance(text, dict):
        return
    turns = next((one for key in ("rope_parameters", "rope_scaling") if isinstance(one := text.get(key), dict)), {})
    check_base(component, class_name, turns if "rope_theta" in turns else text, "rope_theta")
    half = size_of(text, "hidden_size", 8192) / size_of(text, "num_attention_heads", 64) / 2
    parts = turns.get("mrope_section", ())
    whole = isinstance(parts, list | tuple) and all(type(one) is int and one > 0 for one in parts)
    if not whole or (parts and (len(parts) != _AXES or sum(parts) != half)):
        raise SourceError(
            f"{component}: the config of {class_name} has `mrope_section: {shown(parts)}`, where {_AXES} numbers above "
            f"0 make sense whose sum is {half:g}, half of a head's width; get its config.json again"
        )
    qwen3.check_window(component, class_name, text)


NETWORKS: Final = (
    Network(
        "QwenImageTransformer2DModel",
        ("transformer",),
        _transformer,
        lambda network: _predict,  # noqa: ARG005
        _check_transformer,
        as_operators=_places_of_sizes,
        counts=frozenset({"num_layers"}),
        sizes=frozenset(
            {
                "patch_size", "in_channels", "out_channels", "attention_head_dim", "num_attention_heads",
                "joint_attention_dim", "axes_dims_rope",
            }
        ),
    ),
    *(
        Network(
            "AutoencoderKLQwenImage",
            (half,),
            interface,
            lambda network, forward=forward: forward,  # type: ignore[misc]  # noqa: ARG005
            as_operators=_as_pictures,
            counts=frozenset({"num_res_blocks"}),
            sizes=frozenset({"base_dim", "z_dim", "dim_mult", "input_channels"}),
            inert=frozenset({"latents_mean", "latents_std", "dropout"}),
        )
        for half, interface, forward in zip(VAES, (_encoder, _decoder), (_encode, _decode), strict=True)
    ),
    Network(
        "Qwen2_5_VLForConditionalGeneration",
        ("text_encoder",),
        qwen3.interface,
        lambda network: _read,  # noqa: ARG005
        _check_text,
        counts=frozenset({"num_hidden_layers", "depth"}),
        sizes=frozenset(
            {
                "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                "max_position_embeddings",
            }
        ),
    ),
)  # fmt: skip
