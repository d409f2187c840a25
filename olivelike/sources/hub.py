"""Pipelines and files on the Hugging Face hub: pinned to a commit, taken from the cache, downloaded file by file.

The local cache is read by its documented layout, without importing the client; the client's own functions want either
the name of one file or a whole repository. https://huggingface.co/docs/huggingface_hub/guides/manage-cache:
`models--ORG--NAME/` with `refs/BRANCH` (a commit), `snapshots/COMMIT/` (links by file name) and `blobs/` (named by
content).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from olivelike._untrusted import read_bytes
from olivelike.errors import SourceError
from olivelike.model.components import INDEX_FILE
from olivelike.model.records.origin import Origin
from olivelike.sources.checkpoint import FolderFiles, SourceFiles
from olivelike.sources.source_licenses import origin_of

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

Opened = TypeVar("Opened")
_TIMEOUT = 20.0  # seconds until the hub counts as out of reach
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_USUAL_NAMES = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors", "learned_embeds.safetensors")
_ADAPTER_CONFIG = "adapter_config.json"
_BY_STATUS = {
    401: "the hub does not accept this machine's token (401); run `hf auth login`, or `hf auth logout`",
    403: "the hub forbids access (403); check the token's rights at {page}, then run `hf auth login`",
    404: "the hub has no such page (404); check the name at {page}, and HF_ENDPOINT if it is set",
    429: "the hub limits the number of requests (429); wait some minutes and try again, or run `hf auth login`, which "
    "raises the limit",
}


def open_hub(repository: str, revision: str | None, read: Callable[[SourceFiles], Opened]) -> Opened:
    """Call `read` with the files of a repository.

    A commit whose files are cached is read without the network and without importing its client. A branch is looked up;
    without a network the commit that the cache knows is taken, and the origin carries a warning. Raises `SourceError`
    if the repository can't be had, or what `read` raises.

    Args:
        repository: `ORGANISATION/NAME`.
        revision: branch, tag or commit; `None` is the main branch.
        read: reads what it needs; called again with a wider view if the cache lacks something.
    """
    if _is_commit(revision):
        try:
            return read(_cached(repository, str(revision), ""))
        except SourceError:
            return _open_online(repository, revision, read)
    return _open_online(repository, revision, read)


def known_digest(path: Path) -> str | None:
    """Return the SHA-256 of a large file in the hub's cache, which its blob is named by; else `None`."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and blob.parent.parent.name.startswith("models--"):
        return blob.name if _SHA256.fullmatch(blob.name) else None
    return None


def fetch_hub_file(repository: str, name: str | None = None, revision: str | None = None) -> tuple[Path, Origin]:
    """Return the local path of a weight file, after a download where one is needed, and its origin.

    Raises `SourceError` if the repository can't be had, lacks the file, or leaves open which one is meant.

    Args:
        repository: `ORGANISATION/NAME`.
        name: The file's path in the repository; `None` takes one of the usual names, or the only `.safetensors` file.
        revision: Branch, tag or commit; `None` is the main branch.
    """

    def read(files: SourceFiles) -> tuple[Path, Origin]:
        relative = name if name is not None else _only_file(files)
        folder, _, file = relative.rpartition("/")
        if file not in files.names(folder):
            there = ", ".join(sorted(_weights(files.names(folder)))) or "no weights"
            raise SourceError(f"{files.where}: {relative} is missing; that folder has {there}; {files.remedy}")
        if _ADAPTER_CONFIG in files.names(folder):
            files.path("/".join(filter(None, (folder, _ADAPTER_CONFIG))))
        return files.path(relative), replace(origin_of(files), file=relative)

    return open_hub(repository, revision, read)


def _only_file(files: SourceFiles) -> str:
    names = files.names("")
    usual = [name for name in _USUAL_NAMES if name in names]
    candidates = usual or _weights(names)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise SourceError(f"{files.where}: has no .safetensors file; name one as `OWNER/NAME/FILE`; {files.remedy}")
    raise SourceError(
        f"{files.where}: has {len(candidates)} weight files: {', '.join(candidates)}; name one, as `OWNER/NAME/FILE`"
    )


def _weights(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".safetensors"))


def _open_online(repository: str, revision: str | None, read: Callable[[SourceFiles], Opened]) -> Opened:
    try:
        files = _look_up(repository, revision)
    except ConnectionError as error:
        commit = _cached_commit(repository, revision)
        if commit is None or not _snapshot(repository, commit).is_dir():
            raise SourceError(
                f"{repository}: not in the local cache, and the hub can't be reached ({error}); connect and "
                "try again, or copy the pipeline here and name its folder as `source:`"
            ) from error
        warning = f"the hub can't be reached; {revision or 'main'} may have moved on since {commit[:12]}"
        return read(_cached(repository, commit, "" if _is_commit(revision) else warning))
    return read(files)


def _cached(repository: str, commit: str, warning: str) -> FolderFiles:
    origin = Origin("hub", repository, commit=commit, warning=warning or None)
    remedy = f"connect to the network and run `hf download {repository} --revision {commit}`"
    where = f"{repository} at {commit[:12]}, as cached"
    return FolderFiles(_snapshot(repository, commit), where, remedy, origin)


