"""Pictures that lead, as options of a command name them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from olivelike.errors import UsageError
from olivelike.runtime.jobs.control_files import initial_pictures, parse_control


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


@pytest.mark.parametrize(
    ("text", "net", "strength", "preprocessor"),
    [
        ("a.png:invert", None, 1.0, "invert"),
        ("edges=a.png:0.5:scribble_xdog", "edges", 0.5, "scribble_xdog"),
        ("a.png:none:2", None, 2.0, "none"),
        ("a.png", None, 1.0, "canny"),
    ],
)
def test_what_is_made_of_a_picture_stands_behind_it(text, net, strength, preprocessor):
    found = parse_control(text, preprocessor="canny")
    assert (found.net, found.image, found.strength, found.preprocessor) == (net, Path("a.png"), strength, preprocessor)


def test_a_strength_that_is_no_number_is_not_taken_for_a_name():
    found = parse_control("edges.png:nan")
    assert found.image == Path("edges.png")
    assert math.isnan(found.strength)


@pytest.mark.parametrize("given", ["**.png", "locked"])
def test_what_can_not_be_looked_through_for_initial_pictures_is_told(given, tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UsageError, match=r"^--init-image .*; name a picture, a folder, or a pattern such as"):
        initial_pictures([tmp_path / given])
