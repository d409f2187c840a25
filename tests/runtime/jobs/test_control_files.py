"""Pictures that lead, as options of a command name them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from olivelike.runtime.jobs.control_files import parse_control


@pytest.mark.parametrize(
    ("text", "net", "file", "strength"),
    [
        ("a=b.png", None, "a=b.png", 1.0),
        ("n,ä=m e=a=b.png:0.5", "n,ä=m e", "a=b.png", 0.5),
        ("depth=a=b.png", "depth", "a=b.png", 1.0),
        ("depth=none=there.png", "depth", "none=there.png", 1.0),
    ],
)
def test_names_and_files_may_have_equals_signs(text, net, file, strength, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b.png").touch()
    found = parse_control(text)
    assert (found.net, found.image, found.strength) == (net, Path(file), strength)


def test_a_strength_that_is_no_number_is_not_taken_for_a_name():
    found = parse_control("edges.png:nan")
    assert found.image == Path("edges.png")
    assert math.isnan(found.strength)
