"""`olivelike.json`: what an output folder holds, file by file, and where each file came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from olivelike._text import did_you_mean_path
from olivelike._untrusted import one_line, read_json
from olivelike.errors import SourceError
from olivelike.model.client_layouts import DEFAULT
from olivelike.model.components import DERIVED_FILES, PIPELINE, PIPELINE_FILE, QUANTISING_PASSES
from olivelike.model.records.origin import (
    EmbeddingRecord,
    LoraRecord,
    Origin,
    adapter_from_1,
    all_origins,
    origin_from_1,
)
from olivelike.model.records.reading import NewerRecordError, RecordError, read_version, to_json
from olivelike.model.targets import TargetChoice

RECORD_FILE: Final = "olivelike.json"
JOURNAL_FILE: Final = ".olivelike-journal.json"
"""Beside it while a publication is under way; neither is a file of the output."""
_KIND: Final = "output"
_MOST_BYTES: Final = 64 << 20
"""Most bytes of a record; the derivation of each initializer takes some hundred."""
LOST: Final = ("saturated", "flushed", "not_finite")
"""Fates of a weight's values, as fields of a `ComponentRecord`."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)\s*(\.|$)", re.IGNORECASE)
_UNUSABLE = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]|[. ]$')


def is_device(name: str) -> bool:
    """Tell whether Windows keeps a name for a device, whatever its suffix and case.

    Source: https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file.
    """
    return _RESERVED.match(name) is not None


def is_plain(relative: object) -> bool:
    """Tell whether a text is the path of a file below some folder, and the same one on every system."""
    if not isinstance(relative, str) or any(0xD800 <= ord(letter) <= 0xDFFF for letter in relative):
        return False
    return all(
        part and part != ".." and not _UNUSABLE.search(part) and not is_device(part) for part in relative.split("/")
    )


@dataclass(frozen=True)
class FileFacts:
    """Size and digest that tell whether a file is still as it was written."""

    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True)
class OutputFile(FileFacts):
    """One file of an output; the index, which olivelike writes by itself, was made of nothing else."""

    node: str | None = None
    """The node that made it, such as `unet.materialize`."""
    key: str | None = None
    """The key of that node."""
    source: str | None = None
    """The file of the source that it was made of."""


@dataclass(frozen=True)
class StepRecord:
    """One step of a component's chain."""

    name: str
    """Name of the pass."""
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentRecord:
    """One component of an output."""

    key: str
    """Key of its materialisation."""
    facets: Mapping[str, str] = field(default_factory=dict)
    """Digests of the model that was materialised."""
    passes: tuple[StepRecord, ...] = ()
    derivations: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Per initializer, the expression that makes it of parameters: `olivelike.engine.output.expressions`."""
    saturated: Mapping[str, int] = field(default_factory=dict)
    """Per initializer, how many values were too large for half precision."""
    flushed: Mapping[str, int] = field(default_factory=dict)
    """Per initializer, how many were too small."""
    not_finite: Mapping[str, int] = field(default_factory=dict)
    """Per initializer, how many are infinite or NaN."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of weights that it was made of, by name; none in records of earlier versions."""


