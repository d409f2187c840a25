"""The table of one weight file, whatever its format: tensors and metadata, by content and not by suffix.

A file that is something else is told apart, so that a message can name the command that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from olivelike._text import did_you_mean_path
from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.model.components import ONNX_SUFFIXES, WEIGHT_FILE_SUFFIXES
from olivelike.sources.files.weight_header import GGUF_MAGIC, LFS_POINTER, Header, RawTensor, read_header

ReadPickle = Callable[[Path], Mapping[str, RawTensor]]
"""Returns the table of a pickled file."""
_PICTURES = (b"\x89PNG", b"\xff\xd8\xff")
_HEAD = 512
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")
"""How torch's files begin: a zip archive, or a bare pickle in the format from before torch 1.6."""


def read_weight_table(path: Path, read_pickle: ReadPickle | None = None) -> Header:
    """Return the tensors and the metadata of a `.safetensors`, GGUF or pickled file, without reading a tensor.

    Raises `SourceError` if the file is missing or damaged, of another format, or pickled and may not be read.
    `read_pickle` reads the table of a pickled file; `None` refuses such files.
    """
    try:
        with open_file(path) as file:
            start = file.read(9)
            size = file.seek(0, 2)
    except OSError as error:
        remedy = did_you_mean_path(path, "check its name")
        raise SourceError(f"{path}: can't be read: {error.strerror}; {remedy}") from error
    if start.startswith(GGUF_MAGIC):
        from olivelike.sources.files.gguf_table import read_gguf

        return read_gguf(path)
    # The length of a safetensors header may begin like a pickle; behind it is a JSON object.
    if start.startswith(_PICKLES) and start[8:] != b"{":
        if read_pickle is None:
            raise SourceError(
                f"{path}: this is a pickled file, which can run code as it loads; use a .safetensors file, or pass "
                "--allow-pickle if you trust this one"
            )
        return Header(read_pickle(path), {}, size)
    if (other := no_weight_file(path)) is not None:
        raise SourceError(f"{path}: {other}")
    return read_header(path)


def no_weight_file(path: Path) -> str | None:
    """Return what a file is if it holds no weights as checkpoints do, and what reads it; `None` if it may hold some."""
    if path.name.endswith(ONNX_SUFFIXES):
        return "this is an ONNX model or its data, no weight file; `olivelike inspect` reads models"
    head = _head(path)
    if head.startswith(_PICTURES):
        return "this is a picture, no weight file; `olivelike info` reads its record"
    # Of pointers of Git LFS whoever reads weights knows more.
    if _is_text(head) and not head.startswith(LFS_POINTER):
        named_so = path.suffix in WEIGHT_FILE_SUFFIXES
        remedy = "download it again, for it may be a page with an error" if named_so else "check its name"
        return f"this is text, no weight file; {remedy}"
    return None


def require_onnx_model(path: Path) -> None:
    """Check that a path may be that of an ONNX model, without parsing it.

    Raises `SourceError` if it is a folder, another kind of file, or nothing; the message says what may be meant.
    """
    if not path.exists():
        raise SourceError(f"{path}: no such file; {did_you_mean_path(path, 'check its name')}")
    if path.is_dir():
        found = sorted(path.glob("*.onnx")) or sorted(path.glob("*/*.onnx"))
        remedy = f"name the model in it, such as {found[0]}" if found else "`olivelike info` may know it"
        raise SourceError(f"{path}: this is a folder; {remedy}")
    if (other := no_onnx_model(path)) is not None:
        raise SourceError(f"{path}: {other}")


def no_onnx_model(path: Path) -> str | None:
    """Return what a file is if it is no ONNX model, and what reads it; `None` if it may be one."""
    if path.suffix in WEIGHT_FILE_SUFFIXES:
        return "this is a weight file, no ONNX model; use `olivelike info`"
    head = _head(path)
    if head.startswith(_PICTURES):
        return "this is a picture, no ONNX model; use `olivelike info`"
    return "this is text, no ONNX model; check its name" if _is_text(head) else None


def _head(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(_HEAD)
    except OSError:
        return b""  # Whoever reads it says so.


def _is_text(head: bytes) -> bool:
    """Tell whether a file begins like text: UTF-8, perhaps cut off in a letter, without control characters."""
    text = head.decode("utf-8", errors="ignore")
    whole = len(head) - len(text.encode()) < 4
    return len(text) > 1 and whole and all(letter.isprintable() or letter.isspace() for letter in text)
