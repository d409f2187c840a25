"""Runs that a client may ask for: listed workflows and conversions of listed checkpoints, by name, as command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from olivelike._text import did_you_mean
from olivelike._untrusted import Json, read_bytes
from olivelike.errors import SourceError, UsageError, WorkflowError
from olivelike.model.components import INDEX_FILE
from olivelike.model.plugin_targets import target_names
from olivelike.model.targets import Precision
from olivelike.runtime.pictures.writer import slug
from olivelike.serve.catalogue import lora_names
from olivelike.serve.orders import Finite, Name
from olivelike.serve.settings import ServeSettings
from olivelike.serve.views import ErrorView
from olivelike.workflow.places import SUFFIXES, find_workflow, shipped_names, source_path

if TYPE_CHECKING:
    from olivelike.workflow.yaml_tree import Mapping as Tree

_WEIGHTS: Final = frozenset({".safetensors", ".gguf"})
_PICKLED: Final = frozenset({".ckpt", ".pt", ".bin"})
_MOST_NAMES: Final = 2000
_MOST_BYTES: Final = 1 << 20
"""Size of a workflow file whose first lines are shown."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSettings(_Value):
    """Settings of a workflow that a client may override: no paths, no sources, no plugins, no options of passes."""

    target: Name | None = None
    """An execution provider, or a plugin's."""
    precision: Precision | None = None

    @field_validator("target")
    @classmethod
    def _is_target(cls, target: str | None) -> str | None:
        if target is not None and target not in (known := target_names()):
            raise ValueError(f"there is no target {target!r}; {did_you_mean(target, known, 'targets')}")
        return target


class RunLora(_Value):
    """A LoRA to merge."""

    name: Name
    weight: Finite = 1.0


class ConvertOrder(RunSettings):
    """A checkpoint to optimise."""

    checkpoint: Name
    target: Name
    loras: Annotated[tuple[RunLora, ...], Field(max_length=8)] = ()


class RunOrder(_Value):
    """A workflow with its settings, or a conversion."""

    workflow: Name | None = None
    set: RunSettings = RunSettings()
    convert: ConvertOrder | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.workflow is None) == (self.convert is None):
            raise ValueError("give either `workflow` or `convert`")
        return self


class RunView(BaseModel):
    """A run as it is now."""

    id: str
    kind: Literal["run"] = "run"
    name: str
    """Name of the workflow or conversion, and of the folder that it writes."""
    state: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
    position: int | None
    """In the queue; 0 runs next."""
    created: str
    started: str | None
    finished: str | None
    order: Json
    """The `RunOrder`."""
    progress: dict[str, int]
    """`done` and `total` nodes, once they are known."""
    report: str | None
    """URL of its report."""
    outputs: list[str]
    """Names under which what it wrote is served."""
    error: ErrorView | None


def runs_are_allowed(settings: ServeSettings) -> bool:
    """Tell whether the operator lets clients run things.

    Raises `UsageError` if there is no folder for results, and `SourceError` if one that is named is not there.
    """
    named = {"--workflows": settings.workflows_dir, "--checkpoints": settings.checkpoints_dir}
    given = {option: folder for option, folder in named.items() if folder is not None}
    for option, folder in given.items():
        if not settings.models_dirs:
            raise UsageError(f"{option} needs --models DIR, where results go and are served")
        if not folder.is_dir():
            raise SourceError(f"{option} {folder}: no such folder")
    if given:
        import_module("olivelike.engine.run")  # Which `olivelike-runtime` lacks.
    return bool(given)