@dataclass(frozen=True)
class OutputRecord:
    """The provenance of an output folder."""

    workflow: str
    target: TargetChoice
    source: Origin
    components: Mapping[str, ComponentRecord] = field(default_factory=dict)
    files: Mapping[str, OutputFile] = field(default_factory=dict)
    """By path relative to the folder."""
    loras: tuple[LoraRecord, ...] = ()
    embeddings: tuple[EmbeddingRecord, ...] = ()
    layout: str = DEFAULT
    """The client whose names, types and files the folder has."""

    def to_bytes(self) -> bytes:
        """Serialise as indented JSON."""
        content = {"kind": _KIND, "version": len(_MIGRATIONS) + 1, **to_json(self)}
        content["files"] = dict(sorted(content["files"].items()))
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> OutputRecord | None:
        """Read the record of a folder; `None` if there is none, or it is damaged.

        A folder may come from anywhere: a record that names a file outside of it is no record. Raises `SourceError` if
        a later version of olivelike wrote it.
        """
        try:
            return cls._parse(folder)
        except NewerRecordError as error:
            raise SourceError(f"{folder / RECORD_FILE}: {error}") from None
        except (OSError, ValueError):
            return None

    @classmethod
    def require(cls, folder: Path) -> OutputRecord:
        """Read the record of a folder that is to have one.

        Raises `SourceError` if there is none, it is damaged, or a later version of olivelike wrote it.
        """
        try:
            return cls._parse(folder)
        except (FileNotFoundError, NotADirectoryError):
            if not folder.exists():
                raise SourceError(f"{folder}: no such folder; {did_you_mean_path(folder, 'check the path')}") from None
            raise SourceError(
                f"{folder}: has no readable {RECORD_FILE}; name a folder that `olivelike run` wrote"
            ) from None
        except NewerRecordError as error:
            raise SourceError(f"{folder / RECORD_FILE}: {error}") from None
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{folder / RECORD_FILE}: can't be read: {error}; run the workflow that made it again"
            ) from None

    @classmethod
    def _parse(cls, folder: Path) -> OutputRecord:
        content = read_json(folder / RECORD_FILE, _MOST_BYTES)
        kind = content.pop("kind", None) if isinstance(content, dict) else None
        if kind not in (_KIND, f"{_KIND}/1"):
            raise RecordError(f"it is no record of an {_KIND}")
        record = read_version(cls, content, _MIGRATIONS)
        for path in record.files:
            if not is_plain(path) or path.casefold() in {RECORD_FILE, JOURNAL_FILE}:
                raise RecordError(f"files: {ascii(path)[:60]} is no path of a file in an output")
        return record

    @property
    def origins(self) -> tuple[tuple[str, Origin], ...]:
        """Origins of all that went into it, each with what it is in it: `source`, `vae`, `LoRA` and so on."""
        return all_origins(self.source, (one.origin for one in self.loras), (one.origin for one in self.embeddings))

    @property
    def made_for(self) -> str:
        """What it is made for, with the networks of fewer bits: `cpu in fp32, w8 in unet`."""
        brought = f" ({one_line(self.target.plugin)})" if self.target.plugin else ""
        return ", ".join([f"{self.target.name}{brought} in {self.target.precision}", *self._rounded()])

    def _rounded(self) -> Iterator[str]:
        """Yield each precision of fewer bits with the networks that have it."""
        for precision, name in QUANTISING_PASSES.items():
            having = [part for part, one in self.components.items() if any(step.name == name for step in one.passes)]
            if having:
                yield f"{precision} in {' and '.join(having)}"

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(one.size for one in self.files.values())

    def model_file(self, component: str) -> str:
        """Return the path of a component's model file, relative to the folder.

        Raises `SourceError` if the record names none.
        """
        if (found := self.find_model_file(component)) is not None:
            return found
        raise SourceError(f"{RECORD_FILE} names no model file of {component}; run the workflow again")

    def find_model_file(self, component: str) -> str | None:
        """Return the path of a component's model file, relative to the folder; `None` if the record names none."""
        models = (path for path in self.component_files(component) if path.endswith(".onnx"))
        return next((path for path in models if path.rpartition("/")[2] not in DERIVED_FILES), None)

    def component_files(self, component: str) -> dict[str, OutputFile]:
        """Return the recorded files of one component's folder, by relative path; all are in one, if it is one file."""
        if PIPELINE in self.components:
            return {path: file for path, file in self.files.items() if path.startswith(PIPELINE_FILE)}
        return {path: file for path, file in self.files.items() if path.startswith(f"{component}/")}


def _from_1(content: Any) -> dict[str, object]:
    """Make version 2 of what 0.1.0 wrote."""
    return {
        **content,
        "source": origin_from_1(content["source"]),
        "loras": [adapter_from_1(entry) for entry in content["loras"]],
        "embeddings": [adapter_from_1(entry) for entry in content["embeddings"]],
        "components": {name: _component_from_1(entry) for name, entry in content["components"].items()},
        "files": {path: _file_from_1(entry) for path, entry in content["files"].items()},
    }


def _component_from_1(content: Any) -> dict[str, object]:
    passes = [{"name": step["pass"], "options": step.get("options", {})} for step in content.get("passes", ())]
    return {**content, "passes": passes}


def _file_from_1(content: Any) -> dict[str, object]:
    made_of = {key: value for key, value in content.get("from", {}).items() if key != "made"}
    return {**{key: value for key, value in content.items() if key != "from"}, **made_of}


_MIGRATIONS = (_from_1,)
