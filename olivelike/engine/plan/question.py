"""Records checked against the question that was asked: what another machine, or an earlier run, says a node made.

Nobody can tell a wrong number from a right one without making it. But it can be seen whether a record is one of this
key, has what the node writes, and has under each name what the name says; what does not hold is made anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import one_line, parse_json
from olivelike.engine.keys import Key, digest_of_inputs
from olivelike.engine.kinds import kind_of
from olivelike.engine.kinds.asset_nodes import ASSETS
from olivelike.engine.output.asset_table import SCHEDULER_MODEL, not_of_source, read_assets
from olivelike.engine.plan.node import CALIBRATION, Node
from olivelike.errors import OlivelikeError
from olivelike.model import Architecture, Weights
from olivelike.model.guides import first_of_kind
from olivelike.model.weights import Tensor, stored_bytes
from olivelike.sources import Adaptation

if TYPE_CHECKING:
    from olivelike.engine.kinds.kind import Upstream
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.store import Action

Read = Callable[[str], bytes | None]
"""Returns an object by its digest, `None` if it is not there: what reads it later finds that."""

_WRONG = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OlivelikeError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that readers of ours raise for bytes that are something else."""


class _FlawError(ValueError):
    """A flaw of one part of a result."""


@dataclass(frozen=True)
class Question:
    """Demands on a node's result."""

    node: Node
    key: Key
    upstream: Upstream
    inputs: Inputs

    def flaw(self, action: Action, read: Read) -> str | None:
        """Return what is wrong with a record, or with those of its parts that a plan itself reads."""
        return self.flaw_of_record(action) or self._flaw_of(action, read, _PLANNED)

    def flaw_of_record(self, action: Action) -> str | None:
        """Return what is wrong with a record, whose parts may be elsewhere still."""
        if action.key != self.key.digest or digest_of_inputs(action.inputs) != action.key:
            return "its inputs are not those of its key"
        must, may = kind_of(self.node).makes(self.node, self.upstream, self.inputs)
        if absent := must - action.outputs.keys():
            return f"it has no {min(absent)}"
        if more := action.outputs.keys() - may:
            return f"it has {one_line(min(more))[:60]}, which {self.node.name} does not make"
        return None

    def flaw_within(self, action: Action, read: Read) -> str | None:
        """Return what is wrong with its other parts: to be asked once, where they come from another machine."""
        return self._flaw_of(action, read, _OTHERS)

    def _flaw_of(self, action: Action, read: Read, checks: Mapping[str, _Check]) -> str | None:
        for name, digest in action.outputs.items():
            check = checks.get(name.partition(".")[0])
            data = read(digest) if check is not None else None
            if check is None or data is None:
                continue
            try:
                check(self, data, action, read)
            except _FlawError as error:
                return f"{name}: {error}"
            except _WRONG as error:
                return f"{name}: its content is something else ({type(error).__name__})"
        return None


_Check = Callable[[Question, bytes, "Action", Read], None]


def _check_architecture(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    parse_json(data)
    found = Architecture.from_bytes(data)
    texts = (found.component, found.library, found.class_name)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.config, dict):
        raise _FlawError("it is no architecture")
    component = question.node.component
    if first_of_kind(found.component) != first_of_kind(component):
        raise _FlawError(f"it is of {one_line(found.component)[:60]}, not of {component}")


def _check_adaptation(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    parse_json(data)
    checkpoint = question.inputs.source.checkpoint(question.node.component)
    for name, view in Adaptation.from_bytes(data).names.items():
        stored, _ = checkpoint.tensors[view.name]
        end = _count(view.start) + math.prod(map(_count, view.shape))
        rolled = _count(view.rolled) and (view.transposed or not view.shape or view.rolled >= view.shape[0])
        if type(view.transposed) is not bool or end > math.prod(stored.shape) or rolled:
            raise _FlawError(f"{one_line(name)[:60]} does not lie in {one_line(view.name)[:60]}")


def _check_assets(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    table = read_assets(data)
    added = {SCHEDULER_MODEL} if question.inputs.workflow.workflow.scheduler_model else set()
    if (wrong := not_of_source(table, {*question.inputs.source.extras, *added})) is not None:
        raise _FlawError(wrong)
    if not action.parts.keys() >= {*table.values()}:
        raise _FlawError("it names files that the result does not have")


def _check_asset_files(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    for path, digest in read_assets(data).items():
        content = read(digest)
        if path.endswith(".json") and content is not None and not isinstance(parse_json(content, unbounded=True), dict):
            raise _FlawError(f"{path} is no JSON object")


def _check_weights(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    parse_json(data)
    weights, sizes = Weights.from_bytes(data), dict(action.parts)
    if weights.files - sizes.keys():  # Of the source, or what an earlier step has stored.
        sizes |= question.inputs.file_sizes(question.node.component)
    for file in weights.files - sizes.keys():
        if (size := question.inputs.store.object_size(file)) is not None:
            sizes[file] = size
    for name, tensor in weights.items():
        pieces = list(tensor.pieces)
        factors = [factor for product in tensor.added for factor in (product.scale, product.weight)]
        rows = math.prod(tensor.scale.shape) if tensor.scale is not None else 1
        fits = not _count(tensor.rolled) or tensor.rolled < tensor.shape[0]
        fits &= rows in (1, *tensor.shape[:: -1 if tensor.transposed else 1][:1])
        if not fits or not all(map(_is_number, factors)) or any(_end(piece) > sizes[piece.file] for piece in pieces):
            raise _FlawError(f"{one_line(name)[:60]} is no tensor")


def _end(tensor: Tensor) -> int:
    """Return where a tensor's bytes end in their file."""
    return _count(tensor.offset) + stored_bytes(tensor.dtype, math.prod(map(_count, tensor.shape)))


def _check_graph(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    import onnx

    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, ValueError, RuntimeError):
        raise _FlawError("it is no valid ONNX") from None


def _check_observations(question: Question, data: bytes, action: Action, read: Read) -> None:  # noqa: ARG001
    from olivelike.model.observations import BINS, from_bytes

    _, rows = parse_json(data)
    for name, (low, high, exponent, first, counts) in rows.items():
        numbers = _is_number(low) and _is_number(high) and type(exponent) is int and abs(exponent) < _MOST_EXPONENT
        if not numbers or _count(first) + len([_count(count) for count in counts]) > BINS:
            raise _FlawError(f"{one_line(name)[:60]} has no ranges")
    from_bytes(data)


_MOST_EXPONENT = 1100
"""Beyond those of 64-bit floats."""


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _FlawError(f"{ascii(value)[:30]} is no count")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_PLANNED: Mapping[str, _Check] = {
    "architecture": _check_architecture,
    "adaptation": _check_adaptation,
    ASSETS: _check_assets,
}
"""How the parts are checked that plans read, and that are small."""
_OTHERS: Mapping[str, _Check] = {
    "weights": _check_weights,
    "graph": _check_graph,
    CALIBRATION: _check_observations,
    ASSETS: _check_asset_files,
}
