"""Pipelines on the Hugging Face hub: pinned to a commit, taken from the cache, downloaded file by file."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from olivelike.errors import SourceError
from olivelike.model.components import INDEX_FILE
from olivelike.sources.hub.hub_cache import cached_commit, is_commit, snapshot
from olivelike.sources.hub.hub_errors import client_errors, translated
from olivelike.sources.source_files import FolderFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from olivelike.sources.source_files import SourceFiles

Opened = TypeVar("Opened")
_TIMEOUT = 20.0  # seconds until the hub counts as out of reach


def open_hub(repository: str, revision: str | None, read: Callable[[SourceFiles], Opened]) -> Opened:
    """Call `read` with the files of a repository.

    A commit whose files are cached is read without the network and without importing its client. A branch is
    looked up; without a network the commit that the cache knows is taken, and the origin carries a warning.

    Args:
        repository: `ORGANISATION/NAME`.
        revision: branch, tag or commit; `None` is the main branch.
        read: reads what it needs; called again with a wider view if the cache lacks something.

    Raises:
        SourceError: if the repository can't be had, or what `read` raises.
    """
    if is_commit(revision):
        try:
            return read(_cached(repository, str(revision), ""))
        except SourceError:
            return _open_online(repository, revision, read)
    return _open_online(repository, revision, read)


def _open_online(repository: str, revision: str | None, read: Callable[[SourceFiles], Opened]) -> Opened:
    try:
        files = _look_up(repository, revision)
    except ConnectionError as error:
        commit = cached_commit(repository, revision)
        if commit is None or not snapshot(repository, commit).is_dir():
            raise SourceError(
                f"{repository}: not in the local cache, and the hub can't be reached ({error}); connect and "
                "try again, or copy the pipeline here and name its folder as `source:`",
            ) from error
        warning = f"the hub can't be reached; {revision or 'main'} may have moved on since {commit[:12]}"
        return read(_cached(repository, commit, "" if is_commit(revision) else warning))
    return read(files)


def _cached(repository: str, commit: str, warning: str) -> FolderFiles:
    origin = _origin(repository, commit) | ({"warning": warning} if warning else {})
    remedy = f"connect to the network and run `hf download {repository} --revision {commit}`"
    where = f"{repository} at {commit[:12]}, as cached"
    return FolderFiles(snapshot(repository, commit), where, remedy, origin)


def _origin(repository: str, commit: str) -> dict[str, Any]:
    return {"kind": "hub", "repository": repository, "commit": commit}


@dataclass(frozen=True)
class _RepositoryFiles:
    """A repository at one commit; a file comes through the cache when its path is asked for."""

    repository: str
    commit: str
    listing: frozenset[str]

    @property
    def origin(self) -> Mapping[str, Any]:
        return _origin(self.repository, self.commit)

    @property
    def where(self) -> str:
        return f"{self.repository} at {self.commit[:12]}"

    @property
    def remedy(self) -> str:
        return (
            f"the repository itself lacks it; see https://huggingface.co/{self.repository}/tree/{self.commit}"
        )

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
                "connect and run the same command again, finished files are kept",
            ) from error


def _look_up(repository: str, revision: str | None) -> _RepositoryFiles:
    """Ask the hub for the commit and its file names.

    Raises:
        ConnectionError: if the hub can't be reached, or may not be.
        SourceError: if it answers with a refusal or a fault, or its files can't be kept here.
    """
    from huggingface_hub import HfApi, hf_hub_download

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT)
        names = frozenset(sibling.rfilename for sibling in info.siblings or ())
        landmark = min(
            names,
            key=lambda name: (name != INDEX_FILE, not name.endswith((".md", ".json")), name),
            default="",
        )
        if landmark and not is_commit(revision):
            # Asked for by branch, so that the cache notes the branch's commit for days without a network.
            hf_hub_download(repository, landmark, revision=revision)
    except client_errors() as error:
        raise translated(error, repository, revision) from error
    return _RepositoryFiles(repository, str(info.sha), names)