@dataclass(frozen=True)
class _RepositoryFiles:
    """A repository at one commit; a file comes through the cache when its path is asked for."""

    repository: str
    commit: str
    listing: frozenset[str]

    @property
    def origin(self) -> Origin:
        return Origin("hub", self.repository, commit=self.commit)

    @property
    def where(self) -> str:
        return f"{self.repository} at {self.commit[:12]}"

    @property
    def remedy(self) -> str:
        return f"the repository itself lacks it; see https://huggingface.co/{self.repository}/tree/{self.commit}"

    @cached_property
    def _folders(self) -> dict[str, frozenset[str]]:
        folders: defaultdict[str, set[str]] = defaultdict(set)
        for relative in self.listing:
            folder, _, name = relative.rpartition("/")
            folders[folder].add(name)
        return {folder: frozenset(names) for folder, names in folders.items()}

    def names(self, folder: str) -> frozenset[str]:
        return self._folders.get(folder, frozenset())

    def path(self, relative: str) -> Path:
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.repository, relative, revision=self.commit))
        except client_errors() as error:
            reason = translated(error, self.repository, self.commit)
            raise SourceError(
                f"{self.where}: {relative} can't be downloaded: {reason}; then run the same command again, "
                "finished files are kept"
                if isinstance(reason, SourceError)
                else f"{self.where}: {relative} can't be downloaded: the hub can't be reached ({reason}); "
                "connect and run the same command again, finished files are kept"
            ) from error


def _look_up(repository: str, revision: str | None) -> _RepositoryFiles:
    """Ask the hub for the commit and its file names.

    Raises `ConnectionError` if the hub can't be reached, or may not be, and `SourceError` if it answers with a refusal
    or a fault, or its files can't be kept here.
    """
    from huggingface_hub import HfApi, hf_hub_download

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT)
        names = frozenset(sibling.rfilename for sibling in info.siblings or ())
        landmark = min(
            names, key=lambda name: (name != INDEX_FILE, not name.endswith((".md", ".json")), name), default=""
        )
        if landmark and not _is_commit(revision):
            # Asked for by branch, so that the cache notes the branch's commit for days without a network.
            hf_hub_download(repository, landmark, revision=revision)
    except client_errors() as error:
        raise translated(error, repository, revision) from error
    return _RepositoryFiles(repository, str(info.sha), names)


def is_cached(repository: str, revision: str | None) -> bool:
    """Tell whether the cache has files of a repository; a download that was cut off has some, too."""
    commit = _cached_commit(repository, revision)
    return commit is not None and _snapshot(repository, commit).is_dir()


def _is_commit(revision: str | None) -> bool:
    """Tell whether `revision` is a full commit hash, which never moves."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def _cached_commit(repository: str, revision: str | None) -> str | None:
    """Return the commit that the cache last saw `revision` at, `None` if it never did."""
    if _is_commit(revision):
        return revision
    reference = _folder(repository) / "refs" / (revision or "main")
    return read_bytes(reference).decode().strip() if reference.is_file() else None


def _snapshot(repository: str, commit: str) -> Path:
    """Return the folder of a cached commit; it may hold some of the repository's files, or not exist."""
    return _folder(repository) / "snapshots" / commit


def _folder(repository: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def client_errors() -> tuple[type[Exception], ...]:
    """Return all that the client raises for a request or a file; for an `except` clause."""
    from huggingface_hub.errors import HFValidationError

    return OSError, _http_root(), HFValidationError


def translated(error: Exception, repository: str, revision: str | None) -> SourceError | ConnectionError:
    """Return the error to raise in place of one of `client_errors`.

    Returns:
        `ConnectionError` if the hub did not answer, or may not be asked; else what it or this machine refused.
    """
    from huggingface_hub.errors import (
        FileMetadataError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    # The client wraps a failed request for a file's metadata: its cause tells a refusal from a dead line.
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, client_errors()):
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return ConnectionError("HF_HUB_OFFLINE is set")
    if isinstance(error, HFValidationError):
        return SourceError(f"{repository}: neither a folder here nor a valid hub id: {error}")
    if isinstance(error, HfHubHTTPError):
        return _refusal(error, repository, revision)
    if isinstance(error, (_http_root(), ConnectionError, TimeoutError)):
        return ConnectionError(str(error) or type(error).__name__)
    if isinstance(error, (FileMetadataError, LocalEntryNotFoundError)):
        return SourceError(f"{repository}: what answered is no hub: {error}; check HF_ENDPOINT and the proxy")
    return SourceError(
        f"{repository}: its files can't be kept here: {error}; make room, or move the cache with HF_HOME"
    )


def _refusal(error: HfHubHTTPError, repository: str, revision: str | None) -> SourceError:
    """Put an answer of the hub that is no success into words."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page = f"https://huggingface.co/{repository}"
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        text = f"access is restricted; accept its terms at {page}, then run `hf auth login`"
    elif isinstance(error, RepositoryNotFoundError):
        text = (
            f"no such repository on the hub, or it is private; check the name at {page}, "
            "and run `hf auth login` if it is private"
        )
    elif isinstance(error, RevisionNotFoundError):
        text = f"no revision {revision!r}; see {page}/branches"
    elif status >= 500:
        text = f"the hub has a fault ({status}); try again later, or set HF_HUB_OFFLINE=1 to take what the cache has"
    else:
        text = _BY_STATUS.get(status, "the hub refuses: {error}; check the name at {page}")
        text = text.format(page=page, error=str(error).strip())
    return SourceError(f"{repository}: {text}")


def _http_root() -> type[Exception]:
    """Return the root error of the HTTP library below the hub's client, which differs by version."""
    from huggingface_hub.errors import HfHubHTTPError

    root: type[Exception] = HfHubHTTPError.__bases__[0]
    return root
