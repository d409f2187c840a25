"""Scales beside weights of 8 bits: which tensor of a file each one multiplies, and what is refused.

ComfyUI's and the makers' files have `NAME.weight` with `NAME.weight_scale` or, before, `NAME.scale_weight`. Beside them
are scales of what passes through a layer, which is not computed in 8 bits here, and marks that say how it is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from olivelike.sources.files.weight_header import RawTensor

Table = Mapping[str, "RawTensor"]
_SCALES: Final = (".weight_scale", ".scale_weight")
_SECOND: Final = ".weight_scale_2"
_BESIDE: Final = (".input_scale", ".scale_input", ".comfy_quant", ".weight_scale_2")
_MARK: Final = "scaled_fp8"
"""Tensor that tells that all matrices of 8 bits have scales; what precedes it is the prefix of the network."""
_EIGHT: Final = ("F8_E4M3", "F8_E5M2")
_NUMBERS: Final = ("F32", "F16", "BF16")


def apart(path: Path, tensors: Table) -> tuple[dict[str, RawTensor], dict[str, RawTensor]]:
    """Return the tensors of a network without what stands beside them, and the scale of each that has one.

    Raises `SourceError` for scales that fit no tensor of 8 bits, for a matrix of 8 bits without one where others have
    one, and for other ways to hold numbers in few bits.
    """
    scales: dict[str, RawTensor] = {}
    for name, scale in tensors.items():
        if (end := next((end for end in _SCALES if name.endswith(end)), None)) is None:
            continue
        owner = f"{name.removesuffix(end)}.weight"
        if owner in scales:
            raise SourceError(f"{path}: {owner} has two scales, {' and '.join(_SCALES)}; get the file again")
        scales[owner] = _checked(path, name, scale, owner, tensors)
    marked = any(name.rpartition(".")[2] == _MARK for name in tensors)
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.endswith((*_SCALES, *_BESIDE)) and name.rpartition(".")[2] != _MARK
    }
    bare = [n for n, one in kept.items() if one.dtype in _EIGHT and len(one.shape) > 1 and n not in scales]
    if bare and (scales or marked):
        others = f"{len(scales)} others have one" if scales else "a tensor scaled_fp8 says that it has one"
        raise SourceError(
            f"{path}: {bare[0]} has values of 8 bits and no scale (weight_scale), and {others}; {len(bare)} matrices "
            "lack theirs: the file is incomplete, get it again"
        )
    return kept, scales


def _checked(path: Path, name: str, scale: RawTensor, owner: str, tensors: Table) -> RawTensor:
    """Return a scale that fits its tensor."""
    stored = tensors.get(owner)
    if stored is None:
        raise SourceError(f"{path}: {name} is a scale of {owner}, which is not there; get the file again")
    count, rows = math.prod(scale.shape), stored.shape[0] if stored.shape else 1
    beside = f"{owner.removesuffix('.weight')}{_SECOND}" in tensors
    if stored.dtype not in _EIGHT or scale.dtype not in _NUMBERS or beside or count not in (1, rows):
        raise SourceError(
            f"{path}: {owner} is held as {stored.dtype} of shape {list(stored.shape)} with {count:,} scales of "
            f"{scale.dtype}, which is not supported: numbers of 8 bits (fp8) with one scale, or one for each row, are; "
            "get the file in bf16, fp16 or fp8"
        )
    return scale
