"""A single network on random inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.measure.bench.input_dimensions import sized
from olivelike.measure.bench.pipeline_engine import runtime_version
from olivelike.measure.bench.stopwatch import Stopwatch
from olivelike.runtime.sessions.open_session import open_session

if TYPE_CHECKING:
    import torch

    from olivelike.measure.bench.bench_job import NetworkJob, Turn
    from olivelike.measure.bench.timing import Timing
    from olivelike.runtime.sessions.session import ValueSpec

_TIMESTEP = 500
_LARGEST_ID = 256
"""Token ids stay below: every vocabulary begins with the bytes."""


class NetworkEngine:
    """A network in a session, its buffers bound once."""

    def __init__(self, job: NetworkJob) -> None:
        import torch

        session = open_session(job.model, job.sessions)
        self._stopwatch = Stopwatch(
            torch.cuda.synchronize if session.tensor_device.startswith("cuda") else lambda: None
        )
        generator = torch.Generator().manual_seed(0)
        self._inputs = {
            name: _random(spec, sized(spec, job.sizes, job.model), generator).to(session.tensor_device)
            for name, spec in session.inputs.items()
        }
        outputs = {
            name: torch.empty(
                sized(spec, job.sizes, job.model),
                dtype=getattr(torch, spec.dtype),
                device=session.tensor_device,
            )
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


def _random(spec: ValueSpec, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return values of the kind that a network is used to: noise, a moment, or the ids of bytes."""
    import torch

    dtype: Any = getattr(torch, spec.dtype)
    if spec.name == "timestep":
        return torch.full(shape, _TIMESTEP, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, _LARGEST_ID, shape, generator=generator).to(dtype)
