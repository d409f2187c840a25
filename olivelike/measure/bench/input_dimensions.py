"""Sizes of a network's dynamic dimensions: given, or what its pictures have by default."""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import read_json
from olivelike.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.runtime.sessions.session import ValueSpec

_GUIDED: Final = 2
"""Pictures of the UNet's and the text encoder's batch: with and without the prompt."""
_TOKENS: Final = 77
_LATENTS: Final = 64
_DEFAULTS: Final[tuple[tuple[str, int], ...]] = (
    (r"(unet_(sample|hidden|text|time_ids).*|text(_2)?)_batch", _GUIDED),
    (r".*batch", 1),
    (r".*sequence", _TOKENS),
    (r"image_(height|width)", 1),
)
_OPERATORS: Final[dict[type[ast.operator], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def sized(spec: ValueSpec, sizes: Mapping[str, int], model: Path) -> tuple[int, ...]:
    """Return the shape of an input or output.

    Args:
        spec: its dimensions are numbers, names, or of outputs also expressions of names (`8*decoder_height`).
        sizes: by name. By default a guided batch of one picture, of the size that `config.json` beside the model says.
        model: the ONNX file.

    Raises:
        UsageError: for a dimension whose size is not known.
    """
    return tuple(dim if isinstance(dim, int) else _size(dim, sizes, model) for dim in spec.dims)


def _size(dim: str, sizes: Mapping[str, int], model: Path) -> int:
    if dim in sizes:
        return sizes[dim]
    try:
        return _value(ast.parse(dim, mode="eval").body, sizes, model)
    except SyntaxError:  # A name of another exporter, such as `input.1`.
        raise _unknown(dim, model) from None


def _value(node: ast.expr, sizes: Mapping[str, int], model: Path) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes[name] if name in sizes else _default(name, model)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value: int = _OPERATORS[type(op)](_value(left, sizes, model), _value(right, sizes, model))
            return value
    raise _unknown(ast.unparse(node), model)


def _default(name: str, model: Path) -> int:
    for pattern, size in _DEFAULTS:
        if re.fullmatch(pattern, name):
            return size
    if name.endswith(("height", "width")):
        return _side(name, model)
    raise _unknown(name, model)


def _side(name: str, model: Path) -> int:
    """Return a side of latents, or of pictures for the VAE's encoder."""
    config = _config(model.parent / "config.json")
    if not name.startswith("encoder"):
        sides = config.get("sample_size") if "cross_attention_dim" in config else None
        unet = _config(model.parent.parent / "unet" / "config.json")
        sides = sides or unet.get("sample_size") or _LATENTS
        return int(sides if isinstance(sides, int) else sides[name.endswith("width")])
    factor = 2 ** (len(config.get("block_out_channels", range(4))) - 1)
    return int(factor * _side("decoder_" + name.rpartition("_")[2], model))


def _config(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: can't be read as JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _unknown(dimension: str, model: Path) -> UsageError:
    return UsageError(f"{model}: nothing says how large its dimension {dimension!r} is; give its size")
