"""Memory that is not there, as an error of ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from olivelike.errors import SessionError
from olivelike.runtime.sessions.session_failures import lacks_memory, reason

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def memory_errors(size: tuple[int, int] | None, pictures: int) -> Iterator[None]:
    """Turn what torch raises when it can't have a tensor into a `SessionError` that names size and batch.

    Raises:
        SessionError: if the block runs out of memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On the CPU torch has no class of its own for it.
        if not (lacks_memory(error) or "allocate memory" in str(error)):
            raise
        what = f"{size[0]}x{size[1]}" if size else "this size"
        raise SessionError(
            f"out of memory for {pictures} at once of {what} ({reason(error)}); "
            "take a smaller size or batch size, or decode pictures singly"
        ) from error
