"""The end of a message about an unknown name: the nearest valid one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def did_you_mean(name: str, valid: Collection[str], kind: str) -> str:
    """Return `did you mean …?` if a valid name is near, else the list of valid names.

    Args:
        name: what was written.
        valid: what could have been written.
        kind: what the valid names are, in the plural, such as `passes`.
    """
    import difflib

    nearest = difflib.get_close_matches(name, valid, n=1)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"{kind}: {', '.join(valid)}" if valid else f"there are no {kind}"
