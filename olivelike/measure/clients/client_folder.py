"""`ClientFolder`: a pipeline folder of any origin, read as far as headers and configs."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._untrusted import Json, read_object
from olivelike.errors import SourceError
from olivelike.families import DENOISERS, family_of_folder
from olivelike.graphs.inspect import Inspection, inspect_model
from olivelike.model.components import INDEX_FILE, MODEL_FILE
from olivelike.model.targets import TARGETS

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.graphs.inspect.inspection import TensorInfo


class Unreadable(Exception):  # noqa: N818  (a reason, caught by the check)
    """A part of the folder that is asked about is missing or broken; the text says how."""


class ClientFolder:
    """Index, configs and graph headers of a folder, each read once; no weight is read."""

    def __init__(self, path: Path) -> None:
        """Take a folder. Raises `SourceError` if there is no such folder."""
        if not path.is_dir():
            raise SourceError(f"{path} is no folder; name the folder of a pipeline")
        self.path = path
        self._models: dict[str, Inspection | str] = {}

    @cached_property
    def index(self) -> Json:
        """The content of `model_index.json`."""
        return self.json(INDEX_FILE)

    @cached_property
    def family(self) -> Family:
        """The pipeline's family, by what there is of index and denoiser's config."""
        names = [path.name for path in self.path.iterdir() if path.is_dir()]
        denoiser = next((name for name in DENOISERS if name in names), DENOISERS[0])
        return family_of_folder(self._if_there(INDEX_FILE), names, self._if_there(f"{denoiser}/config.json"))

    def has(self, relative: str) -> bool:
        """Tell whether a file or folder is there."""
        return (self.path / relative).exists()

    def json(self, relative: str) -> Json:
        """Return the content of a JSON file. Raises `Unreadable` if it is missing or holds no JSON object."""
        try:
            return read_object(self.path / relative)
        except OSError:
            raise Unreadable(f"there is no {relative}") from None
        except ValueError as error:
            raise Unreadable(f"{relative} is no JSON: {error}") from error

    def _if_there(self, relative: str) -> Json:
        try:
            return self.json(relative)
        except Unreadable:
            return {}

    def model(self, relative: str) -> Inspection:
        """Return what an ONNX file holds. Raises `Unreadable` if the file or its data file is missing or broken.

        `relative` is its path, or a component's name for its `model.onnx`.
        """
        relative = relative if relative.endswith(".onnx") else f"{relative}/{MODEL_FILE}"
        if relative not in self._models:
            self._models[relative] = self._inspect(relative)
        found = self._models[relative]
        if isinstance(found, str):
            raise Unreadable(found)
        return found

    def input(self, model: str, name: str) -> TensorInfo:
        """Return an input by its name. Raises `Unreadable` if there is none."""
        inputs = {value.name: value for value in self.model(model).inputs}
        if name not in inputs:
            raise Unreadable(f"it has the inputs {', '.join(inputs)}")
        return inputs[name]

    def output(self, model: str, position: int = 0) -> TensorInfo:
        """Return an output by its position. Raises `Unreadable` if there are not so many."""
        outputs = self.model(model).outputs
        if not -len(outputs) <= position < len(outputs):
            raise Unreadable(f"it has {len(outputs)} outputs")
        return outputs[position]

    @cached_property
    def onnx_files(self) -> list[str]:
        """Relative paths of all ONNX files, at any depth."""
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*.onnx"))

    def _inspect(self, relative: str) -> Inspection | str:
        if not self.has(relative):
            return f"there is no {relative}"
        try:
            found = inspect_model(self.path / relative, [TARGETS["cpu"]])
        except SourceError as error:
            return str(error)
        for file in found.data_files:
            if not file.complete:
                state = "missing" if file.actual_bytes is None else "too short"
                return f"its data file {file.location} is {state}"
        return found
