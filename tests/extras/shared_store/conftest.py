"""A shared store in a new bucket, and stores of several machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from olivelike.extras.shared_store import run_sharing
from olivelike.extras.shared_store.shared_store import SharedStore
from olivelike.store import Store
from tests.engine.conftest import checkpoints, project, template  # noqa: F401
from tests.extras.shared_store.shared_results import shared
from tests.fixtures.faulty_bucket import FaultyBucket


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Wait for a bucket however slow a machine is; tests of waiting say how long."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("PATIENCE", "CONTACT", "NEGLIGIBLE", "LAST", "GOODBYE"):
            patched.setattr(run_sharing, f"_{name}_SECONDS", 600.0)
        yield


@pytest.fixture
def there(bucket: FaultyBucket) -> SharedStore:
    """A shared store in a new bucket."""
    made = shared(bucket)
    made.check()
    bucket.requests.clear()
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Store]:
    """Returns the store of a machine, by its name."""
    return lambda name: Store.open(tmp_path / name)
