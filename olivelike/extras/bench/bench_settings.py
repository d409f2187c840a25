"""`BenchSettings`: what to measure, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from olivelike._files import hold_paths
from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.extras.bench.engines import ENGINES
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder, read_folder_target, target_settings
from olivelike.runtime.pipeline.request import Request
from olivelike.runtime.pipeline.resolve_defaults import resolve_defaults
from olivelike.runtime.sessions.session_settings import SessionSettings

TorchDtype = Literal["float32", "float16", "bfloat16"]

_MOST: Final = {"batch size": 256, "steps": 1000, "batch count": 10_000, "number of prompts": 10_000}
"""Beyond these a number is taken for a slip."""
LONGEST: Final = 7 * 24 * 3600
"""So is a limit of more seconds."""


@dataclass(frozen=True)
class BenchSettings:
    """Choices of what to measure. Defaults are those of the benchmark script that ONNX Runtime comes with."""

    folder: Path
    """A pipeline as `olivelike run` writes it."""
    engines: tuple[str, ...] = ENGINES
    batch_sizes: tuple[int, ...] = (1,)
    """Pictures made at once; a row for each."""
    height: int | None = None
    width: int | None = None
    """In pixels; `None` is what the UNet was trained on."""
    steps: int = 50
    batch_count: int = 5
    """Measured batches of each prompt."""
    num_prompts: int = 1
    """Ten are different, then they repeat."""
    warmup_runs: int = 2
    """Batches before the measured ones, after which engines have compiled and allocated what they need."""
    safety: bool = True
    """Whether the safety checker looks at the pictures, where the folder has one."""
    sessions: SessionSettings | None = None
    """Provider, device, threads and options; `None` is what the folder's target asks for."""
    checkpoint: str | None = None
    """Checkpoint for torch: diffusers folder, `.safetensors` file or hub id; `None` looks where the folder says."""
    torch_dtype: TorchDtype | None = None
    """Precision of torch; `None` is the folder's on a GPU, float32 on the CPU."""
    interleave: bool = True
    """Whether engines take turns, all in memory at the same time, so that a drift of the machine hits all alike."""
    timeout: float = 1800.0
    """Seconds that an engine may take to open, or for one batch, the compiling in its first one included."""

    def __post_init__(self) -> None:
        """Take text for paths too."""
        hold_paths(self, "folder")

    @property
    def asked_sessions(self) -> SessionSettings:
        """The sessions that are asked for, by the settings or else by the folder's target."""
        if self.sessions is not None:
            return self.sessions
        return target_settings(read_folder_target(self.folder))


@dataclass(frozen=True)
class Checked:
    """Settings that can be had."""

    settings: BenchSettings
    folder: PipelineFolder
    size: tuple[int, int]
    """Width and height."""
    checks_safety: bool


def check(settings: BenchSettings) -> Checked:
    """Check settings against each other and the folder.

    Raises `UsageError` for the first value that can't be had, and `SourceError` if the folder is no pipeline.
    """
    for name in settings.engines:
        if name not in ENGINES:
            raise UsageError(f"--engine: unknown engine {name!r}; {did_you_mean(name, ENGINES, 'engines')}")
    if not settings.engines or not settings.batch_sizes:
        raise UsageError("name at least one engine and one batch size")
    for batch_size in settings.batch_sizes:
        _count("batch size", batch_size)
    _count("steps", settings.steps)
    _count("batch count", settings.batch_count)
    _count("number of prompts", settings.num_prompts)
    if settings.warmup_runs < 0:
        raise UsageError(f"warm-up runs: {settings.warmup_runs} is below 0")
    if not 0 < settings.timeout <= LONGEST:
        raise UsageError(f"timeout: {settings.timeout:g} s is not between 0 and {LONGEST}")
    folder = open_folder(settings.folder)
    asked = (settings.width or folder.default_size[0], settings.height or folder.default_size[1])
    size = resolve_defaults(Request(("",), size=asked, steps=settings.steps), folder).size
    assert size is not None
    return Checked(settings, folder, size, settings.safety and folder.is_checked)


def parse_torch_dtype(text: str) -> TorchDtype:
    """Read a precision of torch. Raises `UsageError` for another one."""
    known: tuple[TorchDtype, ...] = get_args(TorchDtype)
    for dtype in known:
        if dtype == text:
            return dtype
    raise UsageError(f"--torch-dtype: unknown precision {text!r}; known ones: {', '.join(known)}")


def _count(name: str, value: int) -> None:
    if not 1 <= value <= _MOST[name]:
        raise UsageError(f"{name}: {value} is not between 1 and {_MOST[name]}")
