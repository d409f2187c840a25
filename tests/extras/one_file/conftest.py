"""Sessions that leave the other cores to the other processes of the suite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.conftest import checkpoints, project, template  # noqa: F401


@pytest.fixture(scope="session")
def settings(one_torch_thread):
    """Return settings for sessions of one thread."""
    from olivelike.runtime import SessionSettings

    return replace(SessionSettings(), intra_threads=1)
