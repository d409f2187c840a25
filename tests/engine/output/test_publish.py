"""Publishing an output: all of it, or nothing, whatever happens."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from output_folders import MINE, NEW, OLD, content, is_whole, publish_files

from olivelike.engine.output.data_files import HashedFile
from olivelike.engine.output.output_files import write_file
from olivelike.engine.output.publication import check_is_ours, recover
from olivelike.engine.output.staging import staging_folder
from olivelike.errors import StoreError, UsageError
from olivelike.model.records.output import JOURNAL_FILE


def add_mine(output):
    for path, data in MINE.items():
        write_file(output / path, data)


def test_a_new_output_holds_what_was_staged(tmp_path):
    publish_files(tmp_path / "models" / "out", OLD)
    assert is_whole(tmp_path / "models" / "out", OLD)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["out"]


def test_a_new_output_appears_with_one_rename(tmp_path, monkeypatch):
    moves = []
    for name in ("rename", "replace"):
        original = getattr(Path, name)
        monkeypatch.setattr(
            Path, name, lambda path, to, original=original: (moves.append(Path(to)), original(path, to))[1]
        )
    publish_files(tmp_path / "out", OLD)
    assert moves == [tmp_path / "out"]


def test_files_that_the_output_no_longer_has_go_with_their_folders_and_the_users_own_stay(tmp_path):
    publish_files(tmp_path / "out", OLD)
    add_mine(tmp_path / "out")
    publish_files(tmp_path / "out", NEW)
    assert content(tmp_path / "out") == NEW | MINE
    assert not (tmp_path / "out" / "safety_checker").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_did_not_change_is_not_touched(tmp_path):
    publish_files(tmp_path / "out", OLD)
    before = (tmp_path / "out" / "vae_decoder" / "model.onnx").stat()
    publish_files(tmp_path / "out", NEW)
    after = (tmp_path / "out" / "vae_decoder" / "model.onnx").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_an_empty_folder_may_be_the_output(tmp_path):
    (tmp_path / "out").mkdir()
    publish_files(tmp_path / "out", NEW)
    assert is_whole(tmp_path / "out", NEW)


def test_a_link_may_be_the_output(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real", target_is_directory=True)
    publish_files(tmp_path / "out", OLD)
    publish_files(tmp_path / "out", NEW)
    assert (tmp_path / "out").is_symlink()
    assert is_whole(tmp_path / "disk" / "real", NEW)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]


def test_names_with_special_characters_are_names(tmp_path):
    (tmp_path / ".[x]*.staging-999999999-0123abcd").mkdir()
    publish_files(tmp_path / "[x]*", OLD)
    publish_files(tmp_path / "[x]*", NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["[x]*"]


@pytest.mark.parametrize(
    "template", ["nothing", *(pytest.param(one, marks=pytest.mark.slow) for one in ("empty", "old")), "old and mine"]
)
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_output_and_the_next_run_completes_it(tmp_path, template):
    output = tmp_path / "template" / "out"
    output.parent.mkdir()
    if template == "empty":
        output.mkdir()
    if template.startswith("old"):
        publish_files(output, OLD)
    if template == "old and mine":
        add_mine(output)
    script = Path(__file__).with_name("killed_while_publishing.py")
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    cases = sorted(path for path in tmp_path.iterdir() if path.name != "template")
    assert len(cases) > 10
    journals = 0
    for case in cases:
        found = case / "out"
        if (found / JOURNAL_FILE).exists():
            journals += 1
            check_is_ours(found)
            assert recover(found)
            assert is_whole(found, NEW)
        elif found.exists() and content(found):
            assert is_whole(found, OLD) or is_whole(found, NEW)
        publish_files(found, NEW)
        assert is_whole(found, NEW)
        assert [path.name for path in case.iterdir()] == ["out"]
        assert recover(found) is False
        if template == "old and mine":
            assert MINE.items() <= content(found).items()
    assert (journals > 5) == (template != "nothing")


@pytest.mark.parametrize("template", ["nothing", "old and mine"])
def test_a_full_disk_at_any_moment_leaves_the_output_as_it_was_or_completed_by_the_next_run(
    tmp_path, template, monkeypatch
):
    number, failures = 0, 0
    while True:
        number += 1
        output = tmp_path / str(number) / "out"
        output.parent.mkdir()
        if template != "nothing":
            publish_files(output, OLD)
            add_mine(output)
        with monkeypatch.context() as patch:
            fail_at(patch, number)
            try:
                publish_files(output, NEW)
                break
            except StoreError as error:
                assert "free some space" in str(error)
                failures += 1
        if recover(output):
            assert is_whole(output, NEW)
        elif template == "nothing":
            assert not output.exists() or is_whole(output, NEW)
        else:
            assert is_whole(output, OLD)
        assert [path.name for path in output.parent.iterdir()] in ([], ["out"])
    assert failures > 5


def fail_at(patch, number):
    """Let the disk be full at the operation of this number."""
    left = [number]

    def failing(original):
        def operation(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        return operation

    for owner, name in ((Path, "rename"), (Path, "replace"), (Path, "mkdir"), (os, "fsync"), (os, "rename")):
        patch.setattr(owner, name, failing(getattr(owner, name)))


LIMITED = """
import resource, sys
from pathlib import Path
from olivelike.errors import StoreError
from output_folders import NEW, publish_files

resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    publish_files(Path(sys.argv[1]), NEW | {"unet/weights.pb": bytes(10_000)})
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_file_that_does_not_fit_leaves_the_output_as_it_was(tmp_path):
    publish_files(tmp_path / "out", OLD)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "out"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"can't write to .*weights.pb: File too large; free some space, or choose another", done.stdout)
    assert is_whole(tmp_path / "out", OLD)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_an_error_with_a_remedy(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="make it writable, or choose another folder with --output"):
        staging_folder(tmp_path / "out")


def test_a_folder_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="holds files that olivelike did not write"):
        check_is_ours(tmp_path)


def test_a_folder_whose_record_is_damaged_is_refused(tmp_path):
    publish_files(tmp_path / "out", OLD)
    (tmp_path / "out" / "olivelike.json").write_text("{")
    with pytest.raises(UsageError, match="no readable olivelike.json"):
        check_is_ours(tmp_path / "out")


def test_a_file_in_the_place_of_the_output_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file; name a folder"):
        check_is_ours(tmp_path / "out")


def test_an_output_of_ours_an_empty_folder_and_none_are_accepted(tmp_path):
    publish_files(tmp_path / "out", OLD)
    (tmp_path / "empty").mkdir()
    for name in ("out", "empty", "absent"):
        check_is_ours(tmp_path / name)


STAGED = """
import sys
from pathlib import Path
from olivelike.engine.output.staging import staging_folder

for name in ("out", "output"):
    (staging_folder(Path(sys.argv[1], name)) / "model.onnx").write_bytes(b"begun")
"""


def test_staging_folders_of_dead_processes_go_and_those_of_live_ones_stay(tmp_path):
    subprocess.run([sys.executable, "-c", STAGED, tmp_path], check=True)
    [dead] = tmp_path.glob(".out.staging-*")
    [other] = tmp_path.glob(".output.staging-*")
    live = staging_folder(tmp_path / "out").parent
    made = staging_folder(tmp_path / "out").parent
    assert set(tmp_path.iterdir()) == {live, other, made}
    assert not dead.exists()


@pytest.mark.parametrize(
    "name", [".out.staging-notes", ".out.staging-999999999-0123abcd", ".out.staging-publishing-0123abcd"]
)
def test_folders_of_the_user_that_are_named_like_ours_stay(tmp_path, name):
    subprocess.run([sys.executable, "-c", STAGED, tmp_path], check=True)
    [ours] = tmp_path.glob(".out.staging-*")
    shutil.copytree(ours, tmp_path / name)  # with all that is in one of ours, but from elsewhere
    (tmp_path / name / "thesis.tex").write_text("mine")
    publish_files(tmp_path / "out", OLD)
    assert not ours.exists()
    assert (tmp_path / name / "thesis.tex").read_text() == "mine"
    assert (tmp_path / name / "files" / "model.onnx").read_bytes() == b"begun"


FORGED = [
    "", "{", "[]", "3", "null", '{"staging": "x"}', "[" * 100_000,
    '{"staging": "/", "moved": [], "gone": ["../f"]}',
    '{"kind": "journal/1", "output": 1, "staging": "x", "proof": [], "moved": {}, "replaced": {}, "gone": []}',
]  # fmt: skip


