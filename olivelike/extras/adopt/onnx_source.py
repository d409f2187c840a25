"""A folder of ONNX models that someone else exported, opened as tables: no weight is read."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from olivelike.digest import digest_bytes
from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_table import read_onnx_table
from olivelike.families import COMPONENTS
from olivelike.model.components import MODEL_FILE
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, missing_file, read_json
from olivelike.sources.opened_source import ONNX_CLASS, onnx_files

_LIBRARY: Final = "onnx"


def open_onnx_component(files: SourceFiles, component: str) -> Checkpoint:
    """Read the table of a component's ONNX model, and nothing of its weights.

    Returns a checkpoint whose `graph` is the model file, for `load_onnx`. Raises `SourceError` if a file is missing or
    damaged, or there are several models.
    """
    name = _choose(files, component)
    path = files.path(f"{component}/{name}")
    table = read_onnx_table(path, lambda location: _data_file(files, component, name, location))
    config = read_json(files, f"{component}/config.json") if "config.json" in files.names(component) else {}
    return Checkpoint(
        component, _LIBRARY, ONNX_CLASS, config, table.tensors, graph=path, graph_digest=digest_bytes(table.graph)
    )


def _choose(files: SourceFiles, folder: str) -> str:
    found = onnx_files(files, folder)
    if MODEL_FILE in found:
        return MODEL_FILE
    if len(found) > 1:
        raise SourceError(
            f"{files.where}: {folder} has {len(found)} models: {', '.join(found)}; "
            f"keep one of them, or rename the one to use to {MODEL_FILE}"
        )
    if not found:
        if not files.names(folder):
            present = [name for name in COMPONENTS if onnx_files(files, name)]
            raise SourceError(
                f"{files.where}: this pipeline has no {folder} (it has: {', '.join(present)}); "
                f"drop {folder} from `components:`"
            )
        raise missing_file(files, f"{folder}/{MODEL_FILE}")
    return found[0]


def _data_file(files: SourceFiles, folder: str, model: str, location: str) -> Path:
    """Return the path of a data file that a model in `folder` names, after a download where one is needed."""
    relative = PurePosixPath(folder, location)
    if relative.name not in files.names(str(relative.parent)):
        raise missing_file(files, f"{relative}, which holds the weights of {folder}/{model},")
    return files.path(str(relative))
