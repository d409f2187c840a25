"""Giving ONNX Runtime other values for a model's initializers, without writing a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from olivelike.runtime.sessions.model_file import check_initializers, read_model_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    Array = np.ndarray[Any, Any]

_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Exchange:
    """A model and what takes the places of its initializers."""

    model: str | bytes
    """The file, or its content where small tensors in it had to change."""
    external: Mapping[str, Array] = field(default_factory=dict)
    """For `SessionOptions.add_external_initializers`."""
    session_config: Mapping[str, str] = field(default_factory=dict)


def exchange(path: Path, initializers: Mapping[str, Array]) -> Exchange:
    """Return how to open a model with other initializers.

    ONNX Runtime replaces tensors of data files alone. Small ones are inside the model, which is edited for them
    in memory. (`SessionOptions.add_initializer` takes any, but comes after constants were folded, which then have
    the old values.)

    Raises:
        SessionError: if a name, dtype or shape does not fit.
    """
    if not initializers:
        return Exchange(str(path))
    known = {tensor.name: tensor for tensor in read_model_file(path).graph.initializer}
    check_initializers(path, known, initializers)
    inside = {name for name in initializers if not known[name].external_data}
    external = {name: array for name, array in initializers.items() if name not in inside}
    if not inside:
        return Exchange(str(path), external)
    import onnx

    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.name in inside:
            tensor.CopyFrom(onnx.numpy_helper.from_array(initializers[tensor.name], tensor.name))
    return Exchange(proto.SerializeToString(), external, {_DATA_FOLDER: str(path.parent)})
