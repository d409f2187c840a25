"""Sizes and factors in the configs of an optimised folder, which drawing computes with: of a kind that makes sense."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike._untrusted import JsonView

_MOST: Final = 1 << 16
_MOST_LEVELS: Final = 16
_PAIR: Final = 2
_SHOWN: Final = 60


@dataclass(frozen=True)
class _Kind:
    """A kind of values."""

    words: str
    fits: Callable[[object], bool]


def check_facts(file: Path, config: JsonView, remedy: str) -> None:
    """Refuse the config of a denoiser or a VAE whose sizes or factors are none.

    Args:
        file: The config's, for the message.
        config: Its content; a key that is absent, or null, says nothing.
        remedy: What to do if it is damaged.

    Raises:
        SourceError: for the first value that makes no sense.
    """
    for key, kind in _KINDS.items():
        value = config.get(key)
        if value is not None and not kind.fits(value):
            shown = json.dumps(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            raise SourceError(f"{file}: has `{key}: {shown}`, where {kind.words} makes sense; {remedy}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST


def _are_sizes(value: object, least: int, most: int) -> bool:
    return isinstance(value, list) and least <= len(value) <= most and all(map(_is_size, value))


def _kinds() -> Iterator[tuple[str, _Kind]]:
    size = f"a whole number from 1 to {_MOST}"
    one_or_two = _Kind(f"{size}, or two of them,", lambda value: _is_size(value) or _are_sizes(value, _PAIR, _PAIR))
    levels = _Kind(f"a list of 1 to {_MOST_LEVELS} sizes", lambda value: _are_sizes(value, 1, _MOST_LEVELS))
    yield "latent_channels", _Kind(size, _is_size)
    for key in ("sample_size", "patch_size"):
        yield key, one_or_two
    for key in ("block_out_channels", "decoder_block_out_channels"):
        yield key, levels
    for key in ("scaling_factor", "shift_factor"):
        yield key, _Kind("a number", _is_number)
    for key in ("latents_mean", "latents_std"):
        yield key, _Kind("a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value)))


_KINDS: Final = dict(_kinds())
