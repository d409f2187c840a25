"""Tiny VAEs (TAESD, https://github.com/madebyollin/taesd) as files hold them: both halves, or one of them.

Original files number the layers of a half (`3.conv.0.weight`), alone or behind `taesd_encoder.` and `taesd_decoder.`
where both are in one file. diffusers' `AutoencoderTiny` has the same layers, behind `encoder.layers.` and
`decoder.layers.`, and leaves out the decoder's first one, which has no weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from olivelike.families import FAMILIES
from olivelike.families.family import TinyVae
from olivelike.model.architecture import Config

Shapes = Mapping[str, tuple[int, ...]]

NETWORK: Final = "the tiny kind (TAESD)"
TINY_CLASS: Final = ("diffusers", "AutoencoderTiny")
_PLAIN: Final = re.compile(r"(\d+)\.weight")
_DIGITS: Final = 16


@dataclass(frozen=True)
class TinyHalf:
    """An encoder or a decoder in a file."""

    component: str
    """`vae_encoder` or `vae_decoder`."""
    prefix: str
    """Beginning of the names of its tensors; the number of the layer follows."""
    original: str | None
    """Way in which names of the original code are stored; `None` for those of diffusers."""


def tiny_halves(shapes: Shapes) -> tuple[TinyHalf, ...]:
    """Return the halves of a tiny VAE that tensors of these names are; none if they are something else."""
    found = []
    for half, first in (("encoder", 0), ("decoder", 1)):
        original = f"taesd_{half}"
        # The layer behind the first convolution: a block, or the decoder's activation with a block behind it.
        forms = ((f"{half}.layers.", None, 0), ("", original, first), (f"{original}.", original, first))
        for prefix, converter, number in forms:
            block = number + (1 if half == "encoder" else 2)
            other = f"{prefix}{1 - first}.weight" if not prefix else ""
            marks = (f"{prefix}{number}.weight", f"{prefix}{block}.conv.0.weight")
            if all(len(shapes.get(mark, ())) == 4 for mark in marks) and other not in shapes:
                found.append(TinyHalf(f"vae_{half}", prefix, converter))
    return tuple(found)


def tiny_config(shapes: Shapes, halves: tuple[TinyHalf, ...]) -> Config:
    """Return the config of an `AutoencoderTiny` with these halves; one that is not there mirrors the other.

    Raises `ValueError` if the layers are in no order that such a network has.
    """
    config: dict[str, object] = {}
    for half in halves:
        layers = {name.removeprefix(half.prefix): s for name, s in shapes.items() if name.startswith(half.prefix)}
        numbers = sorted(int(match[1]) for name in layers if (match := _PLAIN.fullmatch(name)))
        convolutions = [layers[f"{number}.weight"] for number in numbers]
        counts = [after - before - 1 for before, after in pairwise(numbers)]
        widths = [shape[0] for shape in convolutions[:-1]]
        if half.component == "vae_decoder":
            # Between its convolutions are the first one's activation, and what enlarges, but for the last.
            counts = [count - (i == 0) - (i < len(counts) - 1) for i, count in enumerate(counts)]
            latents, name, other = convolutions[0][1], "decoder", "encoder"
        else:
            latents, name, other = convolutions[-1][0], "encoder", "decoder"
        if not counts or min(counts) < 0:
            raise ValueError(f"the layers of its {name} are not those of TAESD")
        config |= {f"{name}_block_out_channels": widths, f"num_{name}_blocks": counts, "latent_channels": latents}
        config.setdefault(f"{other}_block_out_channels", widths[::-1])
        config.setdefault(f"num_{other}_blocks", counts[::-1])
    return config


def published_tiny(digest: str, repository: str | None) -> TinyVae | None:
    """Return the published tiny VAE that a file is; `None` if it is none.

    Args:
        digest: SHA-256 of its file.
        repository: that it is from.
    """
    known = [tiny for family in FAMILIES.values() if (tiny := family.latents.tiny)]
    by_digest = next((tiny for tiny in known if digest[:_DIGITS] in tiny.digests), None)
    return by_digest or next((tiny for tiny in known if tiny.repository == repository), None)
