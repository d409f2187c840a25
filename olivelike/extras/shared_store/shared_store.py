"""Results that several machines share: found, fetched into a local store, and given from one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.digest import digest_bytes
from olivelike.errors import DamagedError, UnreachableError
from olivelike.extras.shared_store.address import Address, parse_address
from olivelike.extras.shared_store.record_signatures import RecordSignatures, decoded, read_signatures
from olivelike.extras.shared_store.remote_folder import RemoteFolder
from olivelike.store.folder import checked_digest, is_digest, seal, unseal

if TYPE_CHECKING:
    from olivelike.engine.execute.events import Listener
    from olivelike.engine.execute.sharing import Unshared
    from olivelike.store import Store
    from olivelike.store.actions import Action

MARK: Final = "olivelike-store.json"
_MARK_KIND: Final = "shared-store/1"
_AT_ONCE: Final = 4
"""Transfers of one result at once."""
_TELLING_BYTES: Final = 1 << 20
"""Least bytes that must have moved to say how fast."""


class Traffic:
    """Bytes, results and seconds on the line in one direction; threads add to them."""

    def __init__(self) -> None:
        self.bytes = 0
        self.results = 0
        self.seconds = 0.0
        """Time during which something was on its way."""
        self._moving = 0
        self._since = 0.0
        self._guard = threading.Lock()

    @property
    def bytes_per_second(self) -> float | None:
        """Speed so far; `None` if too little went."""
        return self.bytes / self.seconds if self.seconds > 0 and self.bytes >= _TELLING_BYTES else None

    def add(self, count: int) -> None:
        """Note that bytes have moved."""
        with self._guard:
            self.bytes += count

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Count the time of the block, once where several threads are in one."""
        with self._guard:
            self._moving += 1
            if self._moving == 1:
                self._since = time.monotonic()
        try:
            yield
        finally:
            with self._guard:
                self._moving -= 1
                if not self._moving:
                    self.seconds += time.monotonic() - self._since


def open_shared_store(url: str, where: str) -> SharedStore:
    """Return the store behind a URL, unconnected; raises as `parse_address`, `read_signatures` and the class."""
    return SharedStore(parse_address(url, where), read_signatures())


