from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

LITTLE = "workflows/little.yaml"


def stored_object() -> Path:
    return next(path for path in Path("cache/objects").rglob("*") if path.is_file())


def test_ls_lists_each_result(project, cli):
    out = cli("cache", "ls").out
    assert out.splitlines()[0].split() == ["key", "node", "workflow", "size", "last", "used"]
    assert " text_encoder.label " in out
    results = json.loads(cli("cache", "ls", "--json").out)
    assert out.splitlines()[-1] == f"{len(results)} results"
    label = next(result for result in results if result["inputs"]["pass"] == "label")
    assert label["outputs"].keys() == {"graph"}
    assert not label["protected"]


def test_size_sums_the_folders(project, cli):
    found = json.loads(cli("cache", "size", "--json").out)
    assert found["total_bytes"] == sum(folder["bytes"] for folder in found["folders"].values())
    assert found["folders"]["objects"]["files"] > 0
    assert cli("cache", "size").out.splitlines()[-2].startswith("all ")


def test_compiled_networks_are_counted_and_cleared_alone(project, cli, monkeypatch, tmp_path):
    kept = tmp_path / "kept"
    monkeypatch.setattr("olivelike.runtime.sessions.compiled.compiled_folder", lambda: kept)
    (kept / "a key").mkdir(parents=True)
    (kept / "a key" / "net.blob").write_bytes(bytes(1234))
    found = json.loads(cli("cache", "size", "--json").out)["compiled"]
    assert found == {"path": str(kept), "bytes": 1234, "files": 1}
    assert cli("cache", "size").out.splitlines()[-1] == f"compiled networks, in {kept}: 1.2 kB in 1 file"
    before = json.loads(cli("cache", "size", "--json").out)["total_bytes"]
    assert json.loads(cli("cache", "clear", "--compiled", "--json").out) == {"bytes_freed": 1234}
    found = json.loads(cli("cache", "size", "--json").out)
    assert (found["compiled"]["bytes"], found["total_bytes"]) == (0, before)


def test_a_store_without_damage_is_called_well(project, cli):
    result = cli("cache", "verify")
    assert result.status == 0
    assert result.out.endswith(": all is well\n")


def test_damage_is_found_repaired_and_remade(project, cli):
    path = stored_object()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = cli("cache", "verify")
    assert found.status == 3
    assert f"{path.absolute()} does not match its hash" in found.out
    report = json.loads(cli("cache", "verify", "--json").out)
    assert (report["ok"], report["repaired"]) == (False, False)
    assert str(path.absolute()) in [problem["path"] for problem in report["problems"]]

    repaired = cli("cache", "verify", "--repair")
    assert repaired.status == 0
    assert "moved to quarantine" in repaired.out
    assert cli("cache", "verify").status == 0


def test_gc_frees_what_is_over_the_cap(project, cli):
    assert json.loads(cli("cache", "gc", "--max-size", "1GiB", "--json").out)["actions_removed"] == 0
    result = cli("cache", "gc", "--max-size", "0B", "--grace", "0")
    assert result.status == 0
    assert "the cap is 0 B" in result.out
    assert json.loads(cli("cache", "ls", "--json").out) == []


def test_gc_leaves_pinned_results_alone_until_they_are_unpinned(project, cli):
    assert cli("cache", "pin", LITTLE).out.endswith(f"as little in {project / 'cache'}\n")
    assert "kept" in cli("cache", "ls").out
    cli("cache", "gc", "--max-size", "0B", "--grace", "0")
    assert "nothing to run" in cli("plan", LITTLE).out
    wrong = cli("cache", "unpin", "litle")
    assert wrong.status == 2
    assert "did you mean 'little'?" in wrong.err
    assert cli("cache", "unpin", "little").status == 0
    cli("cache", "gc", "--max-size", "0B", "--grace", "0")
    assert "nothing to run" not in cli("plan", LITTLE).out


def test_clear_asks_unless_told_not_to(project, cli):
    result = cli("cache", "clear")
    assert result.status == 2
    assert "add --yes" in result.err
    assert "nothing to run" in cli("plan", LITTLE).out
    cleared = cli("cache", "clear", "--yes")
    assert cleared.out.startswith(f"removed everything in {project / 'cache'}, freed ")
    assert not list(Path("cache/objects").rglob("*"))


def test_clear_refuses_a_folder_that_is_no_store(project, cli):
    (project / "logs").mkdir()
    (project / "logs" / "precious").write_text("x")
    result = cli("cache", "clear", "--yes", "--cache-dir", ".")
    assert result.status == 2
    assert "is no store: it holds" in result.err
    assert (project / "logs" / "precious").exists()


@pytest.mark.parametrize("command", ["ls", "size", "verify", "gc", "clear"])
def test_an_absent_store_is_an_error_and_is_not_created(empty_folder, cli, command):
    result = cli("cache", command)
    assert result.status == 3
    assert result.err == f"error: there is no store in {empty_folder / 'cache'}; name its folder with --cache-dir\n"
    assert not (empty_folder / "cache").exists()


def test_the_environment_names_the_store(project, cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OLIVELIKE_CACHE_DIR", str(project / "cache"))
    monkeypatch.chdir(tmp_path)
    assert json.loads(cli("cache", "size", "--json").out)["path"] == str(project / "cache")


def test_a_wrong_size_ends_with_status_2(project, cli):
    result = cli("cache", "gc", "--max-size", "some")
    assert result.status == 2
    assert "--max-size" in result.err


def test_ls_says_which_node_of_which_workflow_a_result_is(project, cli):
    assert re.search(r"^[0-9a-f]{12}  text_encoder\.label  +little  +\d", cli("cache", "ls").out, re.MULTILINE)
    text = Path("workflows/little.yaml").read_text().replace("name: little", "name: other")
    Path("workflows/other.yaml").write_text(text.replace("models/little", "models/other"))
    assert cli("run", "workflows/other.yaml").status == 0
    assert re.search(r"  text_encoder\.label  +other \+1 ", cli("cache", "ls").out)
    entries = json.loads(cli("cache", "ls", "--json").out)
    (label,) = (entry for entry in entries if entry["inputs"]["pass"] == "label")
    assert (label["nodes"], label["workflows"]) == (["text_encoder.label"], ["other", "little"])


def test_a_result_whose_runs_are_forgotten_is_named_by_its_pass(project, cli):
    shutil.rmtree("cache/runs")
    assert re.search(r"^[0-9a-f]{12}  label  +\d", cli("cache", "ls").out, re.MULTILINE)


def test_a_pin_says_what_it_does_not_keep_and_refuses_to_keep_nothing(project, cli):
    changed = ("--set", "components.text_encoder.1.label.text=other")
    part = cli("cache", "pin", LITTLE, *changed)
    assert part.status == 0
    assert "pinned 3 of 4 results as little in " in part.out
    assert "not stored, and so not kept: text_encoder.label; run the workflow, and pin again" in part.err
    shutil.rmtree("cache")
    none = cli("cache", "pin", LITTLE)
    assert none.status == 3
    assert "has no result of little, so there is nothing to pin; run it first" in none.err
    assert none.out == ""
