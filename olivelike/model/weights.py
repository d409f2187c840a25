"""The weights facet: a table that says where each parameter's bytes are; it holds no bytes itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from olivelike.digest import canonical_json, digest_bytes
from olivelike.model.block_forms import BLOCK_FORMS

ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F32": 4, "I32": 4, "U32": 4,
    "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
"""Bytes per element of each safetensors dtype."""

IDENTITY = "IDENTITY"
"""Stands for the dtype of an identity matrix, of which files hold no bytes."""


def stored_bytes(dtype: str, count: int) -> int:
    """Return how many bytes hold so many values; a block that is begun counts whole. Raises `KeyError` for others."""
    if dtype in ITEM_SIZES:
        return count * ITEM_SIZES[dtype]
    if dtype == IDENTITY:
        return 0
    form = BLOCK_FORMS[dtype]
    return -(-count // form.values) * form.nbytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: row-major, little-endian bytes at `offset` of the file whose SHA-256 is `file`."""

    dtype: str
    """As safetensors names it: `F32`, `F16`, `BF16`, `I64`, …; or one of `BLOCK_FORMS`, or `IDENTITY`."""
    shape: tuple[int, ...]
    file: str
    offset: int
    transposed: bool = False
    """The file holds a matrix of the reversed shape; this is its transpose."""
    added: tuple[LowRank, ...] = ()
    """Products that are added to these values when they are read, in this order; they are float32 then."""
    scale: Tensor | None = None
    """What stored values are multiplied by as they are read, one number or one for each stored row; they are float32
    then."""
    rolled: int = 0
    """Stored rows at the beginning that are this tensor's last ones."""

    @property
    def nbytes(self) -> int:
        """Size in bytes, as stored."""
        return stored_bytes(self.dtype, math.prod(self.shape))

    @property
    def read_dtype(self) -> str:
        """Dtype of its values as they are read."""
        made = self.added or self.scale is not None or self.dtype not in ITEM_SIZES
        return "F32" if made else self.dtype

    @property
    def read_nbytes(self) -> int:
        """Size in bytes of its values as they are read."""
        return math.prod(self.shape) * ITEM_SIZES[self.read_dtype]

    @property
    def pieces(self) -> Iterator[Tensor]:
        """Stored tensors that its values are made of, itself among them."""
        yield self
        if self.scale is not None:
            yield self.scale
        for product in self.added:
            yield from (product.up, product.down)

    @property
    def files(self) -> Iterator[str]:
        """Digests of the files that hold its bytes."""
        return (piece.file for piece in self.pieces)

    def to_json(self) -> list[Any]:
        """Return the fields as JSON values; the last ones only where they say something."""
        row = [self.dtype, list(self.shape), self.file, self.offset]
        added = [product.to_json() for product in self.added]
        if self.scale is not None or self.rolled:
            return [*row, self.transposed, added, None if self.scale is None else self.scale.to_json(), self.rolled]
        if added:
            return [*row, self.transposed, added]
        return [*row, True] if self.transposed else row

    @classmethod
    def from_json(cls, row: list[Any]) -> Tensor:
        """Read what `to_json` gave."""
        dtype, shape, file, offset, *rest = row
        usual: list[Any] = [False, (), None, 0]
        transposed, products, scale, rolled = [*rest, *usual[len(rest) :]]
        added = tuple(LowRank.from_json(product) for product in products)
        by = None if scale is None else cls.from_json(scale)
        return cls(dtype, tuple(shape), file, offset, bool(transposed), added, by, rolled)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The product up · down of two stored matrices, times two factors, one after the other: what a plain LoRA adds."""

    up: Tensor
    """(rows, rank), further dimensions flattened; rows are those of the tensor that it is added to."""
    down: Tensor
    """(rank, columns), further dimensions flattened."""
    scale: float
    """The file's own: alpha / rank."""
    weight: float
    """Weight of the LoRA."""

    def to_json(self) -> list[Any]:
        """Return the fields as JSON values."""
        return [self.up.to_json(), self.down.to_json(), self.scale, self.weight]

    @classmethod
    def from_json(cls, fields: list[Any]) -> LowRank:
        """Read what `to_json` gave."""
        up, down, scale, weight = fields
        return cls(Tensor.from_json(up), Tensor.from_json(down), scale, weight)


class Weights(Mapping[str, Tensor]):
    """An immutable map from parameter name to `Tensor`, in order of name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(sorted(tensors.items()))

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def replace(self, changed: Mapping[str, Tensor]) -> Weights:
        """Return a table in which `changed` takes the place of the entries of the same names."""
        return Weights({**self._tensors, **changed})

    @property
    def files(self) -> frozenset[str]:
        """Digests of all files that hold bytes of this table."""
        return frozenset(file for tensor in self._tensors.values() for file in tensor.files)

    def to_json(self) -> list[Any]:
        """Return the table as JSON values."""
        return ["weights/1", [[name, *tensor.to_json()] for name, tensor in self._tensors.items()]]

    def to_bytes(self) -> bytes:
        """Serialise as canonical JSON."""
        return canonical_json(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Weights:
        """Read what `to_bytes` wrote."""
        return cls.from_json(json.loads(data))

    @classmethod
    def from_json(cls, content: list[Any]) -> Weights:
        """Read what `to_json` gave."""
        kind, rows = content
        if kind != "weights/1":
            raise ValueError(f"expected weights/1, found {kind!r}")
        return cls({name: Tensor.from_json(fields) for name, *fields in rows})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the serialised form."""
        return digest_bytes(self.to_bytes())
