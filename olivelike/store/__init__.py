"""The content-addressed home of results: objects, actions, runs, locks, garbage collection.

The store knows nothing of passes or plans. Files are the truth; the index is a hint.
"""

from olivelike.store.action import Action
from olivelike.store.objects import ObjectWriter
from olivelike.store.reports import Entry, GcReport, Problem, StoreSize, VerifyReport
from olivelike.store.roots import Root
from olivelike.store.runs import new_run_id
from olivelike.store.store import Store

__all__ = [
    "Action",
    "Entry",
    "GcReport",
    "ObjectWriter",
    "Problem",
    "Root",
    "Store",
    "StoreSize",
    "VerifyReport",
    "new_run_id",
]
