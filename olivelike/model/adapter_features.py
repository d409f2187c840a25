"""Places where a T2I-Adapter's features go into a UNet (https://arxiv.org/abs/2302.08453), read off both configs.

As diffusers' `UNet2DConditionModel` has it: a level that attends to the text takes them behind its last layer, another
one behind all of it, and a UNet whose first level does not attend, as SDXL's, takes the last ones behind its middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike.model.guides import MIDDLE

if TYPE_CHECKING:
    from olivelike.model.architecture import Config

_CHANNELS: Final = (320, 640, 1280, 1280)
_DOWNSCALE: Final = 8
TYPES: Final = ("full_adapter", "full_adapter_xl", "light_adapter")
"""Types of diffusers' `T2IAdapter`."""


@dataclass(frozen=True)
class Feature:
    """Features of one level."""

    channels: int
    scale: int
    """Number of pixels, or latents, that one of them stands for along a side."""
    connection: int = MIDDLE
    """For a UNet, the connection from its way down to its way up, counted from 0, to which they are added as well."""


def taken_features(unet: Config) -> tuple[Feature, ...]:
    """Return the features that a UNet takes, by its config; scales are in latents."""
    widths, types = list(unet["block_out_channels"]), list(unet["down_block_types"])
    layers = unet.get("layers_per_block", 2)
    counts = list(layers) if isinstance(layers, list | tuple) else [layers] * len(widths)
    found, last = [], 0
    for level, (width, kind, count) in enumerate(zip(widths, types, counts, strict=True)):
        halves = level < len(widths) - 1
        attends = "CrossAttn" in kind
        connection = last + count + (halves and not attends)
        found.append(Feature(width, 2 ** (level + (halves and not attends)), connection))
        last += count + halves
    if "CrossAttn" not in types[0]:
        found.append(Feature(widths[-1], 2 ** (len(widths) - 1)))
    return tuple(found)


def given_features(adapter: Config) -> tuple[Feature, ...]:
    """Return the features that a T2I-Adapter gives, by its config; scales are in pixels."""
    widths, first = list(adapter.get("channels", _CHANNELS)), downscale_factor(adapter)
    match adapter.get("adapter_type", TYPES[0]):
        case "full_adapter_xl":
            return tuple(Feature(width, first * (1 + (level > 1))) for level, width in enumerate(widths))
        case "light_adapter":
            widths.append(widths[-1])
    return tuple(Feature(width, first * 2**level) for level, width in enumerate(widths))


def downscale_factor(adapter: Config) -> int:
    """Return what sides of pictures for a T2I-Adapter are multiples of."""
    factor: Any = adapter.get("downscale_factor", _DOWNSCALE)
    return int(factor)
