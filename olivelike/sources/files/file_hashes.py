"""Hashes of weight files, as model sites and A1111 print them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from olivelike._untrusted import open_file
from olivelike.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20
_AUTO_V1 = (0x100000, 0x10000)  # offset and length in bytes


@dataclass(frozen=True)
class FileHashes:
    """Hashes in lower-case hexadecimal.

    Names are those of Civitai's API (https://github.com/civitai/civitai/wiki/REST-API-Reference); A1111 computes the
    same: `AutoV2` is its model hash, `AutoV3` what it prints behind `Lora hashes:`.
    """

    sha256: str
    """Of the whole file."""
    auto_v1: str
    """First 8 digits of the SHA-256 of 64 KiB at 1 MiB: the oldest model hash."""
    auto_v2: str
    """First 10 digits of the SHA-256."""
    auto_v3: str | None
    """First 12 digits of the SHA-256 of what follows the header; `None` for other than safetensors files."""

    def to_json(self) -> dict[str, str | None]:
        """Return the hashes as JSON values."""
        return asdict(self)


def hash_file(path: Path, data_start: int | None) -> FileHashes:
    """Read a file once and return its hashes.

    Args:
        path: The file.
        data_start: Where a safetensors file's tensors begin, in bytes; `None` for other files.

    Raises:
        SourceError: if it can't be read.
    """
    whole, data = hashlib.sha256(), hashlib.sha256()
    position = 0
    try:
        with open_file(path) as file:
            offset, length = _AUTO_V1
            file.seek(offset)
            oldest = hashlib.sha256(file.read(length)).hexdigest()
            file.seek(0)
            while piece := file.read(_CHUNK):
                whole.update(piece)
                if data_start is not None and position + len(piece) > data_start:
                    data.update(memoryview(piece)[max(0, data_start - position) :])
                position += len(piece)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; check the file") from error
    sha256 = whole.hexdigest()
    auto_v3 = data.hexdigest()[:12] if data_start is not None else None
    return FileHashes(sha256, oldest[:8], sha256[:10], auto_v3)
