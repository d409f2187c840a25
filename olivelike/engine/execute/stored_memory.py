"""What passes remember from one execution to the next, in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.engine.keys.formulas import question_digest
from olivelike.pass_api import Cache

if TYPE_CHECKING:
    from olivelike.store import Store


class StoredCache(Cache):
    """Answers under the digest of a pass's code and the question; what the store loses is asked again."""

    def __init__(self, store: Store, maker: str) -> None:
        """Serve one pass; `maker` is the digest of its code and tools."""
        self._store, self._maker = store, maker

    def get(self, question: Any) -> Any:
        """Return the answer to a question, or `None`."""
        return self._store.recall_json("memory", question_digest(self._maker, question))

    def put(self, question: Any, answer: Any) -> None:
        """Keep an answer."""
        self._store.remember_json("memory", question_digest(self._maker, question), answer)
