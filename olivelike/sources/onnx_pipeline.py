"""Folders of ONNX models as a source: pipelines that someone else exported.

Known layouts: diffusers' `OnnxStableDiffusionPipeline`, optimum's ORT pipelines, Olive's output, and our own.
Each component has a folder with its model file; most have a data file beside it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from olivelike.digest import digest_bytes
from olivelike.errors import SourceError
from olivelike.model.components import COMPONENTS, MODEL_FILE, SAFETY_CHECKER, torch_folder
from olivelike.sources.checkpoint import Checkpoint
from olivelike.sources.files.onnx_table import read_onnx_table
from olivelike.sources.source_files import SourceFiles, missing_file, read_json

if TYPE_CHECKING:
    from olivelike.model.architecture import Config

LIBRARY: Final = "onnx"
CLASS_NAME: Final = "OnnxRuntimeModel"
_TORCH_SUFFIXES = (".safetensors", ".bin")


def is_onnx_pipeline(index: Config, files: SourceFiles) -> bool:
    """Say whether a source holds ONNX models and no weights for torch.

    Repositories of torch weights often hold ONNX models of some components too; they count as torch pipelines.

    Args:
        index: the content of `model_index.json`, empty if there is none.
        files: the source.
    """
    if any(entry == ["diffusers", CLASS_NAME] for entry in index.values()):
        return True
    folders = {torch_folder(name) for name in COMPONENTS if name != SAFETY_CHECKER}
    if any(name.endswith(_TORCH_SUFFIXES) for folder in folders for name in files.names(folder)):
        return False
    return any(_model_files(files, folder) for folder in COMPONENTS)


def open_onnx_component(files: SourceFiles, component: str, folder: str) -> Checkpoint:
    """Read the table of a component's ONNX model, and nothing of its weights.

    Args:
        files: the source.
        component: name of the component.
        folder: its folder in the source.

    Returns:
        A checkpoint whose `graph` is the model file, for `load_onnx`.

    Raises:
        SourceError: if a file is missing or damaged, or there are several models.
    """
    name = _choose(files, folder)
    path = files.path(f"{folder}/{name}")
    table = read_onnx_table(path, lambda location: _data_file(files, folder, name, location))
    config = read_json(files, f"{folder}/config.json") if "config.json" in files.names(folder) else {}
    return Checkpoint(
        component, LIBRARY, CLASS_NAME, config, table.tensors, graph=path, graph_digest=digest_bytes(table.graph)
    )


def _choose(files: SourceFiles, folder: str) -> str:
    found = _model_files(files, folder)
    if MODEL_FILE in found:
        return MODEL_FILE
    if len(found) > 1:
        raise SourceError(
            f"{files.where}: {folder} has {len(found)} models: {', '.join(found)}; "
            f"keep one of them, or rename the one to use to {MODEL_FILE}"
        )
    if not found:
        if not files.names(folder):
            present = [name for name in COMPONENTS if _model_files(files, name)]
            raise SourceError(
                f"{files.where}: this pipeline has no {folder} (it has: {', '.join(present)}); "
                f"drop {folder} from `components:`"
            )
        raise missing_file(files, f"{folder}/{MODEL_FILE}")
    return found[0]


def _model_files(files: SourceFiles, folder: str) -> list[str]:
    return sorted(name for name in files.names(folder) if name.endswith(".onnx"))


def _data_file(files: SourceFiles, folder: str, model: str, location: str) -> Path:
    """Return the path of a data file that a model in `folder` names, after a download where one is needed."""
    relative = PurePosixPath(folder, location)
    if relative.name not in files.names(str(relative.parent)):
        raise missing_file(files, f"{relative}, which holds the weights of {folder}/{model},")
    return files.path(str(relative))
