"""A network that Triton serves, called from its Python back end: what Triton calls business logic scripting (BLS).

The calls are those of `triton_python_backend_utils`, which is there inside of Triton alone; the README of
triton-inference-server/python_backend has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import SessionError
from olivelike.runtime.sessions.session import BoundCall, Session, ValueSpec

if TYPE_CHECKING:
    import numpy as np

    from olivelike.runtime.sessions.session import Buffer


def triton_backend() -> Any:
    """Return the module that Triton gives to Python models."""
    return importlib.import_module("triton_python_backend_utils")


class TritonSession(Session):
    """A network of the same server."""

    def __init__(self, network: str, inputs: Iterable[ValueSpec], outputs: Iterable[ValueSpec]) -> None:
        taken, given = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
        super().__init__(network, taken, given, "Triton", moves_inputs=False)

    def _bind(
        self,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
        constant: Collection[str],  # noqa: ARG002  (each call carries all inputs)
    ) -> BoundCall:
        return _TritonCall(self.network, dict(inputs), dict(outputs))


@dataclass(frozen=True, eq=False)
class _TritonCall:
    network: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    """Arrays; a server has no others."""

    def run(self) -> None:
        """Send the bound inputs, wait, and fill the bound outputs; they come to the CPU from wherever they are."""
        import numpy as np

        backend = triton_backend()
        request = backend.InferenceRequest(
            model_name=self.network,
            requested_output_names=list(self.outputs),
            inputs=[backend.Tensor(name, array) for name, array in self.inputs.items()],
            preferred_memory=backend.PreferredMemory(backend.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = request.exec()
        if response.has_error():
            raise SessionError(f"{self.network}: Triton: {response.error().message()}")
        for name, array in self.outputs.items():
            found: np.ndarray[Any, Any] = backend.get_output_tensor_by_name(response, name).as_numpy()
            if found.shape != array.shape:
                raise SessionError(f"{self.network}: output {name!r} has the shape {found.shape}, not {array.shape}")
            np.copyto(array, found, casting="no")
