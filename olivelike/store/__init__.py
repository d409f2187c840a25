"""The content-addressed home of results: objects, actions, runs, locks, garbage collection.

The store knows nothing of passes or plans. Files are the truth; the index is a hint. What the maintenance
commands report is in `olivelike.store.reports`.
"""

from olivelike.store.action import Action
from olivelike.store.locks import KeyLock
from olivelike.store.objects import ObjectWriter
from olivelike.store.roots import Root
from olivelike.store.runs import new_run_id
from olivelike.store.store import Store

__all__ = [
    "Action",
    "KeyLock",
    "ObjectWriter",
    "Root",
    "Store",
    "new_run_id",
]
