"""Answers of all shelves together, asked as the engine plans."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.families.supported import check_network
from olivelike.graphs.shelf.network_forms import complete, graph_question, names_question, stored_form
from olivelike.graphs.shelf.shelf_folder import Damage, EntryKind, ShelfFolder, file_name
from olivelike.model import Architecture
from olivelike.sources import Adaptation, StoredView

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.sources import Checkpoint

BUILT_IN: Final = Path(__file__).parents[2] / "data" / "shelf"
"""The shelf that ships."""
VARIABLE: Final = "OLIVELIKE_SHELF"
"""Names the folders of one's own, separated as in `PATH`; empty for none."""


@dataclass(frozen=True)
class Answer:
    """Results that a node would have made."""

    made: Mapping[str, bytes]
    """By name, as the node's own job names it."""
    facts: JsonView = field(default_factory=dict)


class Shelf:
    """Folders that are asked in turn."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Ask the folders at `paths`, the first of them first."""
        self._folders = [ShelfFolder(path) for path in paths]
        self.damages: list[str] = []
        """Damages found so far, each with file and reason; it counts as absent."""

    def adaptation(self, checkpoint: Checkpoint) -> Adaptation | None:
        """Return what `load` makes of a network stored for torch, or `None`.

        Raises `SourceError` when the network is not supported, as `load` would.
        """
        if checkpoint.graph is not None or (found := complete(checkpoint.class_name, checkpoint.config)) is None:
            return None
        library, config = found
        check_network(checkpoint.component, checkpoint.class_name, checkpoint.config)
        table = self._read("names", names_question(checkpoint, config))
        if table is None:
            return None
        try:
            names = _placed(Adaptation.from_bytes(table).names, checkpoint)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            self.damages.append(f"the shelf's table of names for {checkpoint.component} does not fit: {error}")
            return None
        architecture = Architecture(checkpoint.component, library, checkpoint.class_name, config)
        used = {view.name for view in names.values()}
        return Adaptation(architecture, names, tuple(sorted(checkpoint.tensors.keys() - used)))

    def graph(self, architecture: Architecture) -> bytes | None:
        """Return the graph that `convert` makes of an architecture, an ONNX `ModelProto`, or `None`."""
        return self._read("graph", graph_question(architecture))

    def _read(self, kind: EntryKind, question: str) -> bytes | None:
        for folder in self._folders:
            try:
                answer = folder.read(kind, question)
                if answer is not None and kind == "graph" and folder.path != BUILT_IN:
                    check_graph(answer, folder.path / file_name(kind, question))
            except Damage as damage:
                self.damages.append(str(damage))
            else:
                if answer is not None:
                    return answer
        return None


def check_graph(data: bytes, path: Path) -> None:
    """Refuse a graph of somebody's shelf that is not valid ONNX. Raises `Damage` naming the file."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, DecodeError, ValueError) as error:
        raise Damage(f"{path} holds no valid graph: {str(error).splitlines()[0]}") from error


def _placed(names: Mapping[str, StoredView], checkpoint: Checkpoint) -> dict[str, StoredView]:
    """Return where the parameters lie in the tensors of a checkpoint.

    Raises `ValueError` for one that lies outside of them.
    """
    prefix, _ = stored_form(checkpoint)
    placed = {}
    for name, view in names.items():
        stored = prefix + view.name
        found = checkpoint.tensors.get(stored)
        if found is None or not 0 <= view.start <= math.prod(found[0].shape) - math.prod(view.shape):
            raise ValueError(f"{name} lies outside of {stored}")
        placed[name] = replace(view, name=stored)
    return placed


def open_shelf() -> Shelf:
    """Return the shelf that ships with all folders of one's own behind it."""
    return Shelf(folders())


def folders() -> list[Path]:
    """Return all shelves that runs ask: the one that ships, and those of one's own."""
    return [BUILT_IN, *_own_folders()]


def own_folder() -> Path:
    """Return the folder of one's own that is written to: the first of `$OLIVELIKE_SHELF`, else that of the user.

    Raises `UsageError` if the variable is set and names none.
    """
    own = _own_folders()
    if not own:
        raise UsageError(f"${VARIABLE} is empty, so there is no shelf of your own; name a folder with --shelf")
    return own[0]


def _own_folders() -> list[Path]:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [Path(part) for part in named.split(os.pathsep) if part]
    from platformdirs import user_data_path

    return [user_data_path("olivelike", appauthor=False) / "shelf"]
