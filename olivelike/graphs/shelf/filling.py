"""Putting answers on a shelf: the libraries are asked, the network is traced; no weight is read."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from olivelike.digest import digest_bytes
from olivelike.graphs.shelf.network_forms import graph_question, names_question, stored_form
from olivelike.graphs.shelf.shelf_folder import Damage, Entry, EntryKind, ShelfFolder
from olivelike.model import Architecture
from olivelike.sources import Adaptation

if TYPE_CHECKING:
    import logging

    from olivelike.sources import Checkpoint

_LIBRARIES: Final = ("torch", "diffusers", "transformers", "onnxscript", "onnx-ir", "onnx")


def add_network(
    folder: ShelfFolder, checkpoint: Checkpoint, about: str, logger: logging.Logger, *, fresh: bool = False
) -> list[Entry]:
    """Put what `load` and `convert` make of a network on a shelf.

    Raises `SourceError` when the network is not supported, or its files do not fit its config, `PassError` when the
    exporter fails, and `StoreError` when the folder can't be written.

    Args:
        folder: The shelf.
        checkpoint: The network, for its config and the names and shapes of its tensors.
        about: What it is, for a person.
        logger: Takes what the exporter says.
        fresh: Trace it although the folder has its graph.
    """
    from olivelike.sources.names.adapt import adapt

    shapes = checkpoint.shapes
    found = adapt(
        checkpoint.component,
        checkpoint.library,
        checkpoint.class_name,
        checkpoint.config,
        shapes,
        original=checkpoint.original,
    )
    architecture = found.network
    prefix, _ = stored_form(checkpoint)
    names = {name: replace(view, name=view.name.removeprefix(prefix)) for name, view in found.names.items()}
    table = Adaptation(None, names, ()).to_bytes()
    # Both halves of a VAE have one table.
    home = "vae" if checkpoint.component.startswith("vae_") else checkpoint.component
    question = names_question(checkpoint, architecture.config)
    entry = _new_entry("names", question, home, architecture.class_name, about, table)
    folder.write(entry, table)
    return [entry, add_graph(folder, architecture, about, logger, fresh=fresh)]


def add_graph(
    folder: ShelfFolder, architecture: Architecture, about: str, logger: logging.Logger, *, fresh: bool = False
) -> Entry:
    """Put the graph of an architecture on a shelf; arguments and errors as of `add_network`."""
    question, graph = graph_question(architecture), None
    if not fresh:
        try:
            graph = folder.read("graph", question)
        except Damage:
            graph = None
    if graph is None:
        graph = trace(architecture, logger)
    return put_graph(folder, architecture, graph, about)


def put_graph(folder: ShelfFolder, architecture: Architecture, graph: bytes, about: str) -> Entry:
    """Put a graph that was traced on a shelf; errors as of `add_network`."""
    question = graph_question(architecture)
    entry = _new_entry("graph", question, architecture.component, architecture.class_name, about, graph)
    entry = replace(entry, architecture=architecture.to_bytes().decode())
    folder.write(entry, graph)
    return entry


def trace(architecture: Architecture, logger: logging.Logger) -> bytes:
    """Return the graph that the installed exporter makes. Raises `PassError` when it fails."""
    from olivelike.graphs.export import export_component

    return export_component(architecture, logger).data


def differs(entry: Entry, logger: logging.Logger) -> bool:
    """Tell whether the installed exporter makes another graph than the one of an entry.

    Raises `PassError` when the exporter fails, and `ValueError` when the entry does not say of what it was made.
    """
    return digest_bytes(trace(Architecture.from_bytes(entry.architecture.encode()), logger)) != entry.digest


def _new_entry(kind: EntryKind, question: str, component: str, class_name: str, about: str, answer: bytes) -> Entry:
    made_with = {library: version(library) for library in _LIBRARIES}
    return Entry(kind, question, component, class_name, about, digest_bytes(answer), len(answer), made_with)
