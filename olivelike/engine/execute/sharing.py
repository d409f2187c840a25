"""A store that several machines share, as far as runs know of it: an extra has it, and this is what it is asked.

Whatever it answers is checked as results of strangers are: `Question` says what a record and its objects must be.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from olivelike._extras import needed, offered
from olivelike._text import did_you_mean
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from olivelike.engine.execute.events import Listener
    from olivelike.engine.plan.question import Question
    from olivelike.store import Action, Store

VARIABLE: Final = "OLIVELIKE_SHARED_CACHE"
"""Names the shared store where the command line names none."""


@dataclass(frozen=True)
class Found:
    """A shared store's answer to a question for a result."""

    action: Action | None = None
    """The result, which is in the local store now."""
    reason: str = ""
    """Name of the place that it is from, or why it was not fetched."""


class Unshared:
    """No shared store: nothing is found in it, and nothing is given to it."""

    def fetched(self, question: Question, expected_seconds: float | None) -> Found | None:  # noqa: ARG002
        """Return what came of asking for a result, or `None` while it is asked or fetched.

        Args:
            question: What the result has to answer.
            expected_seconds: How long making it is expected to take here, if that is known.
        """
        return Found()

    def waits_for(self, key: str) -> str | None:  # noqa: ARG002
        """Return what of a result is being fetched, if that may take a while."""
        return None

    def look(self, question: Question) -> Found:  # noqa: ARG002
        """Return a result's record without fetching it."""
        return Found()

    def content(self, digest: str) -> bytes | None:  # noqa: ARG002
        """Return a small object without storing it."""
        return None

    def use(self, key: str) -> None:
        """Note that a stored result is used."""

    def offer(self, action: Action, *, anew: bool = False) -> None:
        """Give a result that was made, in the background; with `anew`, in place of what is there."""

    def close(self, *, hurry: bool = False) -> None:
        """Wait for what is being given, as long as that is worth it, and end all requests."""

    def problems(self) -> list[str]:
        """Return what went wrong and was not told yet; each thing once."""
        return []


class Backend(Protocol):
    """A store behind a URL; as text, its address without user and password.

    `STORES` of an extra maps kinds of URLs to functions of a URL, and of what messages call that. They connect to
    nothing, and raise `UsageError` for what is no such URL, `MissingError` if packages for it are not installed.
    """

    @property
    def writable(self) -> bool:
        """Whether results are given to it."""

    def require(self) -> None:
        """Make sure that there is such a store, and change nothing; raises `UnreachableError`."""

    def has(self, key: str) -> bool:
        """Tell whether there is a record of a result."""

    def pin(self, name: str, keys: Iterable[str]) -> None:
        """Keep results from being collected; another pin of this name is replaced."""

    def share(self, store: Store, listener: Listener, run_id: str) -> Unshared:
        """Return what a run asks, fetches into its own store from, and gives what it made."""

    def look(self, store: Store) -> Unshared:
        """Return what a plan asks; it changes nothing anywhere."""


def shared_backend(named: str | None, where: str = "--cache-dir") -> Backend | None:
    """Return the shared store: as named, else as `$OLIVELIKE_SHARED_CACHE` says, else none.

    Raises `UsageError` for what is no such URL, and `MissingError` if the extra for shared stores, or a package for
    such a URL, is not here.
    """
    if not named:
        named, where = os.environ.get(VARIABLE, "").strip(), f"${VARIABLE}"
    if not named:
        return None
    kind = "".join(re.findall(r"\A\s*([A-Za-z][A-Za-z0-9+.-]*):", named)).lower()
    if (kinds := offered("STORES")) and kind not in kinds:
        meant = did_you_mean(kind, kinds, "kinds of shared stores")
        raise UsageError(f"{where}: there is no kind of store {kind!r}; {meant}")
    backend: Backend = needed("STORES", kind, f"{where} with a URL")(named, where)
    return backend


def open_sharing(shared: Backend | None, store: Store, listener: Listener, run_id: str) -> Unshared:
    """Return what a run asks, or what knows nothing: a store that can't be written can't hold what is fetched."""
    return Unshared() if shared is None or not store.writable else shared.share(store, listener, run_id)


def open_for_looking(shared: Backend | None, store: Store) -> Unshared:
    """Return what a plan asks, which changes nothing anywhere."""
    return Unshared() if shared is None else shared.look(store)
