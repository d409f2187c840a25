"""Tensors of one task: read from source files and the store, written to the store while the pass goes on."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from olivelike.errors import DamagedError, PassError
from olivelike.model import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from pathlib import Path

    import numpy as np
    import onnx_ir as ir

    from olivelike.model import Weights
    from olivelike.store import Store

_WRITERS = 4
_PENDING = 6
"""Tensors that may wait for the disk; each is held in memory until it is there."""


class StoredTensors:
    """Tensor access for a pass; a context manager, at whose end everything written is durable."""

    def __init__(self, store: Store, files: Mapping[str, Path]) -> None:
        """Read from `files`, by digest, and from the store; write to the store."""
        self._store = store
        self._files = TensorFiles(store, files)
        self._writers = ThreadPoolExecutor(_WRITERS)
        self._pending: deque[Future[str]] = deque()
        self.sizes: dict[str, int] = {}
        """Bytes of what was written, by digest."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._writers.shutdown(wait=True, cancel_futures=kind is not None)
        while self._pending and kind is None:
            self._pending.popleft().result()

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return a tensor's values.

        Raises `SourceError` if a source file can't be read, and `DamagedError` if a stored tensor is lost or damaged.
        """
        from olivelike.model.tensor_file import read_tensor

        return read_tensor(tensor, self._files)

    def file(self, path: Path) -> str:
        """Return the digest of a source file; raises as `TensorAccess.file`."""
        for digest, known in self._files.items():
            if known == path:
                return digest
        raise PassError(f"{path} is no file of the source nor of a LoRA that applies here")

    def write(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Keep a tensor; it may still be on its way to the disk at return.

        Raises `PassError` if its dtype can't be stored, and `StoreError` if this or an earlier tensor can't be written.
        """
        from olivelike.model.tensor_file import stored_tensor

        tensor, data = stored_tensor(array)
        while len(self._pending) >= _PENDING:
            self._pending.popleft().result()
        self._pending.append(self._writers.submit(self._store.put_bytes, data, tensor.file))
        self.sizes[tensor.file] = len(data)
        return tensor

    def evaluate(self, value: ir.Value, weights: Weights) -> np.ndarray[Any, Any]:
        """Return the values of a weight of a graph; raises as `TensorAccess.evaluate` and `read`."""
        from olivelike.engine.output.derivation import evaluate_weight

        return evaluate_weight(value, weights, self.read)


class TensorFiles(dict[str, "Path"]):
    """Source files by digest, and stored tensors: those are read through when they are first asked for."""

    def __init__(self, store: Store, files: Mapping[str, Path]) -> None:
        super().__init__(files)
        self._store = store

    def __missing__(self, digest: str) -> Path:
        """Return the path of a stored tensor whose bytes were just found to be right.

        Raises `DamagedError` when they are not, or are gone.
        """
        if not self._store.check_object(digest):
            raise DamagedError(f"tensor {digest[:12]} was lost or damaged; run again to remake it")
        path = self[digest] = self._store.object_path(digest)
        return path
