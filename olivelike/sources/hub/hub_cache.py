"""The hub's local cache, read by its documented layout, without importing the client.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache: `models--ORG--NAME/` with
`refs/BRANCH` (a commit), `snapshots/COMMIT/` (links by file name) and `blobs/` (named by content).
"""

from __future__ import annotations

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_commit(revision: str | None) -> bool:
    """Tell whether `revision` is a full commit hash, which never moves."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def cached_commit(repository: str, revision: str | None) -> str | None:
    """Return the commit that the cache last saw `revision` at, `None` if it never did."""
    if is_commit(revision):
        return revision
    reference = _folder(repository) / "refs" / (revision or "main")
    return reference.read_text(encoding="utf-8").strip() if reference.is_file() else None


def snapshot(repository: str, commit: str) -> Path:
    """Return the folder of a cached commit; it may hold some of the repository's files, or not exist."""
    return _folder(repository) / "snapshots" / commit


def known_digest(path: Path) -> str | None:
    """Return the SHA-256 of a large file in the hub's cache, which its blob is named by; else `None`."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and blob.parent.parent.name.startswith("models--"):
        return blob.name if _SHA256.fullmatch(blob.name) else None
    return None


def _folder(repository: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
