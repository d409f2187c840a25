"""Weights that OpenVINO reads from mapped files, whose pages are given back once it has its own copy of them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import open_file

if TYPE_CHECKING:
    from olivelike.model.onnx_messages import TensorProto

_TYPES: Final = {1: "f32", 2: "u8", 3: "i8", 10: "f16", 16: "bf16"}
"""OpenVINO's names of the types that weights have, by ONNX's numbers."""


class MappedWeights:
    """The data files of one network, mapped for reading.

    OpenVINO's CPU keeps each constant beside the copy that its kernels read, for the case that another size of picture
    wants another copy. It maps data files by itself, too, but holds on to their pages: as much again as the weights.
    """

    def __init__(self) -> None:
        self._files: dict[str, mmap.mmap] = {}

    def put_into(self, openvino: Any, model: Any, initializers: Iterable[TensorProto], folder: Path) -> None:
        """Put constants that lie in these mappings in the places of a model's.

        Constants that OpenVINO made of an initializer stay, as do those of other types, or of files elsewhere than in
        `folder`. What is put there must not outlive this object.
        """
        constants = {
            name: node.output(0)
            for node in model.get_ops()
            if node.get_type_name() == "Constant"
            for name in node.output(0).get_names()
        }
        for tensor in initializers:
            output = constants.get(tensor.name)
            if output is None or output.get_element_type().get_type_name() != _TYPES.get(tensor.data_type):
                continue
            content = self._content(tensor, folder)
            if content is None or len(content) != math.prod(output.get_shape()) * output.get_element_type().size:
                continue
            shared = openvino.Tensor(content, output.get_shape(), output.get_element_type())
            constant = openvino.op.Constant(shared, shared_memory=True)
            for reader in output.get_target_inputs():
                reader.replace_source_output(constant.output(0))

    def file(self, path: Path) -> Any:
        """Return all bytes of a file, mapped. They can be written, as OpenVINO asks for, which no file ever sees."""
        import numpy as np

        with open_file(path) as file:
            self._files[str(path)] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(self._files[str(path)], np.uint8)

    def give_back(self) -> None:
        """Take the pages out of this process's memory, where the system can; who reads them again gets them again."""
        if hasattr(mmap.mmap, "madvise"):
            for file in self._files.values():
                file.madvise(mmap.MADV_DONTNEED)

    def _content(self, tensor: TensorProto, folder: Path) -> Any:
        """Return the bytes of an initializer, or `None` if they are not in a data file in the folder."""
        import numpy as np

        places = {entry.key: entry.value for entry in tensor.external_data}
        name, offset, length = places.get("location", ""), int(places.get("offset", 0)), int(places.get("length", 0))
        if not length or Path(name).name != name:
            return None
        if name not in self._files:
            with open_file(folder / name) as file:
                self._files[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if offset + length > len(self._files[name]):
            return None
        return np.frombuffer(self._files[name], np.uint8, length, offset)
