from __future__ import annotations

import os
from pathlib import Path

import pytest

from olivelike._files import files_below


def test_files_come_in_the_order_of_their_paths(tmp_path):
    for name in ("b/x.txt", "a.txt", "a/z.txt", "a-b.txt", "a/b/c.txt", "B.TXT", "é.txt", "c.bin", ".txt", "d.e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "e.txt").mkdir()
    (tmp_path / "e.txt" / "inside.txt").touch()
    found = [(Path(path), place) for path, place in files_below(tmp_path, (".txt",))]
    there = [one for one in sorted(tmp_path.rglob("*")) if one.suffix.lower() == ".txt" and one.is_file()]
    assert found == [(one, one.relative_to(tmp_path).with_suffix("").as_posix()) for one in there]


def test_links_to_folders_are_not_gone_through_and_those_to_files_are_files(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "one.txt").touch()
    try:
        (folder / "all").symlink_to(elsewhere)
    except OSError:
        pytest.skip("nothing may make links here")
    (folder / "linked.txt").symlink_to(elsewhere / "one.txt")
    (folder / "gone.txt").symlink_to(elsewhere / "none.txt")
    assert [place for _, place in files_below(folder, (".txt",))] == ["gone", "linked"]


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_folder_that_may_not_be_read_is_empty(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "a.txt").touch()
    assert [place for _, place in files_below(tmp_path, (".txt",))] == ["a"]


def test_a_folder_that_is_not_there_is_empty(tmp_path):
    assert list(files_below(tmp_path / "none", (".txt",))) == []
    (tmp_path / "file").touch()
    assert list(files_below(tmp_path / "file", (".txt",))) == []
