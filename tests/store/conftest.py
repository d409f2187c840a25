"""Stores in temporary folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from olivelike.store import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "cache")
