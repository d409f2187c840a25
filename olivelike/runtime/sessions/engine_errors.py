"""Errors of engines: their classes, what they say, and the `SessionError` that it becomes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from olivelike.errors import SessionError

_NO_MEMORY = re.compile(
    r"out of memory|bad_?alloc|failed to allocate|could not allocate|not enough memory|E_OUTOFMEMORY|8007000E",
    re.IGNORECASE,
)

_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_OPENVINO_FRAMES = ("Exception from ", "Check '", "FrontEnd API failed", "Summary:")


class Shaped(Protocol):
    """An input of a network."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return what ONNX Runtime raises: exceptions of its own, and Python's where its binding throws."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile",
        "NotImplemented", "RuntimeException",
    )  # fmt: skip
    return (*(getattr(state, name) for name in names), RuntimeError, ValueError, MemoryError)


def run_failure(network: str, error: Exception, inputs: Mapping[str, Shaped], provider: str) -> SessionError:
    """Return what to raise when an engine fails in a run."""
    shapes = ", ".join(f"{name} {buffer.shape}" for name, buffer in inputs.items())
    if lacks_memory(error):
        return SessionError(
            f"{network}: out of memory on {provider} with {shapes}; ask for a smaller size or batch, or another "
            f"device ({reason(error)})"
        )
    return SessionError(f"{network}: {provider} failed with {shapes}: {reason(error)}")


def lacks_memory(error: Exception) -> bool:
    """Return whether an engine failed for want of memory."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def reason(error: Exception) -> str:
    """Return what an engine says, without its codes and source lines."""
    text = str(error).strip() or type(error).__name__
    lines = [line for line in text.splitlines() if not line.startswith(_OPENVINO_FRAMES)]
    return _CODE.split(" ".join(lines[:3]).strip() or text)[-1]


@contextlib.contextmanager
def memory_errors(size: tuple[int, int] | None, pictures: int) -> Iterator[None]:
    """Turn what NumPy raises when it can't have an array into a `SessionError` that names size and batch.

    Raises `SessionError` if the block runs out of memory.
    """
    try:
        yield
    except MemoryError as error:
        what = f"{size[0]}x{size[1]}" if size else "this size"
        raise SessionError(
            f"out of memory for {pictures} at once of {what} ({reason(error)}); "
            "take a smaller size or batch size, or decode pictures singly"
        ) from error
