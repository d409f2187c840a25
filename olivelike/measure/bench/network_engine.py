"""A single network on random inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.measure.bench.pipeline_engine import runtime_version
from olivelike.measure.bench.stopwatch import Stopwatch
from olivelike.measure.network_sizes import sizes_of
from olivelike.measure.random_inputs import random_values
from olivelike.model.components import TEXT_ENCODERS
from olivelike.runtime.sessions.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from olivelike.measure.bench.bench_job import NetworkJob, Turn
    from olivelike.measure.bench.stopwatch import Timing
    from olivelike.runtime.sessions.session import ValueSpec

_TOKENS = 256
"""Token ids stay below: every vocabulary begins with the bytes."""
_GUIDED = (*TEXT_ENCODERS, "unet")
"""Networks that are run once for both prompts of a picture."""


class NetworkEngine:
    """A network in a session, its buffers bound once."""

    def __init__(self, job: NetworkJob) -> None:
        import torch

        session = open_session(job.model, job.sessions)
        self._stopwatch = Stopwatch(
            torch.cuda.synchronize if session.tensor_device.startswith("cuda") else lambda: None
        )
        shapes = network_shapes(session.inputs.values(), session.outputs.values(), job.sizes, job.model)
        wide = {
            name: ("float32" if "float" in spec.dtype else spec.dtype, shapes[name])
            for name, spec in session.inputs.items()
        }
        self._inputs = {
            name: torch.from_numpy(array).to(
                session.tensor_device, getattr(torch, session.inputs[name].dtype)
            )
            for name, array in random_values(wide, _TOKENS).items()
        }
        outputs = {
            name: torch.empty(shapes[name], dtype=getattr(torch, spec.dtype), device=session.tensor_device)
            for name, spec in session.outputs.items()
        }
        self._call = session.bind(self._inputs, outputs)
        self.facts = {
            "version": runtime_version(job.sessions),
            "provider": session.provider,
            "dtype": next((spec.dtype for spec in session.inputs.values() if "float" in spec.dtype), ""),
        }

    def run(self, turn: Turn) -> Timing:  # noqa: ARG002  (each run is the same)
        """Run the network once."""
        self._stopwatch.start()
        self._call.run()
        return self._stopwatch.stop()

    def device_bytes(self) -> int | None:
        """Return `None`: only the driver knows what a provider has allocated."""
        return None


def network_shapes(
    inputs: Iterable[ValueSpec], outputs: Iterable[ValueSpec], given: Mapping[str, int], model: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs and outputs, by name.

    Args:
        inputs: Their dimensions are numbers or names.
        outputs: Their dimensions may also be formulas over names (`8*decoder_height`).
        given: Sizes by name. By default a guided batch of one picture, of the size that `config.json` says.
        model: The ONNX file, in its component's folder.

    Raises:
        UsageError: for a dimension whose size is not known.
        SourceError: for a `config.json` that can't be read.
    """
    sizes, known = sizes_of(model.parent, guided=_GUIDED), dict(given)
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in (*inputs, *outputs):
        shapes[spec.name] = sizes.shape(model.parent.name, spec.name, spec.dims, known)
        for dim, size in zip(spec.dims, shapes[spec.name], strict=True):
            known.setdefault(str(dim), size)
    return shapes
