"""Pace of previews while pictures are drawn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from olivelike.runtime.pictures import preview_file
from olivelike.runtime.pictures.preview_file import Pace


def test_the_first_preview_loads_what_all_need_and_only_later_ones_are_a_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(preview_file, "time", SimpleNamespace(monotonic=lambda: now))
    pace = Pace(0.25)
    assert pace.due()
    pace.took(3.0)
    now += 0.2
    assert not pace.due()
    now += 0.1
    assert pace.due()
    pace.took(0.5)
    now += 4.9
    assert not pace.due()
    now += 0.2
    assert pace.due()
