"""Files that appear whole, and never in place of another."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_new_file(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file that other programs see complete or not at all.

    Args:
        path: where; its folder exists.
        data: the content.
        overwrite: replace what has the name.

    Raises:
        FileExistsError: if the name is taken, also by a process that was faster.
        OSError: if it can't be written.
    """
    # The name is cut, since with the final one's length it might be too long.
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if overwrite:
            temporary.replace(path)
        else:
            _take_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _take_name(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        # A disk without hard links, such as FAT: the name is taken by an empty file first.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise
