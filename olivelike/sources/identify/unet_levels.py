"""The levels of a UNet in the names of the LDM code: widths, and transformer blocks per layer."""

from __future__ import annotations

import re
from dataclasses import dataclass

Shapes = dict[str, tuple[int, ...]]
_LONGEST_NUMBER = 3
_BLOCK = re.compile(r"^(input_blocks|middle_block|output_blocks)\.(\d+)\.")
_DEPTH = re.compile(r"^(input_blocks|output_blocks)\.(\d+)\.1\.transformer_blocks\.(\d+)\.")
_MIDDLE_DEPTH = re.compile(r"^middle_block\.1\.transformer_blocks\.(\d+)\.")


@dataclass(frozen=True)
class UnetLevels:
    """Structure of a UNet, from the outermost level inwards, and back."""

    widths: list[int]
    """Channels of each level."""
    layers: int
    """Residual blocks of each level on the way in; one more on the way out."""
    down: list[list[int]]
    """For each level, for each of its layers, the number of transformer blocks; 0 without attention."""
    middle: int | None
    """The same of the middle; `None` if there is none."""
    up: list[list[int]]
    """The same on the way out, innermost level first."""


def layer_number(text: str) -> int:
    """Return the number of a layer in a stored name.

    Raises:
        ValueError: if no network has so many.
    """
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a layer of number {text[:20]}")
    return int(text)


def read_levels(shapes: Shapes) -> UnetLevels:
    """Read the structure off the stored names.

    Raises:
        KeyError: if a block is missing.
        ValueError: if levels have different numbers of layers.
    """
    counts = {"input_blocks": 0, "middle_block": 0, "output_blocks": 0}
    depths: dict[tuple[str, int], int] = {}
    for name in shapes:
        block = _BLOCK.match(name)
        if block:
            counts[block[1]] = max(counts[block[1]], layer_number(block[2]) + 1)
        depth = _DEPTH.match(name)
        if depth:
            key = depth[1], layer_number(depth[2])
            depths[key] = max(depths.get(key, 0), layer_number(depth[3]) + 1)

    widths: list[int] = [0]
    down: list[list[int]] = [[]]
    for i in range(1, counts["input_blocks"]):
        if f"input_blocks.{i}.0.op.weight" in shapes:
            widths.append(0)
            down.append([])
            continue
        widths[-1] = shapes[f"input_blocks.{i}.0.out_layers.3.weight"][0]
        down[-1].append(depths.get(("input_blocks", i), 0))
    lengths = {len(level) for level in down}
    if len(lengths) != 1:
        raise ValueError(f"levels of {sorted(lengths)} layers")
    (layers,) = lengths

    out = [depths.get(("output_blocks", i), 0) for i in range(counts["output_blocks"])]
    if len(out) != len(down) * (layers + 1):
        raise ValueError(f"{len(out)} output blocks for {len(down)} levels of {layers} layers")
    up = [out[start : start + layers + 1] for start in range(0, len(out), layers + 1)]
    middle = None
    if counts["middle_block"]:
        found = [layer_number(match[1]) for match in map(_MIDDLE_DEPTH.match, shapes) if match]
        middle = 1 + max(found) if found else 0
    return UnetLevels(widths, layers, down, middle, up)
