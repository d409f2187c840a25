"""A run that has nothing to do, typed again: answered from its receipt as long as all that decided it is as it was."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.cli import main, receipt
from olivelike.testing.models import traced_graph

COMMAND = ["run", "workflows/little.yaml"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="receipts are for systems where all looks can be noted")


@pytest.fixture
def run(project, tmp_path, monkeypatch, capsys):
    """Type `olivelike run` in this process; return what it wrote, and whether it came from a receipt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(receipt, "_SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(receipt, "_VOLATILE", receipt._VOLATILE | {"PYTEST_CURRENT_TEST"})

    def run(*arguments: str) -> tuple[str, bool]:
        typed = [*COMMAND, *arguments]
        monkeypatch.setattr(sys, "argv", ["olivelike", *typed])
        again = receipt.told_again(typed) is not None
        capsys.readouterr()
        thresholds = gc.get_threshold()
        with pytest.raises(SystemExit) as ended:
            main()
        gc.set_threshold(*thresholds)  # Those of a command are for one process.
        found = capsys.readouterr()
        assert ended.value.code in {0, 2, 3, 4}, found.err
        return found.out + found.err, again

    return run


@pytest.fixture
def told(run):
    """The same, after a run that left its receipt."""
    assert any(run()[1] for _ in range(4)), "no receipt"  # The first may still write hints.
    return run


def test_the_same_words_come_without_a_second_look(told):
    text, again = told()
    assert again
    assert text.startswith("little: nothing to do, models/little is up to date (5 of 5 nodes stored, ")


def test_a_process_that_has_a_receipt_imports_no_library(told):
    heavy = "{'pydantic', 'typer', 'yaml', 'rich', 'sqlite3', 'dataclasses'}"
    script = "import sys; from olivelike.cli import main, receipt; sys.argv = ['olivelike', *sys.argv[1:]]\n"
    script += "receipt._SETTLED_SECONDS = 0.0\n"
    script += f"try: main()\nfinally: print(sorted({heavy} & set(sys.modules)))"

    def start() -> str:
        done = subprocess.run([sys.executable, "-c", script, *COMMAND], check=True, capture_output=True, text=True)
        return done.stdout

    # Its environment is its own, and some of the first may write hints, once files are two seconds old.
    assert any(start().splitlines()[-1] == "[]" for _ in range(6))


def test_a_process_listens_once_however_many_commands_it_runs(monkeypatch):
    """What listens stays to the end of a process, and is told of all that happens in it."""
    with receipt.Witness():
        pass
    monkeypatch.setattr(sys, "addaudithook", lambda _: pytest.fail("listens again"))
    with receipt.Witness():
        pass
    assert not receipt._witnesses


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def same_length(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


CHANGES = {
    "the workflow": lambda: rewrite(Path("workflows/little.yaml"), "label]", "{label: {text: other}}]"),
    "a plugin": lambda: rewrite(Path("plugins/passes_for_tests.py"), "Name the graph.", "Name graphs."),
    "one plugin more": lambda: Path("plugins/another.py").write_text("broken ("),
    "weights": lambda: same_length(next(Path("checkpoint/text_encoder").glob("*.safetensors"))),
    "a config": lambda: rewrite(Path("checkpoint/text_encoder/config.json"), "{", '{"note": 1,'),
    "a file of the output": lambda: same_length(Path("models/little/text_encoder/model.onnx")),
    "no file of the output": lambda: Path("models/little/text_encoder/weights.pb").unlink(),
    "the output's record": lambda: Path("models/little/olivelike.json").unlink(),
    "a journal": lambda: Path("models/little/.olivelike-journal.json").write_text("{}"),
    "no store": lambda: shutil.rmtree("cache"),
    "a lost result": lambda: next(path for path in Path("cache/actions").rglob("*.json")).unlink(),
    "a lost object": lambda: next(path for path in Path("cache/objects").rglob("*") if path.is_file()).unlink(),
    "no checkpoint": lambda: Path("checkpoint").rename("elsewhere"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_looked_at(told, change, monkeypatch):
    CHANGES[change]()
    monkeypatch.setattr("olivelike.graphs.export.export_component", lambda architecture, _: traced_graph(architecture))
    text, again = told()
    assert not again
    assert "nothing to do" not in text or change == "a lost object", text


def test_another_place_environment_or_command_has_a_receipt_of_its_own(told, monkeypatch):
    assert not told("--workers", "1")[1]
    with monkeypatch.context() as other:
        other.setenv("OLIVELIKE_CACHE_SIZE", "5GB")
        assert not told()[1]
    shutil.copytree(".", "../copy")
    monkeypatch.chdir("../copy")
    assert not told()[1]


def test_another_import_path_has_a_receipt_of_its_own(told, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))  # As a changed `.pth` file would.
    assert not told()[1]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_changes_after_a_long_run_has_read_it_leaves_none(tmp_path, monkeypatch, what):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(receipt, "_SETTLED_SECONDS", 0.0)
    for name in ("folder", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    changed = tmp_path / "folder" if what == "folder" else tmp_path / "folder" / "file"
    with receipt.Witness() as witness:
        (tmp_path / "folder" / "file").read_bytes()
        receipt.note_answer("nothing to do (")
        changed.rename(tmp_path / "old")
        (tmp_path / "other" / changed.relative_to(tmp_path / "folder")).rename(changed)
    witness.keep(["run", "it"])
    assert receipt.told_again(["run", "it"]) is None


def test_a_run_that_asked_another_program_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with receipt.Witness() as witness:
        subprocess.run([sys.executable, "-c", ""], check=True)
        receipt.note_answer("nothing to do (")
    witness.keep(["run", "it"])
    assert receipt.told_again(["run", "it"]) is None


def test_a_run_that_did_something_or_warned_leaves_none(run, tmp_path):
    shutil.rmtree("models")
    run()
    assert not list((tmp_path / "user").rglob("receipts/*"))


def test_files_that_changed_just_now_leave_none(run, monkeypatch):
    monkeypatch.setattr(receipt, "_SETTLED_SECONDS", 600.0)
    for _ in range(3):
        assert not run()[1]


def test_a_receipt_is_not_for_ever(told, monkeypatch):
    monkeypatch.setattr(receipt, "_VALID_SECONDS", 0.0)
    assert receipt.told_again(COMMAND) is None


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"kind": "receipt/1"}', '{"kind": 7}'])
def test_a_damaged_receipt_is_none(told, tmp_path, damage):
    (path,) = (tmp_path / "user").rglob("receipts/*.json")
    path.write_text(damage)
    text, again = told()
    assert not again
    assert "nothing to do" in text


LOOKS = {
    "open": lambda path: path.open().close(),
    "read": lambda path: path.read_bytes(),
    "os.open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "exists": lambda path: path.exists(),
    "os.path.exists": os.path.exists,
    "is_file": lambda path: path.is_file(),
    "is_dir": lambda path: path.is_dir(),
    "os.path.isdir": os.path.isdir,
    "is_symlink": lambda path: path.is_symlink(),
    "resolve": lambda path: path.resolve(),
    "stat": lambda path: path.stat(),
    "getsize": os.path.getsize,
    "samefile": lambda path: path.samefile(path),
    "listdir": lambda path: os.listdir(path.parent),  # noqa: PTH208
    "iterdir": lambda path: list(path.parent.iterdir()),
    "glob": lambda path: list(path.parent.glob("*")),
    "rglob": lambda path: list(path.parent.rglob("*.txt")),
    "walk": lambda path: list(os.walk(path.parent)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_look_goes_unnoted(tmp_path, look):
    path = tmp_path / "folder" / "file.txt"
    path.parent.mkdir()
    path.write_text("x")
    with receipt.Witness() as witness:
        LOOKS[look](path)
    seen = {Path(found) for paths in witness._seen.values() for found in paths}
    assert {path, path.parent} & seen


def test_a_look_for_what_is_not_there_is_noted(tmp_path):
    with receipt.Witness() as witness:
        assert not (tmp_path / "absent").exists()
    assert str(tmp_path / "absent") in witness._seen["followed"]