class Listings:
    """Files that the operator has put where they may be named."""

    def __init__(self, settings: ServeSettings, lora_files: Callable[[], Mapping[str, Path]]) -> None:
        self._settings, self._lora_files = settings, lora_files

    def workflows(self) -> dict[str, str]:
        """Return the workflows by name, each as `olivelike run` takes it: files of the folder before shipped ones."""
        folder = self._settings.workflows_dir
        if folder is None:
            return {}
        files = {path.stem: str(path.absolute()) for path in sorted(folder.glob("*")) if path.suffix in SUFFIXES}
        return {**{name: name for name in shipped_names()}, **files}

    def checkpoints(self) -> dict[str, Path]:
        """Return single files and folders of pipelines below the folder of checkpoints, by their paths in it."""
        if self._settings.checkpoints_dir is None:
            return {}
        folder = self._settings.checkpoints_dir.absolute()
        suffixes = _WEIGHTS | (_PICKLED if self._settings.allow_pickle else frozenset())
        pipelines = {path.parent for path in _files(folder) if path.name == INDEX_FILE}
        found = [path for path in _files(folder) if path.suffix.lower() in suffixes and not pipelines & {*path.parents}]
        return {path.relative_to(folder).as_posix(): path for path in sorted([*found, *(pipelines - {folder})])}

    def loras(self) -> dict[str, Path]:
        """Return the files of LoRAs by name."""
        return lora_names(self._lora_files())

    def name(self, order: RunOrder) -> str:
        """Return what a run is called, and so is the folder that it writes."""
        if order.workflow is not None:
            words = [order.workflow, order.set.target, order.set.precision]
        else:
            assert order.convert is not None
            chosen = order.convert
            loras = [f"{lora.name} {lora.weight:g}" for lora in chosen.loras]
            path = Path(chosen.checkpoint)
            place = path.with_suffix("") if path.suffix.lower() in _WEIGHTS | _PICKLED else path
            words = [place.as_posix(), *loras, chosen.target, chosen.precision]
        return slug(" ".join(word for word in words if word is not None))

    def command(self, order: RunOrder) -> list[str]:
        """Return the words of the command line that runs an order.

        Nothing of a request is in it but what is found in a listing or table. Raises `SourceError` for a name that is
        not listed, and `UsageError` for a workflow that is wrong, or has plugins where they may not run.
        """
        settings = self._settings
        output = settings.models_dirs[0].absolute() / self.name(order)
        words = ["--output", str(output)]
        if settings.cache_dir is not None:
            place = str(settings.cache_dir)
            words += ["--cache-dir", place if "://" in place else str(Path(place).absolute())]
        if settings.allow_pickle:
            words.append("--allow-pickle")
        if order.workflow is not None:
            for key, value in (("provider", order.set.target), ("precision", order.set.precision)):
                words += ["--set", f"target.{key}={value}"] if value is not None else []
            reference = _listed(order.workflow, self.workflows(), "workflow")
            if settings.allow_plugins:
                words.append("--allow-plugins")
            else:
                _require_no_plugins(reference)
            return ["run", reference, *words]
        assert order.convert is not None
        chosen = order.convert
        loras = {**self.loras(), **self._lora_files()}  # A path below its folder names it, too.
        for lora in chosen.loras:
            words += ["--lora", f"{_listed(lora.name, loras, 'LoRA')}:{lora.weight!r}"]
        words += ["--precision", chosen.precision] if chosen.precision is not None else []
        checkpoint = _listed(chosen.checkpoint, self.checkpoints(), "checkpoint")
        return ["convert", checkpoint, "--target", chosen.target, *words]


def description(reference: str) -> str:
    """Return the comment that a workflow file begins with."""
    try:
        lines = read_bytes(find_workflow(reference).path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, WorkflowError):
        return ""
    words = []
    for line in lines:
        if not line.startswith("#"):
            break
        if "yaml-language-server" not in line:
            words.append(line.lstrip("# "))
    return " ".join(words)


def has_source(reference: str) -> bool:
    """Tell whether the source of a workflow is on this machine; a hub's that is not is downloaded by a run."""
    from olivelike.sources.hub import is_cached

    try:
        source = _read(reference).entries.get("source")
    except (OSError, WorkflowError):
        return False
    named = {key: str(node.value) for key, node in getattr(source, "entries", {}).items() if hasattr(node, "value")}
    if "path" in named:
        return source_path(named["path"], find_workflow(reference).project_folder).exists()
    return "hub" not in named or is_cached(named["hub"], named.get("revision"))


def _read(reference: str) -> Tree:
    from olivelike.workflow.extends import read_with_bases
    from olivelike.workflow.findings import Findings

    findings = Findings()
    root = read_with_bases(find_workflow(reference), findings)
    findings.raise_if_any()
    return root


def _require_no_plugins(reference: str) -> None:
    """Refuse a workflow that names code, also what was allowed on the terminal: there somebody looked at it."""
    if "plugins" in _read(reference).entries:
        raise UsageError(f"{Path(reference).name} names plugins, which run only if the server has --allow-plugins")


def _listed(name: str, listing: Mapping[str, str | Path], what: str) -> str:
    if name not in listing:
        raise SourceError(f"there is no {what} {name!r}; {did_you_mean(name, listing, f'{what}s')}")
    return str(listing[name])


def _files(folder: Path) -> list[Path]:
    """Return the files in a folder and those right below it; a folder of a million files ends somewhere."""
    found: list[Path] = []
    for pattern in ("*", "*/*"):
        for path in folder.glob(pattern):
            if path.is_file():
                found.append(path)
            if len(found) >= _MOST_NAMES:
                return found
    return found
