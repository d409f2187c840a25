"""VAEs, each of which is two components: diffusers' `AutoencoderKL`, its like, and `AutoencoderTiny`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import Input, Interface, Network
from olivelike.model.components import PREVIEW, VAES

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config


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


def _network(class_name: str, component: str, *, tiny: bool = False) -> Network:
    encodes = component == "vae_encoder"
    if tiny:
        forward = _encode_tiny if encodes else _decode_tiny
    else:
        forward = _forward_vae_encoder if encodes else _forward_vae_decoder
    return Network(class_name, (component,), _vae_encoder if encodes else _vae_decoder, lambda network: forward)  # noqa: ARG005


NETWORKS: Final = (
    *(_network(name, half) for half in VAES for name in ("AutoencoderKL", "AsymmetricAutoencoderKL")),
    *(_network("AutoencoderTiny", half, tiny=True) for half in (*VAES, PREVIEW)),
)
