"""Graphs that are made of a UNet's, over its weights: one for each set of guides that it may have.

A pass adds a kind to the graph, or marks it to be added: residuals come in where the graph is written, so that the
plain one stays as it is. A kind whose branches are in the graph from the beginning is cut out of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError
from olivelike.graphs.image_attention import remove_image_prompt, takes_image_prompt
from olivelike.graphs.joints import graft, joints_of
from olivelike.graphs.shallow import remove_cached_features
from olivelike.model.guides import GUIDES, MIDDLE, GuideKind, guided_file

if TYPE_CHECKING:
    import onnx_ir as ir

_ON_CPU, _ALL = "cpu", "1"
"""In a mark: it is for ONNX Runtime's CPU provider; its residuals go to all connections."""


@dataclass(frozen=True)
class _Operation:
    """Rewriting by which a kind of guides enters a graph."""

    is_there: Callable[[ir.Model, GuideKind], bool]
    """Tells whether a graph has it, or is to have it."""
    add: Callable[[ir.Model, GuideKind], object]
    """Completes a graph that has it, in place."""
    remove: Callable[[ir.Model, GuideKind], object]
    """Makes a graph, in place, one without it."""


def mark(model: ir.Model, kind: GuideKind, connections: Sequence[int] = (), *, on_cpu: bool = False) -> ir.Model:
    """Have a graph with the residuals of a kind written beside a UNet's; return that graph as it is now.

    Raises `PassError` if the graph has not the connections that residuals are added to, or their sizes are not known.

    Args:
        model: A UNet's graph; it gets a mark, and stays as it is otherwise.
        kind: One that enters at joints.
        connections: One for each residual, as `graft` takes them, of a kind that goes down as well; others go to all.
        on_cpu: ONNX Runtime's CPU provider runs the graph.
    """
    count = len(joints_of(model.graph))
    if not count or max(connections, default=0) >= count:
        raise PassError(
            f"{kind.step}: the graph has {count} connections from its way down to its way up, and a UNet of its config "
            "has more; it is no UNet, or one of another config"
        )
    model.metadata_props[_key(kind)] = " ".join([*map(str, connections), *([_ON_CPU] if on_cpu else [])]) or _ALL
    guided = model.clone()
    _complete(guided, kind)
    return guided


def remove_guide(model: ir.Model, kind: GuideKind) -> None:
    """Take a kind out of a graph, in place, for clients that do not feed it."""
    _OPERATIONS[kind.enters].remove(model, kind)


def guided_graphs(model: ir.Model) -> Iterator[tuple[str, ir.Model]]:
    """Make a UNet's graph, in place, the plain one; return the files to write beside it, each with its graph."""
    there = [kind for kind in GUIDES.values() if _OPERATIONS[kind.enters].is_there(model, kind)]
    whole = model.clone() if there else model
    for kind in there:
        remove_guide(model, kind)

    def made() -> Iterator[tuple[str, ir.Model]]:
        for count in range(1, len(there) + 1):
            for some in combinations(there, count):
                guided = whole.clone()
                for kind in there:
                    if kind not in some:
                        remove_guide(guided, kind)
                remove_cached_features(guided)
                # What goes down as well is added first: behind a sum at a joint it would enter there alone.
                for kind in sorted(some, key=lambda one: one.enters == "up"):
                    _OPERATIONS[kind.enters].add(guided, kind)
                yield guided_file([kind.name for kind in some]), guided

    return made()


def _key(kind: GuideKind) -> str:
    """Return the metadata key of a model that is to have such a graph beside it."""
    return f"olivelike.{kind.step}"


def _complete(model: ir.Model, kind: GuideKind) -> None:
    words = model.metadata_props.pop(_key(kind)).split()
    connections = [int(word) for word in words if word != _ON_CPU]
    if kind.enters == "up":
        connections = [*range(len(joints_of(model.graph))), MIDDLE]
    graft(model.graph, kind, connections, on_cpu=_ON_CPU in words)


_MARKED: Final = _Operation(
    lambda model, kind: _key(kind) in model.metadata_props,
    _complete,
    lambda model, kind: model.metadata_props.pop(_key(kind), None),
)
_OPERATIONS: Final = {
    "up": _MARKED,
    "down": _MARKED,
    "attention": _Operation(
        lambda model, _: takes_image_prompt(model), lambda *_: None, lambda model, _: remove_image_prompt(model)
    ),
}
"""Operations by where a kind enters."""
