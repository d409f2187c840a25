"""Whether the factors of one module are complete and fit each other, and what weight they fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from olivelike.errors import SourceError

_EXTRAS = frozenset({"alpha", "dora_scale", "magnitude"})
_LORA = frozenset({"down", "up", "mid"})

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """The form of a module's difference, from the shapes of its factors."""

    kind: str
    """Its law: `lora`, `loha` or `lokr`."""
    rank: int | None
    """`None` for a LoKr whose two factors are stored whole."""
    rows: int
    """First dimension of the weight that it fits."""
    columns: int
    """Product of the other dimensions."""
    kernel: Shape | None
    """Kernel of the convolution that it fits, (1, 1) also fits a linear layer; `None` if not stated."""


def difference_of(path: Path, module: str, shapes: Mapping[str, Shape]) -> Difference:
    """Return what the factors of a module make.

    Raises `SourceError` if a factor is missing, or two do not fit each other.

    Args:
        shapes: role → shape."""
    check = _Check(path, module, shapes)
    factors = shapes.keys() - _EXTRAS
    kinds = {_kind(role) for role in factors}
    if len(kinds) > 1:
        raise check.broken(f"it mixes {' and '.join(sorted(kinds))} ({', '.join(sorted(factors))})")
    if "dora_scale" in shapes and "magnitude" in shapes:
        raise check.broken("it has both dora_scale and lora_magnitude_vector")
    match kinds.pop() if kinds else None:
        case "lora":
            return _lora(check)
        case "loha":
            return _loha(check)
        case "lokr":
            return _lokr(check)
    raise check.broken(f"it has {', '.join(sorted(shapes))}, and no factors of a difference")


@dataclass(frozen=True)
class _Check:
    path: Path
    module: str
    shapes: Mapping[str, Shape]

    def broken(self, why: str) -> SourceError:
        return SourceError(
            f"{self.path}: module {self.module} is broken: {why}; get the file again, or another version of it"
        )

    def require(self, *roles: str) -> tuple[Shape, ...]:
        """Return the shapes of roles that must be there."""
        missing = [role for role in roles if role not in self.shapes]
        if missing:
            there = ", ".join(sorted(self.shapes))
            raise self.broken(f"it has {there} without {', '.join(missing)}")
        return tuple(self.shapes[role] for role in roles)

    def dims(self, role: str, *counts: int) -> Shape:
        """Return the shape of a role that must have one of some numbers of dimensions, none of them 0."""
        (shape,) = self.require(role)
        if len(shape) not in counts or 0 in shape:
            expected = " or ".join(map(str, counts))
            raise self.broken(f"{role} has shape {list(shape)} where {expected} dimensions are due")
        return shape

    def equal(self, left: str, left_size: int, right: str, right_size: int) -> None:
        """Check that two factors have the same inner dimension."""
        if left_size != right_size:
            shapes = f"{list(self.shapes[left])} and {list(self.shapes[right])}"
            raise self.broken(
                f"{left} and {right} do not fit each other, with inner dimensions {left_size} and "
                f"{right_size} (shapes {shapes})"
            )


def _lora(check: _Check) -> Difference:
    down, up = check.require("down", "up")
    check.dims("down", 2, 4)
    check.dims("up", 2, 4)
    if math.prod(up[2:]) != 1:
        raise check.broken(f"up has a kernel of its own, shape {list(up)}")
    rank, kernel = down[0], down[2:] or None
    if "mid" in check.shapes:
        mid = check.dims("mid", 4)
        if math.prod(down[2:]) != 1:
            raise check.broken(f"down has a kernel beside that of mid, shape {list(down)}")
        check.equal("mid", mid[1], "down", rank)
        check.equal("mid", mid[0], "up", up[1])
        return Difference("lora", rank, up[0], down[1] * math.prod(mid[2:]), mid[2:])
    check.equal("down", rank, "up", up[1])
    return Difference("lora", rank, up[0], math.prod(down[1:]), kernel)


def _loha(check: _Check) -> Difference:
    check.require("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    first, second = ((check.dims(f"hada_{w}_a", 2), check.dims(f"hada_{w}_b", 2), f"hada_{w}") for w in ("w1", "w2"))
    if "hada_t1" in check.shapes or "hada_t2" in check.shapes:
        cores = [check.dims(role, 4) for role in ("hada_t1", "hada_t2")]
        for (a, b, name), core, role in zip((first, second), cores, ("hada_t1", "hada_t2"), strict=True):
            check.equal(role, core[0], f"{name}_a", a[0])
            check.equal(role, core[1], f"{name}_b", b[0])
        check.equal("hada_w1_a", first[0][1], "hada_w2_a", second[0][1])
        check.equal("hada_w1_b", first[1][1], "hada_w2_b", second[1][1])
        if cores[0][2:] != cores[1][2:]:
            raise check.broken("hada_t1 and hada_t2 have different kernels")
        kernel = cores[0][2:]
        return Difference("loha", first[1][0], first[0][1], first[1][1] * math.prod(kernel), kernel)
    for a, b, name in (first, second):
        check.equal(f"{name}_a", a[1], f"{name}_b", b[0])
    check.equal("hada_w1_a", first[0][0], "hada_w2_a", second[0][0])
    check.equal("hada_w1_b", first[1][1], "hada_w2_b", second[1][1])
    return Difference("loha", first[1][0], first[0][0], first[1][1], None)


def _lokr(check: _Check) -> Difference:
    left, right = _factor(check, "lokr_w1"), _factor(check, "lokr_w2")
    # As LyCORIS and A1111 have it: the rank of the second factor counts, if it has one.
    rank = right.rank if right.rank is not None else left.rank
    return Difference("lokr", rank, left.rows * right.rows, left.columns * right.columns, right.kernel)


def _factor(check: _Check, name: str) -> Difference:
    """Return the form of a Kronecker factor: whole, a product of two, or with a core between them."""
    core_role = "lokr_t2"
    parts = [role for role in (f"{name}_a", f"{name}_b") if role in check.shapes]
    has_core = name == "lokr_w2" and core_role in check.shapes
    if name in check.shapes:
        if parts or has_core:
            raise check.broken(f"it has {name} both whole and in parts")
        whole = check.dims(name, 2, *((4,) if name == "lokr_w2" else ()))
        return Difference("lokr", None, whole[0], math.prod(whole[1:]), whole[2:] or None)
    if not parts:
        check.require(name)
    check.require(f"{name}_a", f"{name}_b")
    a, b = check.dims(f"{name}_a", 2), check.dims(f"{name}_b", 2)
    if has_core:
        core = check.dims(core_role, 4)
        check.equal(core_role, core[0], f"{name}_a", a[0])
        check.equal(core_role, core[1], f"{name}_b", b[0])
        return Difference("lokr", b[0], a[1], b[1] * math.prod(core[2:]), core[2:])
    check.equal(f"{name}_a", a[1], f"{name}_b", b[0])
    return Difference("lokr", b[0], a[0], b[1], None)


def _kind(role: str) -> str:
    return "lora" if role in _LORA else "loha" if role.startswith("hada_") else "lokr"