@pytest.mark.parametrize("text", FORGED)
def test_a_journal_that_did_not_begin_here_is_refused_and_nothing_is_done(tmp_path, text):
    publish_files(tmp_path / "out", OLD)
    (tmp_path / "f").write_text("mine")
    (tmp_path / "out" / JOURNAL_FILE).write_text(text)
    for act in (check_is_ours, recover, staging_folder):
        with pytest.raises(UsageError, match="is damaged, or did not begin here"):
            act(tmp_path / "out")
    assert content(tmp_path / "out").items() >= OLD.items()
    assert (tmp_path / "f").read_text() == "mine"


def killed_under_its_journal(tmp_path):
    """Return an output that a killed process left with its journal."""
    output = tmp_path / "template" / "out"
    publish_files(output, OLD)
    script = Path(__file__).with_name("killed_while_publishing.py")
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    return next(path.parent for path in sorted(tmp_path.glob(f"*/out/{JOURNAL_FILE}")))


def test_a_copy_of_a_half_published_output_is_refused_and_the_original_completed(tmp_path):
    output = killed_under_its_journal(tmp_path)
    shutil.copytree(output.parent, tmp_path / "copy")
    before = content(tmp_path / "copy" / "out")
    with pytest.raises(UsageError, match="the folder was copied or is someone else's"):
        recover(tmp_path / "copy" / "out")
    assert content(tmp_path / "copy" / "out") == before
    output.parent.rename(tmp_path / "moved")
    assert recover(tmp_path / "moved" / "out")
    assert is_whole(tmp_path / "moved" / "out", NEW)


def test_nothing_is_fetched_through_a_link_in_a_staging_folder(tmp_path):
    output = killed_under_its_journal(tmp_path)
    journal = json.loads((output / JOURNAL_FILE).read_bytes())
    staged = output.parent / journal["staging"] / "files"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    (staged / "notes").symlink_to(tmp_path / "mine")
    journal["moved"]["notes/notes"] = {"size": 4, "sha256": ""}
    (output / JOURNAL_FILE).write_text(json.dumps(journal))
    assert recover(output)
    assert (tmp_path / "mine" / "notes").read_text() == "mine"
    assert is_whole(output, NEW)


def test_a_file_put_in_the_way_of_a_half_published_output_stays(tmp_path):
    output = killed_under_its_journal(tmp_path)
    journal = json.loads((output / JOURNAL_FILE).read_bytes())
    name = next(name for name in reversed(journal["moved"]) if name != "olivelike.json")
    write_file(output / name, b"mine")
    with pytest.raises(UsageError, match=name):
        recover(output)
    assert (output / name).read_bytes() == b"mine"
    (output / name).unlink()
    assert recover(output)
    assert is_whole(output, NEW)


def test_a_file_of_the_user_is_never_replaced(tmp_path):
    publish_files(tmp_path / "out", OLD)
    write_file(tmp_path / "out" / "vae_encoder" / "model.onnx", b"mine")
    with pytest.raises(UsageError, match=r"must go: vae_encoder/model\.onnx; move them away"):
        publish_files(tmp_path / "out", NEW)
    assert content(tmp_path / "out") == OLD | {"vae_encoder/model.onnx": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_changed_file_that_the_output_no_longer_has_stays(tmp_path):
    publish_files(tmp_path / "out", OLD)
    write_file(tmp_path / "out" / "safety_checker" / "model.onnx", b"mine")
    publish_files(tmp_path / "out", NEW)
    assert content(tmp_path / "out") == NEW | {"safety_checker/model.onnx": b"mine"}


def test_nothing_is_written_through_a_link(tmp_path):
    publish_files(tmp_path / "out", OLD)
    shutil.move(tmp_path / "out" / "unet", tmp_path / "elsewhere")
    (tmp_path / "out" / "unet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="files or links .* must go: unet; move them away"):
        publish_files(tmp_path / "out", NEW)
    assert (tmp_path / "elsewhere" / "model.onnx").read_bytes() == OLD["unet/model.onnx"]


def test_a_disk_that_cannot_sync_folders_takes_an_output(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    publish_files(tmp_path / "out", OLD)
    publish_files(tmp_path / "out", NEW)
    assert is_whole(tmp_path / "out", NEW)


def test_a_writer_hears_of_any_error_of_its_file(tmp_path):
    with pytest.raises(BufferError), HashedFile(tmp_path / "file") as file:
        for _ in range(10):
            file.write(memoryview(b"abcdef")[::2])
