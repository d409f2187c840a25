"""VAEs, each of which is two components: diffusers' `AutoencoderKL`, its like, and `AutoencoderTiny`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import (
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    Tensors,
    diffusers_converter,
    layer_count,
    layer_number,
    renamed,
    shown,
    with_own_names,
)  # fmt: skip
from olivelike.model.components import PREVIEW, VAES, latents_in_square

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config


def _vae_encoder(config: Config) -> Interface:
    tiny = "encoder_block_out_channels" in config
    side = latents_in_square(config) * 2 ** (
        len(config["encoder_block_out_channels" if tiny else "block_out_channels"]) - 1
    )
    dims = ("encoder_batch", None, "encoder_height", "encoder_width")
    unit = side if latents_in_square(config) > 1 else 1
    sample = Input("sample", "float32", dims, (2, config["in_channels"], side * 4, side * 6), unit=unit)
    # A tiny VAE has latents alone, no distribution of them; FLUX.2 takes the likeliest.
    alone = tiny or "patch_size" in config
    return Interface((sample,), ("latent_sample",) if alone else ("latent_sample", "latent_parameters"))


def _vae_decoder(config: Config) -> Interface:
    dims = ("decoder_batch", None, "decoder_height", "decoder_width")
    channels = config["latent_channels"] * latents_in_square(config) ** 2
    return Interface((Input("latent_sample", "float32", dims, (2, channels, 6, 10)),), ("sample",))


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


def _statistics(network: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of each channel of squares, which a VAE of FLUX.2 holds as those of a batch norm."""
    norm = network.bn
    return norm.running_mean[:, None, None], (norm.running_var + norm.eps).sqrt()[:, None, None]


def _encode_squares(self: Any, sample: torch.Tensor) -> Any:
    import torch

    latents, _ = _forward_vae_encoder(self, sample)
    mean, deviation = _statistics(self.network)
    return (torch.nn.functional.pixel_unshuffle(latents, self.network.config.patch_size[0]) - mean) / deviation


def _decode_squares(self: Any, latent_sample: torch.Tensor) -> Any:
    import torch

    mean, deviation = _statistics(self.network)
    latents = torch.nn.functional.pixel_shuffle(latent_sample * deviation + mean, self.network.config.patch_size[0])
    return _forward_vae_decoder(self, latents)


def _check_squares(component: str, class_name: str, config: Config) -> None:
    """Refuse squares that are none."""
    patch = config.get("patch_size", (2, 2))
    if not isinstance(patch, list | tuple) or len(patch) != _SIDES or patch[0] != patch[1]:
        raise SourceError(
            f"{component}: {class_name} with `patch_size: {shown(patch)}` is not supported: it is no height and width "
            "that are equal"
        )


_SIDES: Final = 2
_ATTENTION: Final = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_BLOCK: Final = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|downsamplers|upsamplers)\.(\d+)\.(.+)")
_LAST: Final = re.compile(r"decoder\.up_blocks\.(\d+)\.")


def ldm_names(names: Collection[str]) -> Callable[[str], str]:
    """Return what gives the LDM code's name of a VAE's parameter; its levels count the other way on the way up.

    https://github.com/CompVis/stable-diffusion (`model.py`).
    """
    last = max((layer_number(found[1]) for found in map(_LAST.match, names) if found), default=0)

    def original(name: str) -> str:
        side, _, inner = name.partition(".")
        if side not in ("encoder", "decoder"):
            return name
        inner = inner.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        if inner.startswith("mid_block.resnets."):
            _, _, position, rest = inner.split(".", 3)
            return f"{side}.mid.block_{int(position) + 1}.{rest}"
        if inner.startswith("mid_block.attentions.0."):
            rest = inner.split(".", 3)[3]
            return f"{side}.mid.attn_1.{renamed(rest, _ATTENTION) or rest}"
        if (found := _BLOCK.fullmatch(inner)) is None:
            return f"{side}.{inner}"
        way, block, kind, index, rest = found.groups()
        level = int(block) if way == "down" else last - int(block)
        return f"{side}.{way}.{level}." + (f"block.{index}.{rest}" if kind == "resnets" else f"{way}sample.{rest}")

    return original


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del head_width
    count = layer_count(shapes, r"^decoder\.up\.(\d+)\.")
    attends = (
        {} if any(name.startswith("decoder.mid.attn_1.") for name in shapes) else {"mid_block_add_attention": False}
    )
    return {
        **attends,
        "block_out_channels": [shapes[f"decoder.up.{i}.block.0.conv1.weight"][0] for i in range(count)],
        "down_block_types": published["down_block_types"][:1] * count,
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "layers_per_block": layer_count(shapes, r"^decoder\.up\.0\.block\.(\d+)\.") - 1,
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "in_channels": shapes.get("encoder.conv_in.weight", (0, published["in_channels"]))[1],
        "up_block_types": published["up_block_types"][:1] * count,
    }


