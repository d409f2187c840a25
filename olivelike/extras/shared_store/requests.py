"""Requests that end: each has a time without a byte that it may take, and is repeated where that may help."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from olivelike.errors import UnreachableError

if TYPE_CHECKING:
    from olivelike.extras.shared_store.address import Address

Result = TypeVar("Result")

_PAUSES: Final = (0.1, 0.4, 1.6)
"""Seconds before a request is repeated; each is varied, so that many machines do not come back at once."""
_REFUSALS: Final = frozenset({401, 403})
_POLL_SECONDS: Final = 0.1
_NEVER: Final = threading.Event()


class LateError(UnreachableError):
    """Nobody wants the answer any longer; it may be on its way."""


class AbandonedError(Exception):
    """Raised inside of a transfer that nobody waits for any longer."""


class Pulse:
    """Whether a transfer still moves; told by its thread, asked by who waits for it."""

    def __init__(self, ends: float | None = None) -> None:
        """Begin now; it may take until `ends`, by `monotonic`."""
        self.ends = ends
        self.last = time.monotonic()
        self.abandoned = False

    def beat(self) -> None:
        """Note that bytes have come or gone; raises `AbandonedError` if nobody waits for more."""
        self.last = time.monotonic()
        if self.abandoned:
            raise AbandonedError

    @property
    def is_over(self) -> bool:
        """Whether it has had its time."""
        return self.ends is not None and time.monotonic() > self.ends

    def is_quiet(self, seconds: float) -> bool:
        """Tell whether nothing has moved for so long."""
        return time.monotonic() - self.last > seconds


def ask(
    address: Address,
    task: str,
    call: Callable[[Pulse], Result],
    ends: float | None = None,
    stopped: threading.Event | None = None,
) -> Result:
    """Return what a call of a library returns; it may be made several times.

    Args:
        address: Where the request goes.
        task: What it is for, as in `could not TASK`.
        call: Makes the request and tells the pulse of each piece.
        ends: When nobody wants the answer any longer, by `monotonic`.
        stopped: Set when nobody wants any answer any longer.

    Raises:
        FileNotFoundError: if there is no such file.
        FileExistsError: if there is one already.
        UnreachableError: if it is refused, does not answer, or fails each time.
        LateError: if there is no answer when it ends.
    """
    for pause in (*_PAUSES, None):
        try:
            return _once(call, Pulse(ends), address.timeout_seconds, stopped or _NEVER)
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # noqa: BLE001  (each library has its own)
            message = f"could not {task} {address}: {_told(error, address)}"
            if isinstance(error, AbandonedError):
                raise LateError(message) from None
            if pause is None or _is_final(error):
                raise UnreachableError(message) from None
        if (stopped or _NEVER).wait(pause * random.uniform(0.5, 1.5)):  # noqa: S311  (no secret)
            raise LateError(message)
    raise AssertionError


def _once(call: Callable[[Pulse], Result], pulse: Pulse, quiet_seconds: float, stopped: threading.Event) -> Result:
    """Make the call in a thread of its own: no library's own time limit covers all that can hang."""
    answer: list[Result] = []
    failure: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            answer.append(call(pulse))
        except BaseException as error:  # noqa: BLE001  (raised again by who waits)
            failure.append(error)
        ended.set()

    threading.Thread(target=work, name="shared store", daemon=True).start()
    while not ended.wait(_POLL_SECONDS):
        if pulse.is_over or stopped.is_set():
            pulse.abandoned = True
            raise AbandonedError("it takes too long")
        if pulse.is_quiet(quiet_seconds):
            pulse.abandoned = True
            raise TimeoutError
    if failure:
        raise failure[0]
    return answer[0]


def _is_final(error: BaseException) -> bool:
    """Tell whether it would be the same if it were asked again; a time that was waited in vain is not spent twice."""
    name = type(error).__name__
    refused = isinstance(error, PermissionError) or getattr(error, "status", None) in _REFUSALS
    return refused or isinstance(error, (TimeoutError, ValueError, TypeError)) or "Credentials" in name


def _told(error: BaseException, address: Address) -> str:
    """Return what went wrong in one line, with a remedy where there is one."""
    from olivelike._untrusted import one_line

    said = address.without_secrets(one_line(str(error)))[:300]
    if isinstance(error, AbandonedError):
        return "it takes too long"
    if isinstance(error, TimeoutError):
        return f"there was no answer in time ({address.timeout_seconds:g} s; `?timeout=SECONDS` gives it more)"
    if isinstance(error, PermissionError) or getattr(error, "status", None) in _REFUSALS:
        return f"it refuses these credentials ({said or 'forbidden'}); see docs/store.md for where they come from"
    if "Credentials" in type(error).__name__:
        return f"there are no credentials ({said}); see docs/store.md for where they come from"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def transfer_callback(pulse: Pulse, most: int | None, moved: Callable[[int], None] | None = None) -> Any:
    """Return what fsspec tells of each piece of a transfer.

    A transfer of more than `most` bytes is ended: a strange bucket could send for ever.
    """
    from fsspec.callbacks import Callback

    class Told(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            pulse.beat()
            super().relative_update(inc)
            if moved is not None:
                moved(inc)
            if most is not None and self.value > most:
                raise ValueError(f"it has more than the {most} bytes that it should have")

    return Told()
