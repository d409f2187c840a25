"""What all shelves together know, asked as the engine plans; and what puts a network's answers on a shelf."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.graphs.shelf.folder import Damage, ShelfFolder, new_entry
from olivelike.graphs.shelf.forms import complete, graph_question, names_question, stored_form
from olivelike.model import Architecture
from olivelike.model.supported import check_network
from olivelike.sources import Adaptation, StoredView

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from olivelike.graphs.shelf.folder import Entry
    from olivelike.sources import Checkpoint

BUILT_IN: Final = Path(__file__).parents[2] / "data" / "shelf"
"""The shelf that ships."""
VARIABLE: Final = "OLIVELIKE_SHELF"
"""Names the folders of one's own, separated as in `PATH`; empty for none."""


@dataclass(frozen=True)
class Answer:
    """What a node would have made."""

    made: Mapping[str, bytes]
    """By name, as the node's own job names it."""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Shelf:
    """Folders that are asked in turn."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Ask `folders`, the first of them first."""
        self._folders = [ShelfFolder(path) for path in folders]
        self.damages: list[str] = []
        """What was found damaged so far, each with file and reason; it counts as absent."""

    def adaptation(self, checkpoint: Checkpoint) -> Adaptation | None:
        """Return what `load` makes of a network stored for torch, or `None`.

        Raises:
            SourceError: when the network is not supported, as `load` would.
        """
        if checkpoint.graph is not None or (found := complete(checkpoint.class_name, checkpoint.config)) is None:
            return None
        library, config = found
        check_network(checkpoint.component, checkpoint.class_name, checkpoint.config)
        table = self._read("names", names_question(checkpoint, config))
        if table is None:
            return None
        architecture = Architecture(checkpoint.component, library, checkpoint.class_name, config)
        prefix, _ = stored_form(checkpoint)
        try:
            names = {
                name: StoredView(prefix + view.name, view.shape, view.start, view.transposed)
                for name, view in Adaptation.from_bytes(table).names.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            self.damages.append(f"the shelf's table of names for {checkpoint.component} can't be read: {error}")
            return None
        used = {view.name for view in names.values()}
        return Adaptation(architecture, names, tuple(sorted(checkpoint.tensors.keys() - used)))

    def graph(self, architecture: Architecture) -> bytes | None:
        """Return the graph that `convert` makes of an architecture, an ONNX `ModelProto`, or `None`."""
        return self._read("graph", graph_question(architecture))

    def _read(self, kind: Any, question: str) -> bytes | None:
        for folder in self._folders:
            try:
                answer = folder.read(kind, question)
            except Damage as damage:
                self.damages.append(str(damage))
            else:
                if answer is not None:
                    return answer
        return None


def open_shelf() -> Shelf:
    """Return the shelf that ships with all folders of one's own behind it."""
    return Shelf([BUILT_IN, *_own_folders()])


def own_folder() -> Path:
    """Return the folder of one's own that is written to: the first of `$OLIVELIKE_SHELF`, else that of the user.

    Raises:
        UsageError: if the variable is set and names none.
    """
    folders = _own_folders()
    if not folders:
        raise UsageError(f"${VARIABLE} is empty, so there is no shelf of your own; name a folder with --shelf")
    return folders[0]


def _own_folders() -> list[Path]:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [Path(part) for part in named.split(os.pathsep) if part]
    from platformdirs import user_data_path

    return [user_data_path("olivelike", appauthor=False) / "shelf"]


def add_network(
    folder: ShelfFolder, checkpoint: Checkpoint, about: str, made_with: Mapping[str, str], logger: logging.Logger
) -> list[Entry]:
    """Ask the libraries about a network, trace it, and put both answers on a shelf.

    Args:
        folder: The shelf.
        checkpoint: The network, for its config and the names and shapes of its tensors; no weight is read.
        about: What it is, for a person.
        made_with: Versions of the libraries.
        logger: Takes what the exporter says.

    Raises:
        SourceError: when the network is not supported, or its files do not fit its config.
        PassError: when the exporter fails.
        StoreError: when the folder can't be written.
    """
    from olivelike.graphs.export import export_component
    from olivelike.sources.names.adapt import adapt

    found = adapt(
        checkpoint.component,
        checkpoint.library,
        checkpoint.class_name,
        checkpoint.config,
        checkpoint.shapes,
        original=checkpoint.original,
    )
    assert found.architecture is not None
    graph = export_component(found.architecture, logger)
    return add_answers(folder, checkpoint, found, graph.data, about, made_with)


def add_answers(
    folder: ShelfFolder,
    checkpoint: Checkpoint,
    found: Adaptation,
    graph: bytes,
    about: str,
    made_with: Mapping[str, str],
) -> list[Entry]:
    """Put what is known of a network on a shelf; arguments as of `add_network`."""
    assert found.architecture is not None
    class_name = checkpoint.class_name
    prefix, _ = stored_form(checkpoint)
    names = {
        name: StoredView(view.name.removeprefix(prefix), view.shape, view.start, view.transposed)
        for name, view in found.names.items()
    }
    table = Adaptation(None, names, ()).to_bytes()
    half = checkpoint.component.partition("_")[0] if checkpoint.component.startswith("vae_") else checkpoint.component
    entries = []
    for kind, question, component, answer in (
        ("names", names_question(checkpoint, found.architecture.config), half, table),
        ("graph", graph_question(found.architecture), checkpoint.component, graph),
    ):
        entry = new_entry(kind, question, component, class_name, about, answer, made_with)  # type: ignore[arg-type]
        folder.write(entry, answer)
        entries.append(entry)
    return entries
