"""Tiny VAEs (TAESD) with seeded random weights, in every form that they are published in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from olivelike.testing.checkpoints import write_safetensors

_LITTLE: Final[dict[str, Any]] = {
    "encoder_block_out_channels": (8, 8),
    "decoder_block_out_channels": (8, 8),
    "num_encoder_blocks": (1, 1),
    "num_decoder_blocks": (1, 1),
}
_LIVELINESS: Final = 1.6
"""What weights are multiplied by: pictures of those that the class begins with are grey."""


def make_tiny_vae(
    folder: str | Path, *, size: str = "full", latent_channels: int = 4, seed: int = 0, hollow: bool = False
) -> tuple[Path, Path, Path]:
    """Write a tiny VAE as a diffusers folder and, beside its files, as the original ones.

    Args:
        folder: where to write; made if absent.
        size: `full`, as published, or `little`: two levels of 8 channels, one block each.
        latent_channels: 4; that of Stable Diffusion 3 and FLUX has 16.
        seed: of the weights.
        hollow: leave holes in place of the weights.

    Returns:
        The folder; the original decoder's file, which has the encoder's beside it; one file with both.
    """
    import torch
    from diffusers import AutoencoderTiny

    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network: Any = AutoencoderTiny(latent_channels=latent_channels, **(_LITTLE if size == "little" else {}))
        for parameter in network.parameters():
            parameter.mul_(_LIVELINESS if parameter.ndim > 1 else 1)
    network.save_config(root)
    tensors = {name: value.numpy() for name, value in network.state_dict().items()}
    halves: dict[str, dict[str, str]] = {"encoder": {}, "decoder": {}}
    for name in tensors:
        half, _, numbered = name.partition(".layers.")
        number, _, rest = numbered.partition(".")
        halves[half][f"{int(number) + (half == 'decoder')}.{rest}"] = name
    combined = {f"taesd_{half}.{name}": own for half, names in halves.items() for name, own in names.items()}
    for file, names in (
        ("diffusion_pytorch_model", {name: name for name in tensors}),
        *((f"taesd_{half}", names) for half, names in halves.items()),
        ("taesd_combined", combined),
    ):
        shapes: Any = {name: ("F32", tensors[own].shape) for name, own in names.items()}
        path = root / f"{file}.safetensors"
        values = {name: tensors[own] for name, own in names.items()}
        write_safetensors(path, shapes, None if hollow else values.__getitem__)
    return root, root / "taesd_decoder.safetensors", root / "taesd_combined.safetensors"
