"""Rows that measurements give, and the columns that people see of them: engines, ways of drawing, operators.

The terminal and a run's report show the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from olivelike._table import Column
from olivelike._text import size
from olivelike._untrusted import Json

Value = str | int | float | bool | None
MIB: Final = 2**20
"""Unit of the columns `…_MB`, as in the benchmark script that ONNX Runtime comes with."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Software and hardware that a row was measured on; nothing in it names the machine."""

    folder: str | None = None
    """Name of the pipeline's folder."""
    time: str | None = None
    system: str | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    """Threads within an operator, if a number was asked for."""
    cpu_MHz: int | None = None  # noqa: N815
    gpu: str | None = None
    gpu_MHz: int | None = None  # noqa: N815
    gpu_memory_MHz: int | None = None  # noqa: N815
    driver: str | None = None
    python_version: str | None = None
    olivelike_version: str | None = None
    torch_version: str | None = None
    diffusers_version: str | None = None
    transformers_version: str | None = None
    onnxruntime_version: str | None = None
    openvino_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class EngineRow(Machine):
    """One engine at one batch size; `None` where nothing was measured.

    The columns to `second_run_memory_MB` are those of the benchmark script that ONNX Runtime comes with, in its order:
    https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/python/tools/transformers/models/stable_diffusion/
    """

    engine: str
    version: str | None = None
    provider: str | None = None
    disable_safety_checker: bool | None = None
    height: int | None = None
    width: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    batch_count: int | None = None
    num_prompts: int | None = None
    average_latency: float | None = None
    median_latency: float | None = None
    """Seconds of a batch."""
    first_run_memory_MB: float | None = None  # noqa: N815
    second_run_memory_MB: float | None = None  # noqa: N815
    status: str | None = "ok"
    error: str | None = None
    dtype: str | None = None
    cuda_graph: bool | None = None
    warmup_runs: int | None = None
    min_latency: float | None = None
    p90_latency: float | None = None
    p95_latency: float | None = None
    p99_latency: float | None = None
    steps_per_second: float | None = None
    text_encoder_ms: float | None = None
    step_ms: float | None = None
    vae_decoder_ms: float | None = None
    safety_checker_ms: float | None = None
    load_seconds: float | None = None
    first_step_seconds: float | None = None
    rest_resident_MB: float | None = None  # noqa: N815
    peak_resident_MB: float | None = None  # noqa: N815
    peak_tree_MB: float | None = None  # noqa: N815
    peak_device_MB: float | None = None  # noqa: N815
    speed: float | None = None
    speed_against: str | None = None
    spread_percent: float | None = None
    outliers: int | None = None
    load_average: float | None = None
    other_cpu_percent: float | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Value]:
        """Return all columns as JSON values."""
        return {column: getattr(self, column) for column in ENGINE_FIELDS}


_MACHINE_FIELDS: Final = tuple(field.name for field in fields(Machine))
ENGINE_FIELDS: Final = (
    *(field.name for field in fields(EngineRow) if field.name not in _MACHINE_FIELDS),
    *_MACHINE_FIELDS,
)
"""Columns of CSV files, in their order."""


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def _memory(mib: float) -> str:
    return size(mib * MIB)


def _column(title: str, field: str, write: Callable[[Any], str] = _number, *, right: bool = True) -> Column:
    """Return the column of a field, without anything where it is `None`."""

    def cell(row: object) -> str:
        value = getattr(row, field)
        return "" if value is None else write(value)

    return Column(title, cell, right)


def _median(row: EngineRow) -> str:
    if row.status != "ok":
        return str(row.status)
    return "" if row.median_latency is None else _number(row.median_latency)


ENGINE_COLUMNS: Final = (
    _column("engine", "engine", str, right=False),
    _column("provider", "provider", lambda name: name.removesuffix("ExecutionProvider"), right=False),
    _column("dtype", "dtype", str, right=False),
    _column("batch", "batch_size", str),
    Column("median s", _median),
    _column("speed", "speed", "{:.2f}x".format),
    _column("spread", "spread_percent", "{:.0f}%".format),
    _column("p95 s", "p95_latency"),
    _column("steps/s", "steps_per_second"),
    _column("text ms", "text_encoder_ms"),
    _column("step ms", "step_ms"),
    _column("VAE ms", "vae_decoder_ms"),
    _column("safety ms", "safety_checker_ms"),
    _column("load s", "load_seconds"),
    _column("first step s", "first_step_seconds"),
    _column("at rest", "rest_resident_MB", _memory),
    _column("memory", "peak_resident_MB", _memory),
    _column("device memory", "peak_device_MB", _memory),
)

