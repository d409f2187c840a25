"""Where each kind of entry lies under the store's root."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|^\.+$")


class Layout:
    """Paths of a store's folders and entries; computing them touches no file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.actions = root / "actions"
        self.runs = root / "runs"
        self.logs = root / "logs"
        self.temporary = root / "tmp"
        self.key_locks = root / "locks" / "keys"
        self.live_locks = root / "locks" / "live"
        self.live_roots = root / "roots" / "runs"
        self.pins = root / "roots" / "pins"
        self.quarantine = root / "quarantine"
        self.index = root / "index"

    @property
    def folders(self) -> dict[str, Path]:
        """The folders at the top, by name: all that a store may hold."""
        names = ("objects", "actions", "runs", "logs", "tmp", "locks", "roots", "quarantine", "index")
        return {name: self.root / name for name in names}

    def object(self, digest: str) -> Path:
        """Return the path of an object."""
        return self.objects / checked_digest(digest)[:2] / digest

    def action(self, key: str) -> Path:
        """Return the path of an action record."""
        return self.actions / checked_digest(key)[:2] / f"{key}.json"

    def run(self, run_id: str) -> Path:
        """Return the path of a run record."""
        return self.runs / f"{checked_run_id(run_id)}.json"

    def log(self, run_id: str, node: str) -> Path:
        """Return the path of a node's log; each `/` in the node's name is a folder."""
        *folders, name = (file_name(part) for part in node.split("/"))
        return self.logs.joinpath(checked_run_id(run_id), *folders, f"{name}.log")

    def key_lock(self, key: str) -> Path:
        """Return the path of the lock on an action."""
        return self.key_locks / f"{checked_digest(key)}.lock"

    def lock(self, name: str) -> Path:
        """Return the path of a lock on a part of the store."""
        return self.root / "locks" / f"{name}.lock"

    def live_root(self, run_id: str) -> Path:
        """Return the path of a live run's root."""
        return self.live_roots / f"{checked_run_id(run_id)}.json"

    def pin(self, name: str) -> Path:
        """Return the path of a pin."""
        return self.pins / f"{file_name(name)}.json"


def is_digest(text: object) -> bool:
    """Tell whether `text` is a SHA-256 in 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def checked_digest(text: str) -> str:
    """Return `text`, or refuse what is no SHA-256: it becomes part of a path.

    Raises:
        ValueError: naming the text.
    """
    if not is_digest(text):
        raise ValueError(f"expected a SHA-256 of 64 hexadecimal digits, found {text!r}")
    return text


def checked_run_id(text: str) -> str:
    """Return `text`, or refuse what is no run id.

    Raises:
        ValueError: naming the text.
    """
    if not _RUN_ID.fullmatch(text):
        raise ValueError(f"expected a run id of letters, digits, `-` and `_`, found {text!r}")
    return text


def file_name(text: str) -> str:
    """Return a file name for any text; different texts have different names."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text) or "%"
