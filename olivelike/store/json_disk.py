"""diskcache's storage layer, narrowed to JSON text in the database row.

diskcache unpickles rows of its mode 4 and keys with `raw=0`, under its own `JSONDisk` too (CVE-2025-69872),
and removes files that rows name. Here such a row is a damaged database.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from diskcache import Disk
from diskcache.core import MODE_RAW


class JsonDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys are text, values are JSON, both in the row itself; everything else is refused."""

    def __init__(self, directory: str, **_stored_settings: object) -> None:
        """Take the folder; settings that a database holds for its disk are ignored."""
        super().__init__(directory)

    def put(self, key: object) -> tuple[str, bool]:
        """Return a text key as it is stored."""
        if not isinstance(key, str):
            raise TypeError(f"an index key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        """Return a stored key, which must be text."""
        if raw != 1 or not isinstance(key, str):
            raise sqlite3.DataError("the index holds a key that is not text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, str]:  # noqa: ARG002
        """Return the row of a JSON value."""
        if read:
            raise TypeError("an index value is JSON, not a stream")
        return 0, MODE_RAW, None, json.dumps(value)

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> Any:
        """Return the JSON value of a row, which must be text of mode 1 without a file."""
        if mode != MODE_RAW or filename is not None or read or not isinstance(value, str):
            raise sqlite3.DataError("the index holds a value that is not JSON")
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise sqlite3.DataError("the index holds a value that is not JSON") from error

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:  # noqa: ARG002
        """Refuse: no value of the index has its own file."""
        raise TypeError("index values have no files")

    def remove(self, file_path: object) -> None:
        """Remove nothing: a file that a row names is not the index's."""
