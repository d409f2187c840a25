"""Pickled weights as a table: where each tensor's bytes lie inside a `.bin` or `.ckpt` file, a zip archive.

`read_pickle_table` asks a child process, so the caller stays free of torch. The child loads with
`weights_only=True`, which builds tensors and nothing else, under a mode in which no storage is read.
"""

from __future__ import annotations

import gc
import io
import json
import struct
import subprocess
import sys
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from olivelike._installed import lacking
from olivelike._untrusted import Json, open_file
from olivelike.errors import SourceError
from olivelike.sources.files.weight_header import DOWNLOAD_AGAIN, RawTensor

_LOCAL_HEADER, _LENGTHS_AT = 30, 26
"""Bytes of a local file header before its name, and where in it the lengths of name and extra field are."""
_WORD = 16
"""No entry `byteorder` is longer; another one is not read."""
_SAVE_AGAIN = "load it with torch once and save it as safetensors"


def read_pickle_table(path: Path) -> dict[str, RawTensor]:
    """Return dtype, shape and place of each tensor in a `.bin` file, from a child process.

    Raises `SourceError` if the file is damaged, holds more than plain tensors, or is of torch's oldest format.
    """
    # -P: a module in the current folder, such as json.py, is not taken for the library's.
    command = [sys.executable, "-P", "-m", "olivelike.sources.files.pickled", str(path)]
    child = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if child.returncode == SourceError.exit_code:
        raise SourceError(child.stdout)
    if child.returncode:
        told = child.stderr.strip().splitlines()[-1:] if child.returncode > 0 else []
        reason = "".join(told) or f"torch's reader ended with status {child.returncode}"
        raise SourceError(f"{path}: can't be loaded as plain tensors: {reason}; {DOWNLOAD_AGAIN}")
    rows: dict[str, list[Any]] = json.loads(child.stdout)
    return {name: RawTensor(dtype, tuple(shape), offset) for name, (dtype, shape, offset) in rows.items()}


def describe_pickle(path: Path) -> dict[str, list[Any]]:
    """Return `[dtype, shape, offset]` of each tensor in a `.bin` file; imports torch.

    Raises `SourceError` as `read_pickle_table`.
    """
    import pickle

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    entries = _read_entries(path)
    try:
        with FakeTensorMode(), torch.serialization.safe_globals([(_TrainingLeftover, _LIGHTNING_CALLBACK)]):
            content = torch.load(path, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"{path}: can't be loaded as plain tensors: {reason}; {DOWNLOAD_AGAIN}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected a dict of tensors, found {type(content).__name__}")
    return {name: _describe(path, entries, name, value) for name, value in _unwrap(content).items()}


class _TrainingLeftover:
    """Stands for a class of the training program, which official `.ckpt` files name and never make."""


_LIGHTNING_CALLBACK = "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"
_WRAPPERS = ("state_dict", "string_to_param")
"""Keys under which training programs nest what they trained: whole checkpoints, and A1111's embeddings."""


def _unwrap(content: dict[Any, Any]) -> Json:
    """Return the tensors of a nested checkpoint, without the training state around and among them."""
    import torch

    wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), dict)), None)
    if wrapper is None and content and all(isinstance(part, dict) for part in content.values()):
        # IP-Adapters have two parts, whose names safetensors joins.
        return {f"{part}.{name}": value for part, tensors in content.items() for name, value in tensors.items()}
    if wrapper is None:
        return content
    tensors = {name: value for name, value in content[wrapper].items() if isinstance(value, torch.Tensor)}
    if wrapper == "string_to_param":
        # The token lies beside its vectors, under a name that programs replace by the file's name.
        return {f"{wrapper}.{name}": value for name, value in tensors.items()}
    return tensors


def _describe(path: Path, entries: Sequence[_Entry], name: str, value: Any) -> list[Any]:
    import torch

    names = {
        torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
        torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
        torch.uint8: "U8", torch.bool: "BOOL",
    }  # fmt: skip
    if not isinstance(value, torch.Tensor) or value.dtype not in names:
        raise SourceError(f"{path}: {name} is no tensor of a supported dtype; {_SAVE_AGAIN}")
    # Set by torch.load under a fake mode since torch 2.8; absent in the format from before torch 1.6.
    start = getattr(value.untyped_storage(), "_checkpoint_offset", None)
    if start is None or not value.is_contiguous():
        raise SourceError(f"{path}: the bytes of {name} do not lie in one piece; {_SAVE_AGAIN}")
    offset = start + value.storage_offset() * value.element_size()
    _check_span(path, name, entries, offset, value.numel() * value.element_size())
    return [names[value.dtype], list(value.shape), offset]


class _Entry(NamedTuple):
    """One entry: its bytes are `start` up to `end` of the file."""

    start: int
    end: int
    name: str
    is_stored: bool
    """False if it is compressed, so that the file does not hold what it stands for."""


def _read_entries(path: Path) -> list[_Entry]:
    """Return the entries of an archive in order of place; none if the file is no archive.

    Raises `SourceError` if it is damaged, or its numbers are big-endian.
    """
    try:
        file = open_file(path)
    except OSError:
        return []
    try:
        with file:
            if not zipfile.is_zipfile(file):
                return []
            archive = zipfile.ZipFile(file)
            entries = []
            for info in archive.infolist():
                file.seek(info.header_offset + _LENGTHS_AT)
                start = info.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", file.read(4)))
                is_stored = info.compress_type == zipfile.ZIP_STORED
                entries.append(_Entry(start, start + info.compress_size, info.filename, is_stored))
            order = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == "byteorder"]
            if order and order[0].file_size <= _WORD and archive.read(order[0]).strip() == b"big":
                raise SourceError(f"{path}: its numbers are big-endian; {_SAVE_AGAIN}")
    except (zipfile.BadZipFile, struct.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise SourceError(f"{path}: is a damaged zip archive: {error}; {DOWNLOAD_AGAIN}") from error
    return sorted(entries)


def _check_span(path: Path, name: str, entries: Sequence[_Entry], start: int, size: int) -> None:
    """Check that a tensor's bytes are inside one entry, and are there as they are. Raises `SourceError` if not."""
    position = bisect_right(entries, start, key=lambda entry: entry.start) - 1
    entry = entries[position] if position >= 0 else None
    if entry is not None and start < entry.end and not entry.is_stored:
        raise SourceError(f"{path}: {name} is compressed in it ({entry.name}), as torch never saves; {_SAVE_AGAIN}")
    if size and (entry is None or start + size > entry.end):
        raise SourceError(f"{path}: the bytes of {name} are not inside the archive's entries; {DOWNLOAD_AGAIN}")


if __name__ == "__main__":
    gc.disable()  # All that it makes stays to the end, most of it torch's modules.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        sys.stdout.write(json.dumps(describe_pickle(Path(sys.argv[1]))))
    except SourceError as error:
        sys.stdout.write(str(error))
        sys.exit(SourceError.exit_code)
    except ModuleNotFoundError as error:
        if (absent := lacking(error)) is None:
            raise
        sys.stdout.write(f"{sys.argv[1]}: is a pickled file; {absent}")
        sys.exit(SourceError.exit_code)