class SharedStore:
    """Objects and action records behind a URL.

    A result that is damaged, misplaced or not whole counts as absent, and who makes it then puts it anew; so does one
    without a signature that is asked for. Nothing is removed here: another machine may have mended it meanwhile.
    Methods raise `UnreachableError` if the other side fails.
    """

    def __init__(self, address: Address, signatures: RecordSignatures | None = None) -> None:
        """Connect to nothing yet; `check` does.

        Raises `MissingError` if the packages for such a URL are not installed.

        Args:
            address: Its place.
            signatures: Which records are taken, and who signs; by default all, and nobody.
        """
        self.address = address
        self.signatures = signatures or RecordSignatures()
        self.folder = RemoteFolder(address)
        self.fetched, self.sent = Traffic(), Traffic()
        self._damaged: set[str] = set()
        """Keys of results that were found so."""
        self._not_taken: dict[str, str] = {}
        """By key, why the signature of a result did not do."""

    def __str__(self) -> str:
        """Return the address as people may see it."""
        return str(self.address)

    @property
    def writable(self) -> bool:
        """Whether anything is written there."""
        return not self.address.read_only

    @property
    def may_give(self) -> bool:
        """Whether results are given to it."""
        return self.writable and self.signatures.may_give

    def check(self, ends: float | None = None) -> None:
        """Make sure that there is a shared store, or begin one; at least one request.

        Raises `UnreachableError` if there is no bucket, it refuses, it does not answer, or holds something else.
        """
        found = self.folder.read(MARK, ends)
        if found is None and self.writable:
            self.folder.put_new(MARK, seal(_MARK_KIND, {}))
        elif found is None:
            raise UnreachableError(f"{self.address} holds no shared store (no {MARK}), and may only be read")
        else:
            self._check_mark(found)

    def require(self) -> None:
        """Make sure that there is a shared store; nothing is changed.

        Raises `UnreachableError` if there is none, or it can't be reached.
        """
        found = self.folder.read(MARK)
        if found is None:
            raise UnreachableError(
                f"{self.address} holds no shared store (no {MARK}): if the bucket or folder is there, a run that may "
                "write begins one in it; else make that first, or correct the address"
            )
        self._check_mark(found)

    def share(self, store: Store, listener: Listener, run_id: str) -> Unshared:
        """Return what a run asks, fetches from, and gives what it made."""
        from olivelike.extras.shared_store.run_sharing import Sharing

        return Sharing(SharedStore(self.address, self.signatures), store, listener, run_id)

    def look(self, store: Store) -> Unshared:
        """Return what a plan asks; it changes nothing anywhere."""
        from olivelike.extras.shared_store.run_sharing import Sharing

        reader = SharedStore(replace(self.address, read_only=True), self.signatures)
        return Sharing(reader, store, lambda _: None, "plan")

    def pin(self, name: str, keys: Iterable[str]) -> None:
        """Keep results until the pin is removed; another one of this name is replaced."""
        from olivelike.extras.shared_store.pins import put_pin

        put_pin(self.folder, name, keys)

    def find(self, key: str, ends: float | None = None) -> Action | None:
        """Return the record of a result, or `None`; its objects may still be missing."""
        data = self.folder.read(_action(key), ends)
        if data is None:
            return None
        action = decoded(data, key)
        if action is None:
            self._damaged.add(key)
        elif (flaw := self.signatures.flaw(data)) is not None:
            self._not_taken[key] = flaw
            return None
        return action

    def not_taken(self, key: str) -> str | None:
        """Return why the signature of what is there of a result did not do, if it was found so."""
        return self._not_taken.get(key)

    def is_damaged(self, key: str) -> bool:
        """Tell whether what is there of a result was found to be damaged."""
        return key in self._damaged

    def set_damaged(self, key: str) -> None:
        """Note that what is there of a result is not to be used; who makes it puts it anew."""
        self._damaged.add(key)

    def missing_bytes(self, action: Action, store: Store) -> int:
        """Return how many bytes `fetch` would bring."""
        return sum(action.parts[part] for part in _missing(action, store))

    def fetch(
        self,
        action: Action,
        store: Store,
        *,
        ends: float | None = None,
        is_sound: Callable[[Action], bool] = lambda _: True,
    ) -> bool:
        """Bring a result into a local store; tell whether it was whole.

        Raises `UnreachableError` if it could not be brought, `LateError` if not in time, and `StoreError` if the local
        disk refuses.

        Args:
            action: As `find` gave it.
            store: What it lacks is fetched; nothing else changes.
            ends: When to give up, by `monotonic`.
            is_sound: Tells, once all parts are in the store, whether to record the result there.
        """
        with self.fetched.moving(), store.scratch() as scratch, ThreadPoolExecutor(_AT_ONCE) as threads:

            def bring(part: str) -> bool:
                path = scratch / part
                if not self.folder.download(_object(part), path, action.parts[part], ends=ends, moved=self.fetched.add):
                    return False
                try:
                    store.put_file(path, part)
                except DamagedError:
                    return False
                return True

            whole = all(list(threads.map(bring, _missing(action, store))))
        if not whole or _missing(action, store) or not is_sound(action):
            self._damaged.add(action.key)
            return False
        store.put_action(action)
        self.fetched.results += 1
        return True

    def content(self, digest: str) -> bytes | None:
        """Return a small object, or `None` if it is absent or damaged."""
        data = self.folder.read(_object(digest))
        return data if data is not None and digest_bytes(data) == digest else None

    def give(self, action: Action, store: Store, *, anew: bool = False) -> bool:
        """Put a result of a local store, objects first; tell whether the record was not there yet.

        Raises `DamagedError` if the local store lost an object.

        Args:
            action: As recorded in the store.
            store: Where its objects lie; one that is damaged there is an error.
            anew: Replace what is there, as it is done with what was found damaged.
        """
        data, anew = self.signatures.encoded(action), anew or action.key in self._damaged
        anew = anew or (action.key in self._not_taken and self.signatures.may_replace)
        with self.sent.moving(), ThreadPoolExecutor(_AT_ONCE) as threads:

            def put(part: str) -> None:
                if not anew and self.folder.size(_object(part)) == action.parts[part]:
                    return
                if not store.check_object(part):
                    raise DamagedError(f"the object {part[:12]} was lost or damaged; run again to remake it")
                self.folder.upload(store.object_path(part), _object(part))
                self.sent.add(action.parts[part])

            list(threads.map(put, action.parts))
            if anew:
                self.folder.put(_action(action.key), data)
            elif not self.folder.put_new(_action(action.key), data):
                return False
        self.sent.results += 1
        return True

    def all_keys(self) -> list[str]:
        """Return the keys of all results."""
        found = (Path(file.name).stem for file in self.folder.files("actions"))
        return sorted(key for key in found if is_digest(key))

    def has(self, key: str) -> bool:
        """Tell whether there is a record of a result."""
        return self.folder.size(_action(key)) is not None

    def _check_mark(self, mark: bytes) -> None:
        if unseal(_MARK_KIND, mark) is None:
            raise UnreachableError(f"{self.address} holds a store of another version of olivelike; take another folder")


def _missing(action: Action, store: Store) -> list[str]:
    return [part for part, size in action.parts.items() if store.object_size(part) != size]


def _object(digest: str) -> str:
    return f"objects/{checked_digest(digest)[:2]}/{digest}"


def _action(key: str) -> str:
    return f"actions/{checked_digest(key)[:2]}/{key}.json"
