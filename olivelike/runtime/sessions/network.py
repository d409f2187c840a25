"""One network with its buffers, which are made once for each set of shapes and bound in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from olivelike.runtime.sessions.session import BoundCall, Session, ValueSpec

Shapes = dict[str, tuple[int, ...]]

_KEPT: Final = 2
"""Sets of buffers that stay: those of the size in use, and of its last batch, which may be smaller."""


@dataclass(frozen=True, eq=False)
class Call:
    """A network with bound buffers: fill `inputs`, `run`, read `outputs`."""

    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    bound: BoundCall

    def run(self) -> None:
        """Compute the outputs from what is in the inputs."""
        self.bound.run()


class Network:
    """A component of a pipeline, open in a session."""

    def __init__(self, component: str, session: Session) -> None:
        self.component = component
        self.session = session
        self._calls: dict[tuple[object, ...], Call] = {}

    @property
    def device(self) -> str:
        """Where its tensors live, as torch names it."""
        return self.session.tensor_device

    def input(self, name: str) -> ValueSpec:
        """Return what is known of an input.

        Raises:
            SourceError: if the network has none of that name.
        """
        return self._spec("input", self.session.inputs, name)

    def output(self, name: str) -> ValueSpec:
        """Return what is known of an output.

        Raises:
            SourceError: if the network has none of that name.
        """
        return self._spec("output", self.session.outputs, name)

    def prepare(self, inputs: Shapes, outputs: Shapes) -> Call:
        """Return a call for these shapes: the same one, with the same buffers, as long as they stay."""
        key = (tuple(inputs.items()), tuple(outputs.items()))
        call = self._calls.pop(key, None)
        if call is None:
            tensors = {name: self._empty(self.input(name), shape) for name, shape in inputs.items()}
            results = {name: self._empty(self.output(name), shape) for name, shape in outputs.items()}
            call = Call(tensors, results, self.session.bind(tensors, results))
        self._calls[key] = call
        while len(self._calls) > _KEPT:
            del self._calls[next(iter(self._calls))]
        return call

    def hold(self, call: Call, constant: Collection[str]) -> Call:
        """Return the call with inputs that stay through all further runs as they are now.

        Where tensors are on the CPU and the network is not, they go to the device here, and not in each run.
        """
        if self.device != "cpu" or not self.session.moves_inputs:
            return call
        return Call(call.inputs, call.outputs, self.session.bind(call.inputs, call.outputs, constant))

    def _spec(self, kind: str, values: Mapping[str, ValueSpec], name: str) -> ValueSpec:
        if name not in values:
            raise SourceError(
                f"{self.component}/model.onnx: has no {kind} {name!r} (it has: {', '.join(values)}); "
                "make the folder with `olivelike run`, whose own layout has it"
            )
        return values[name]

    def _empty(self, spec: ValueSpec, shape: tuple[int, ...]) -> torch.Tensor:
        import torch

        return torch.empty(shape, dtype=getattr(torch, spec.dtype), device=self.device)
