"""The table of one weight file, whatever its format: tensors and metadata, by content and not by suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import did_you_mean_path
from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.sources.files.file_kinds import no_weight_file
from olivelike.sources.files.safetensors_header import Header, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from olivelike.sources.files.safetensors_header import RawTensor

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")
"""How torch's files begin: a zip archive, or a bare pickle in the format from before torch 1.6."""


def read_weight_table(
    path: Path, read_pickle: Callable[[Path], Mapping[str, RawTensor]] | None = None
) -> Header:
    """Return the tensors and the metadata of a `.safetensors` or pickled file, without reading a tensor.

    Args:
        path: the file.
        read_pickle: reads the table of a pickled file; `None` refuses such files.

    Raises:
        SourceError: if the file is missing or damaged, of another format, or pickled and may not be read.
    """
    try:
        with open_file(path) as file:
            start = file.read(4)
            size = file.seek(0, 2)
    except OSError as error:
        remedy = did_you_mean_path(path, "check its name")
        raise SourceError(f"{path}: can't be read: {error.strerror}; {remedy}") from error
    if start == b"GGUF":
        raise SourceError(f"{path}: this is a GGUF file, which is not supported; get the .safetensors file")
    if start.startswith(_PICKLES):
        if read_pickle is None:
            raise SourceError(
                f"{path}: this is a pickled file, which can run code as it loads; use a .safetensors file, or pass "
                "--allow-pickle if you trust this one",
            )
        return Header(read_pickle(path), {}, size)
    if (other := no_weight_file(path)) is not None:
        raise SourceError(f"{path}: {other}")
    return read_header(path)
