"""`olivelike.json`: what an output folder holds, file by file, and where each file came from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import read_json
from olivelike.engine.output.staging import JOURNAL_FILE, is_file_table
from olivelike.errors import SourceError
from olivelike.model.client_layouts import DEFAULT

if TYPE_CHECKING:
    from pathlib import Path

RECORD_FILE = "olivelike.json"
_KIND = "output/1"
_MOST_BYTES = 64 << 20
"""Of a record; the derivation of each initializer takes some hundred."""


@dataclass(frozen=True)
class OutputRecord:
    """The provenance of an output folder."""

    workflow: str
    target: dict[str, Any]
    source: dict[str, Any]
    """Kind and place of the pipeline: a folder, a file, or a hub id with its commit; `vae` if that is another's."""
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per component: `key` of its materialisation, the chain of passes, and how each initializer was derived."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per file, by relative path: `size` in bytes, `sha256`, and `from`: what it was made of."""
    loras: list[dict[str, Any]] = field(default_factory=list)
    """What was merged: place and SHA-256 of each file, its weights."""
    embeddings: list[dict[str, Any]] = field(default_factory=list)
    """Textual inversions: place and SHA-256 of each file, its token and the number of its vectors."""
    layout: str = DEFAULT
    """The client whose names, types and files the folder has."""

    def to_bytes(self) -> bytes:
        """Serialise as indented JSON."""
        content = {
            "kind": _KIND,
            "workflow": self.workflow,
            "target": self.target,
            "layout": self.layout,
            "source": self.source,
            "loras": self.loras,
            "embeddings": self.embeddings,
            "components": self.components,
            "files": dict(sorted(self.files.items())),
        }
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> OutputRecord | None:
        """Read the record of a folder; `None` if there is none, or it can't be read.

        A folder may come from anywhere: a record that names a file outside of it is no record.
        """
        path = folder / RECORD_FILE
        try:
            content = read_json(path, _MOST_BYTES)
        except (OSError, ValueError):
            return None
        if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
            return None
        try:
            record = cls(**content)
        except TypeError:
            return None
        return record if record._is_sound() else None

    def _is_sound(self) -> bool:
        return (
            all(isinstance(text, str) for text in (self.workflow, self.layout))
            and all(isinstance(table, dict) for table in (self.target, self.source, self.components))
            and all(isinstance(facts, dict) for facts in self.components.values())
            and all(isinstance(items, list) for items in (self.loras, self.embeddings))
            and all(_is_added(item) for item in (*self.loras, *self.embeddings))
            and is_file_table(self.files)
            and not {RECORD_FILE, JOURNAL_FILE} & {path.casefold() for path in self.files}
        )

    def model_file(self, component: str) -> str:
        """Return the path of a component's model file, relative to the folder.

        Raises:
            SourceError: if the record names none.
        """
        for path in self.component_files(component):
            if path.endswith(".onnx"):
                return path
        raise SourceError(f"{RECORD_FILE} names no model file of {component}; run the workflow again")

    def component_files(self, component: str) -> dict[str, dict[str, Any]]:
        """Return the recorded files of one component's folder, by relative path."""
        return {path: facts for path, facts in self.files.items() if path.startswith(f"{component}/")}


def _is_added(item: object) -> bool:
    """Tell whether a value from JSON describes a LoRA or an embedding: what is to be a number is one."""
    if not isinstance(item, dict) or not isinstance(single := item.get("weights") or {}, dict):
        return False
    numbers = (item.get("weight", 1), item.get("vectors", 1), *single.values())
    return all(isinstance(number, int | float) for number in numbers)
