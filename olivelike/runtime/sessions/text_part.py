"""The blocks of a denoiser that read the text alone, in a session of their own.

What they make is the same in each step of a picture, and for each picture of the same text: they run once for all of
these. A network file is cut in memory for it, so that every folder has this, and every client one network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from olivelike.model.onnx_messages import ModelProto, attribute, load_model, make_node, type_number
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.ort_session import OrtSession
from olivelike.runtime.sessions.providers import OPENVINO
from olivelike.runtime.sessions.session import BoundCall, DeviceArray, Session, ValueSpec
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session import Array, Buffer

_TEXT: Final = "encoder_hidden_states"
_ATTENTION: Final = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention", "Softmax"})
"""Operators by which a block is told from what leads to blocks, as projections do: that is too little to be kept."""


def open_in_two(path: Path, settings: SessionSettings, initializers: Mapping[str, Array]) -> Session:
    """Open a denoiser with the blocks that read the text alone apart; as one network, where it has none.

    Raises what `open_session` raises.

    Args:
        path: Its ONNX file.
        settings: Of both sessions. OpenVINO opens it as one.
        initializers: Arrays in place of initializers, by name.
    """
    model = None if settings.provider.name == OPENVINO else _read(path)
    if model is None or not (values := list(_made_of_text(model))):
        return open_session(path, settings, initializers)
    once = settings if settings.profile is None else replace(settings, profile=Path(f"{settings.profile}_text"))
    once = replace(once, cuda_graph=False)
    first = _open(path, once, initializers, _part(model, values), "text")
    rest = _open(path, settings, initializers, _rest(model, first.outputs), "steps")
    return _InTwo(first, rest, [value.name for value in model.graph.input])


def _open(
    path: Path, settings: SessionSettings, initializers: Mapping[str, Array], model: ModelProto, part: str
) -> OrtSession:
    own = {tensor.name for tensor in model.graph.initializer}
    given = {name: array for name, array in initializers.items() if name in own}
    session = open_session(path, settings, given, content=model.SerializeToString(), part=part)
    assert isinstance(session, OrtSession)
    return session


class _InTwo(Session):
    """A denoiser whose blocks for texts have a session of their own."""

    def __init__(self, first: OrtSession, rest: OrtSession, inputs: Iterable[str]) -> None:
        specs: dict[str, ValueSpec] = {**first.inputs, **rest.inputs}
        of_both = {name: specs[name] for name in inputs}
        super().__init__(rest.network, of_both, rest.outputs, rest.provider, rest.moves_inputs)
        self.first, self.rest = first, rest

    def release(self) -> None:
        """Give back memory that neither needs before it runs again."""
        self.first.release()
        self.rest.release()

    def shared_buffer(self, dtype: str, shape: tuple[int, ...]) -> Buffer:
        """Return a buffer for an input of the steps."""
        return self.rest.shared_buffer(dtype, shape)

    def _bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> _CallInTwo:
        return _CallInTwo(self, inputs, outputs, constant)


class _CallInTwo:
    """A call that runs the blocks for texts if it has a text that it did not have in the run before."""

    def __init__(
        self, owner: _InTwo, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> None:
        self._owner, self._inputs, self._outputs, self._constant = owner, inputs, outputs, constant
        self._texts: dict[str, Array] = {}
        self._steps: BoundCall | None = None

    def run(self) -> None:
        """Compute what `BoundCall` says."""
        import numpy as np

        texts: dict[str, Any] = {name: self._inputs[name] for name in self._owner.first.inputs}
        if self._steps is None or not all(np.array_equal(texts[name], kept) for name, kept in self._texts.items()):
            self._texts = {name: np.array(value) for name, value in texts.items()}
            self._steps = self._bound(self._owner.first.compute(self._texts))
        self._steps.run()

    def _bound(self, made: Mapping[str, DeviceArray]) -> BoundCall:
        rest = self._owner.rest
        inputs = {name: buffer for name, buffer in {**self._inputs, **made}.items() if name in rest.inputs}
        constant = [name for name in (*self._constant, *made) if name in inputs]
        return rest.bind(inputs, self._outputs, constant)


def _read(path: Path) -> ModelProto | None:
    """Return a model whose rows are counted by the text, where its inputs have as many; `None` if it can't be read."""
    try:
        model = load_model(path)
    except (OSError, DecodeError):
        return None  # Whoever opens it as one says why.
    dims = {one.name: [dim.dim_param for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
    own = {name: place for place, name in enumerate(dims.get(_TEXT, ())) if name}
    for node in model.graph.node:
        if node.op_type == "Shape" and node.input[0] in dims:
            read = dims[node.input[0]][attribute(node, "start", 0) : attribute(node, "end")]
            if len(read) == 1 and (place := own.get(read[0])) is not None:
                node.CopyFrom(make_node("Shape", [_TEXT], node.output, start=place, end=place + 1))
    return model


def _made_of_text(model: ModelProto) -> Iterator[str]:
    """Yield the values that blocks make of the text alone and that others read; none if a node has a graph inside."""
    graph = model.graph
    if any(one.HasField("g") or one.graphs for node in graph.node for one in node.attribute):
        return
    constants = {"", *(tensor.name for tensor in graph.initializer)}
    of_text, of_blocks, read = {_TEXT}, set[str](), dict[str, None]()
    for node in graph.node:
        inputs = {*node.input} - constants
        if not inputs:
            constants |= {*node.output}
        elif inputs <= of_text:
            of_text |= {*node.output}
            if node.op_type in _ATTENTION or inputs & of_blocks:
                of_blocks |= {*node.output}
        else:
            read |= dict.fromkeys(node.input)
    yield from (name for name in read if name in of_blocks)


def _rest(model: ModelProto, given: Mapping[str, ValueSpec]) -> ModelProto:
    """Return a model that takes what its blocks for texts make."""
    part = _part(model, [value.name for value in model.graph.output], given)
    for spec in given.values():
        tensor = part.graph.input.add(name=spec.name).type.tensor_type
        tensor.elem_type = type_number(spec.dtype)
        for dim in spec.dims:
            tensor.shape.dim.add(**({"dim_value": dim} if isinstance(dim, int) else {"dim_param": dim}))
    return part


def _part(model: ModelProto, outputs: Iterable[str], given: Collection[str] = ()) -> ModelProto:
    """Return what makes some values of the inputs and of others; ONNX Runtime infers the types of new outputs."""
    part, wanted, nodes = ModelProto.FromString(model.SerializeToString()), set(outputs), []
    for node in reversed(model.graph.node):
        if any(name in wanted and name not in given for name in node.output):
            nodes.append(node)
            wanted |= {*node.input}
    del part.graph.node[:], part.graph.value_info[:]
    part.graph.node.extend(reversed(nodes))
    for values in (part.graph.input, part.graph.initializer, part.graph.output):
        kept = [value for value in values if value.name in wanted]
        del values[:]
        values.extend(kept)
    for name in {*outputs} - {value.name for value in part.graph.output}:
        part.graph.output.add(name=name)
    return part
