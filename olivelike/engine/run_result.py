"""How a run ended, and its record, made of what the run knows, and of what it ran on."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._installed import installed_version
from olivelike.errors import StoreError
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.reading import RecordError
from olivelike.model.records.run_record import EarlierNode, EarlierRun, HostRecord, NodeRecord, RunRecord

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.engine.prepared import Prepared
    from olivelike.store import Store


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run_id: str
    status: str
    nodes: int
    hits: int
    """Nodes whose result was stored."""
    executed: int
    seconds: float
    peak_memory_bytes: int
    outputs: tuple[Path, ...]
    shelved: int = 0
    """Nodes whose result a shelf knew."""
    report: Path | None = None
    """The report; there is none if nothing was to be done."""

    def to_json(self) -> Json:
        """Return the result as JSON values, as the event `run_finished` has it."""
        paths = [str(path) for path in self.outputs]
        return {
            "run_id": self.run_id,
            "status": self.status,
            "nodes": self.nodes,
            "hits": self.hits,
            "executed": self.executed,
            "shelved": self.shelved,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": self.peak_memory_bytes,
            "output": paths[0] if len(paths) == 1 else paths,
            "report": str(self.report) if self.report is not None else None,
        }


def run_record(prepared: Prepared, result: RunResult, nodes: Iterable[NodeRecord], error: str | None) -> RunRecord:
    """Return the record of a run."""
    workflow, command, source = prepared.workflow, prepared.options.command, prepared.source
    return RunRecord(
        run_id=result.run_id,
        workflow=workflow.workflow.name,
        status=result.status,
        target=workflow.workflow.target.choice(),
        source=source.origin,
        finished=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        seconds=round(result.seconds, 3),
        peak_memory_bytes=result.peak_memory_bytes,
        hits=result.hits,
        executed=result.executed,
        outputs=tuple(map(str, result.outputs)),
        file=str(workflow.path) if command is None else None,
        command=command,
        project=str(workflow.project_folder),
        error=error,
        versions=versions(),
        host=host(),
        elements={name: found.elements for name, found in source.checkpoints.items()},
        nodes=tuple(replace(node, facts=_kept(node.facts)) for node in nodes),
        loras=tuple(opened.record(opened.origin) for opened in prepared.adapters.loras),
        embeddings=tuple(opened.record(opened.origin) for opened in prepared.adapters.embeddings),
        source_files=_source_files(prepared),
        # After a failure a folder still holds what an earlier run wrote.
        output_files={str(path): _output_files(path) for path in result.outputs if result.status == "ok"},
        previous=_previous(prepared.history, result.run_id),
    )


def recorded_runs(store: Store) -> Iterator[RunRecord]:
    """Yield the records of a store's runs, newest first.

    Raises `StoreError` at one that can't be read, as a later olivelike wrote it.
    """
    for content in store.runs():
        try:
            yield RunRecord.from_json(content)
        except RecordError as error:
            raise StoreError(f"{store.root}: the record of run {content['run_id']}: {error}") from None


def readable_runs(store: Store) -> Iterator[RunRecord]:
    """Yield the records of a store's runs, newest first, without those that can't be read."""
    for content in store.runs():
        with contextlib.suppress(RecordError):
            yield RunRecord.from_json(content)


def _source_files(prepared: Prepared) -> dict[str, int]:
    """Return the bytes of each weight file that is there."""
    files: dict[str, int] = {}
    for checkpoint in prepared.source.checkpoints.values():
        for path in checkpoint.files:  # A single file has all components.
            with contextlib.suppress(OSError):
                files[f"{path.parent.name}/{path.name}"] = path.stat().st_size
    return files


def _output_files(folder: Path) -> dict[str, int]:
    """Return the bytes of each file of an output as its own record has them."""
    record = OutputRecord.read(folder)
    return {} if record is None else {name: file.size for name, file in record.files.items()}


def _kept(facts: Mapping[str, object]) -> dict[str, object]:
    """Drop what the output's own record holds: a derivation per initializer."""
    return {name: value for name, value in facts.items() if name != "derivations"}


def _previous(history: Iterable[RunRecord], run_id: str) -> EarlierRun | None:
    """Return what the last run of the workflow that ended well was like; `None` if there is none."""
    for record in history:
        if record.status == "ok" and record.run_id != run_id:
            return EarlierRun(
                record.run_id,
                record.finished,
                record.seconds,
                record.target,
                record.source,
                {node.id: EarlierNode(node.status, node.seconds) for node in record.nodes},
                {path: sum(files.values()) for path, files in record.output_files.items()},
            )
    return None


TOOLS = (
    "olivelike", "torch", "diffusers", "transformers", "onnx", "onnx-ir", "onnxscript",
    "onnxruntime-gpu", "onnxruntime", "onnxruntime-directml", "numpy", "safetensors",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that matter."""
    tools = {tool: version for tool in TOOLS if (version := installed_version(tool))}
    return {"python": platform.python_version(), **tools}


def host() -> HostRecord:
    """Return what kind of machine this is; nothing that names it."""
    import psutil

    return HostRecord(
        platform.system(),
        platform.release(),
        platform.machine(),
        os.cpu_count(),
        psutil.virtual_memory().total,
        sys.byteorder,
    )
