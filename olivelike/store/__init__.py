"""The content-addressed home of results: objects, actions, runs, garbage collection.

The store knows nothing of passes or plans. Files are the truth; the index is a hint.

| module | holds |
| --- | --- |
| `store` | what the engine and the command line see |
| `folder` | where entries lie; how one is written whole, read, set aside if damaged; which processes use them |
| `objects`, `actions`, `runs`, `roots` | each kind of entry |
| `upkeep` | freeing space; checking every byte |
| `index` | hints, in a diskcache database |
"""

from olivelike.store.actions import Action
from olivelike.store.objects import ObjectWriter
from olivelike.store.roots import Root
from olivelike.store.runs import new_run_id
from olivelike.store.store import Store

__all__ = ["Action", "ObjectWriter", "Root", "Store", "new_run_id"]