Role = Literal["reference", "method", "control"]


@dataclass(frozen=True)
class FidelityRow:
    """One way of drawing: its time, and how near its pictures are to the reference's."""

    method: str
    role: Role
    """`control` is the folder as it is, with as many steps as the method above it has time for."""
    steps: int
    pictures: int
    median_seconds: float
    """Time of a picture, from the prompt on, without the safety checker."""
    speed: float
    """Ratio of the reference's time to this one."""
    psnr: float | None = None
    """In dB, of the median picture against the reference's of the same seed; `None` for equal ones."""
    worst_psnr: float | None = None
    """PSNR of the picture that is least like the reference's."""
    ssim: float | None = None
    """Mean over the pictures."""
    captions_right: float | None = None
    """Share of captions that are drawn right; `None` where nothing judged it."""


def _ratio(row: FidelityRow, value: float | None) -> str:
    return "" if row.ssim is None else "equal" if value is None else f"{value:.1f} dB"


FIDELITY_COLUMNS: Final = (
    Column("", lambda row: f"  {row.method}" if row.role == "control" else row.method, right=False),
    _column("steps", "steps", str),
    _column("median s", "median_seconds", "{:.3f}".format),
    _column("speed", "speed", "{:.2f}x".format),
    Column("PSNR", lambda row: _ratio(row, row.psnr)),
    Column("worst", lambda row: _ratio(row, row.worst_psnr)),
    _column("SSIM", "ssim", "{:.3f}".format),
    _column("captions right", "captions_right", "{:.1%}".format),
)


@dataclass(frozen=True)
class FidelityReport:
    """All ways of drawing: the reference, then each method with its control."""

    folder: str
    size: tuple[int, int]
    rows: tuple[FidelityRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        return {"kind": "fidelity/1", **asdict(self)}


@dataclass(frozen=True)
class OperatorTime:
    """All nodes of one operator type on one execution provider."""

    operator: str
    provider: str
    """Without its ending: `CPU`, `CUDA`, `Dml`."""
    nodes: int
    milliseconds: float
    """Sum over all nodes, each with its median over all runs."""
    share: float
    """Part of the time of all nodes, from 0 to 1."""


OPERATOR_COLUMNS: Final = (
    _column("operator", "operator", str, right=False),
    _column("provider", "provider", str, right=False),
    _column("nodes", "nodes", "{:,}".format),
    _column("ms", "milliseconds", "{:,.2f}".format),
    _column("share", "share", "{:.1%}".format),
)


@dataclass(frozen=True)
class NetworkProfile:
    """One network."""

    name: str
    inputs: Mapping[str, str]
    """Shapes by name, such as `2x4x64x64`."""
    milliseconds: float
    """One whole run, the median."""
    operators: tuple[OperatorTime, ...]
    """Slowest first."""
    runs: int
    """Count of runs that were measured, after one that was not."""
    note: str | None = None
    """Why the figures are not to be trusted, if anything speaks against them."""

    @property
    def between_nodes(self) -> float:
        """Milliseconds of a run that no node accounts for; 0 where nodes ran side by side."""
        return max(0.0, self.milliseconds - sum(operator.milliseconds for operator in self.operators))

    @property
    def providers(self) -> dict[str, int]:
        """Nodes by execution provider, most first."""
        found: dict[str, int] = {}
        for operator in self.operators:
            found[operator.provider] = found.get(operator.provider, 0) + operator.nodes
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class FolderProfile:
    """The networks of a folder."""

    path: str
    runtime: str
    """Name and version."""
    runs: int
    """Count of measured runs of each network, at least."""
    networks: tuple[NetworkProfile, ...]

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        networks = [
            {**asdict(network), "between_nodes": network.between_nodes, "providers": network.providers}
            for network in self.networks
        ]
        return {"path": self.path, "runtime": self.runtime, "runs": self.runs, "networks": networks}