def _tiny(half: str, other: str, first: int) -> Stored:
    """Return how TAESD's files hold a half: by numbers of layers, of which `AutoencoderTiny` begins at `first`."""

    def to_diffusers(config: Config, tensors: Tensors) -> Tensors:
        del config
        numbered = {name.partition("."): tensor for name, tensor in tensors.items()}
        return {f"{half}.layers.{int(n) - first}.{rest}": tensor for (n, _, rest), tensor in numbered.items()}

    name = f"taesd_{half}"
    return Stored(name=name, to_library=to_diffusers, prefixes=(f"{name}.",), absent=f"{other}.")


STORED: Final = Stored(
    name="vae",
    to_library=lambda config, tensors: diffusers_converter("convert_ldm_vae_checkpoint")(tensors, dict(config)),
    prefixes=("first_stage_model.", "vae."),
    expected="first_stage_model.",
    marks=("decoder.conv_in.weight", "decoder.mid.block_1.conv1.weight"),
    config=_config,
    original=ldm_names,
)


def _own_config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    """Read the config of a VAE in diffusers' names off shapes."""
    names = ldm_names(shapes)
    return _config(published, {names(name): shape for name, shape in shapes.items()}, head_width)


def _squares_from_ldm(config: Config, tensors: Tensors) -> Tensors:
    """Convert the names of FLUX.2's VAE, whose last layers of a half have names within it."""
    renames = {"encoder.quant_conv.": "quant_conv.", "decoder.post_quant_conv.": "post_quant_conv."}
    found: Tensors = {}
    for name, tensor in tensors.items():
        own = next((old for old in renames if name.startswith(old)), "")
        found[renames[own] + name.removeprefix(own) if own else name] = tensor
    kept = {name: tensor for name, tensor in found.items() if name.startswith("bn.")}
    return {**diffusers_converter("convert_ldm_vae_checkpoint")(found, dict(config)), **kept}


_OWN_MARKS: Final = ("decoder.conv_in.weight", "decoder.mid_block.resnets.0.conv1.weight")
_STATISTICS: Final = "bn.running_var"
_USUAL: Final = with_own_names(STORED, *_OWN_MARKS, config=_own_config, expected="")
_SQUARES: Final = with_own_names(
    replace(
        STORED, name="vae_flux2", to_library=_squares_from_ldm, expected="", marks=(*STORED.marks, _STATISTICS)
    ),
    *_OWN_MARKS, _STATISTICS, config=_own_config,
)  # fmt: skip
# The decoder's first layer has no weights, and diffusers does not count it.
_TINY: Final = (_tiny("encoder", "decoder", 0), _tiny("decoder", "encoder", 1))


_COUNTS: Final = frozenset(
    {"layers_per_block", "down_block_layers", "up_block_layers", "num_encoder_blocks", "num_decoder_blocks"}
)
_SIZES: Final = frozenset(
    {
        "in_channels", "out_channels", "block_out_channels", "down_block_out_channels", "up_block_out_channels",
        "encoder_block_out_channels", "decoder_block_out_channels", "latent_channels", "norm_num_groups", "patch_size",
    }
)  # fmt: skip
_INERT: Final = frozenset(
    {
        "batch_norm_momentum",
        "sample_size",
        "scaling_factor",
        "shift_factor",
        "latents_mean",
        "latents_std",
        "force_upcast",
    }
)  # fmt: skip
_TINY_INERT: Final = frozenset({"latent_magnitude", "latent_shift", "scaling_factor", "shift_factor", "force_upcast"})


_FORWARDS: Final = {
    "AutoencoderTiny": (_encode_tiny, _decode_tiny),
    "AutoencoderKLFlux2": (_encode_squares, _decode_squares),
}
"""Class → how its halves run, if otherwise than `AutoencoderKL`'s."""


def _network(class_name: str, component: str) -> Network:
    encodes, tiny = component == "vae_encoder", class_name == "AutoencoderTiny"
    encode, decode = _FORWARDS.get(class_name, (_forward_vae_encoder, _forward_vae_decoder))
    more = {"check": _check_squares, "stored": _SQUARES} if class_name == "AutoencoderKLFlux2" else {}
    known: dict[str, Any] = {"stored": _TINY if tiny else _USUAL, **more}
    return Network(
        class_name,
        (component,),
        _vae_encoder if encodes else _vae_decoder,
        lambda network: encode if encodes else decode,  # noqa: ARG005
        counts=_COUNTS,
        sizes=_SIZES,
        inert=_TINY_INERT if tiny else _INERT,
        **known,
    )


NETWORKS: Final = (
    *(
        _network(name, half)
        for half in VAES
        for name in ("AutoencoderKL", "AsymmetricAutoencoderKL", "AutoencoderKLFlux2")
    ),
    *(_network("AutoencoderTiny", half) for half in (*VAES, PREVIEW)),
)
