"""Workflows with a matrix: one pipeline for each combination, and each node once."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from olivelike.data import demo_folder
from olivelike.engine.fleet import combinations, plan_fleet, run_fleet
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import UsageError, WorkflowError
from olivelike.workflow.matrix import UnnamedCombinationError
from tests.fixtures.inline_executor import InlineExecutor

MATRIX = """
name: fleet
components:
  text_encoder: [convert, fuse]
matrix:
  source: [./one, ./two]
  target: [cpu, cuda]
  precision:
    full:
    half: {components: {text_encoder: [convert, fuse, float16]}}
  exclude:
    - {target: cpu, precision: half}
output: models/fleet
"""
NAMES = ["one-cpu-full", "one-cuda-full", "one-cuda-half", "two-cpu-full", "two-cuda-full", "two-cuda-half"]


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """Two checkpoints of the same form."""
    for name in ("one", "two"):
        folder = tmp_path / name
        shutil.copytree(demo_folder() / "tokenizer", folder / "tokenizer")
        for part in ("text_encoder", "scheduler", "feature_extractor"):
            shutil.copytree(demo_folder() / part, folder / part)
        index = json.loads((demo_folder() / "model_index.json").read_text(encoding="utf-8"))
        (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    weights = tmp_path / "two" / "text_encoder" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = b"\x00\x3c"
    weights.write_bytes(data)
    file = tmp_path / "fleet.yaml"
    file.write_text(MATRIX, encoding="utf-8")
    return str(file)


def edited(fleet: str, old: str, new: str) -> str:
    path = Path(fleet)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return fleet


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "olivelike.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_each_combination_is_what_it_would_be_alone_and_shared_nodes_run_once(fleet: str, tmp_path: Path) -> None:
    events = []
    planned = plan_fleet(fleet)
    assert list(planned.plans) == NAMES
    result = run_fleet(fleet, listener=events.append, executor=InlineExecutor, most=3)
    assert list(result.results) == NAMES
    assert not result.failed
    # Another checkpoint is only written; fusion knows the target, and what precision comes later.
    started = Counter(event.data["node"].partition("@")[0] for event in events if event.name == "node_finished")
    once = {"text_encoder.fuse": 3, "text_encoder.float16": 1, "pipeline.assets": 1}
    assert started == {**once, "text_encoder.materialize": 6}
    assert planned.shared == 2 * 6 - 3 - 1
    for name in ("one-cpu-full", "two-cuda-half"):
        alone = tmp_path / "alone"
        run(fleet, Options(combination=name, output=alone, cache_dir=tmp_path / name), executor=InlineExecutor)
        assert files(alone / name) == files(tmp_path / "models" / "fleet" / name)
    assert files(tmp_path / "models/fleet/one-cpu-full") != files(tmp_path / "models/fleet/two-cpu-full")
    again = run_fleet(fleet, executor=InlineExecutor)
    assert [one.executed for one in again.results.values()] == [0] * 6  # type: ignore[union-attr]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "cache" / "runs").iterdir()]
    assert {record["workflow"] for record in records} == {f"fleet@{name}" for name in NAMES}


def test_what_fails_in_one_combination_leaves_the_others_alone(fleet: str, tmp_path: Path) -> None:
    weights = tmp_path / "two" / "text_encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    result = run_fleet(fleet, executor=InlineExecutor)
    assert [name for name in NAMES if name not in result.failed] == NAMES[:3]
    assert all("two" in str(error) for error in result.failed.values())
    assert sorted(path.name for path in (tmp_path / "models" / "fleet").iterdir()) == NAMES[:3]


def test_a_workflow_with_a_matrix_needs_a_combination_where_one_pipeline_is_meant(fleet: str) -> None:
    with pytest.raises(
        UnnamedCombinationError,
        match="has a `matrix` of 6, and one is wanted here; name it, such as --combination one-",
    ):
        plan(fleet)
    with pytest.raises(UsageError, match="has no combination 'one-cpu-ful'; did you mean 'one-cpu-full'"):
        plan(fleet, Options(combination="one-cpu-ful"))
    prepared, _ = plan(fleet, Options(combination="two-cuda-half", overrides=("target.precision=fp32",)))
    assert prepared.outputs[0].path.name == "two-cuda-half"
    assert prepared.workflow.workflow.target.precision == "fp32"
    edited(fleet, MATRIX[MATRIX.index("matrix:") : MATRIX.index("output:")], "source: ./one\ntarget: cpu\n")
    assert combinations(fleet) == ()
    with pytest.raises(UsageError, match="has no combination 'x'; it has no `matrix`"):
        plan(fleet, Options(combination="x"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("target: [cpu, cuda]", "target: []", r"7:11.*the axis `target` is a list of values, or a map of names"),
        ("target: [cpu, cuda]", "target: [cpu, cpu]", r"7:17.*two values of `target` are called 'cpu'; write a map"),
        ("target: [cpu, cuda]", "plugins: [a]", r"7:3.*`plugins` is no key that can vary"),
        ("    full:\n", "    a/b:\n", r"9:5.*'a/b' can't be part of a folder's name"),
        ("    full:\n", "    full: 3\n", r"9:11.*`full` is a map of keys that it lays over the .+, found 3"),
        ("    full:\n", "    full: {name: x}\n", r"9:12.*`name` is the same for all of a matrix; put it outside"),
        ("precision: half}", "precison: half}", r"12:21.*no axis 'precison'; did you mean 'precision'"),
        ("precision: half}", "precision: hal}", r"12:32.*'precision' has no 'hal'; did you mean 'half'"),
        ("{target: cpu, precision: half}", "{target: cpu}\n    - {target: cuda}", "`exclude` leaves no combination"),
        ("    full:\n", "    full...:\n", r"'one-cpu-full...' can't be a folder's name on Windows; rename its values"),
        (
            MATRIX[MATRIX.index("matrix:") : MATRIX.index("output:")],
            "source: ./one\ntarget: cpu\nmatrix:\n  p: {con: }\n",
            r"'con' can't be a folder's name on Windows",
        ),
        ("    full:\n", "    FULL:\n    full:\n", r"two combinations are called 'one-cpu-full'; rename a value"),
    ],
)
def test_a_wrong_matrix_is_told_with_its_place(fleet: str, old: str, new: str, message: str) -> None:
    with pytest.raises(WorkflowError) as error:
        combinations(edited(fleet, old, new))
    assert re.search(message, str(error.value)), str(error.value)


def test_a_matrix_is_bounded(fleet: str) -> None:
    many = ", ".join(f"m{number}" for number in range(101))
    edited(fleet, "target: [cpu, cuda]", f"target: [{many}]\n  vae: [{many}]")
    with pytest.raises(WorkflowError, match="`matrix` has 40804 combinations, more than 10000; split the workflow"):
        combinations(fleet)


def test_names_come_from_values(fleet: str) -> None:
    edited(
        fleet,
        "source: [./one, ./two]",
        "source: [./some/painter.v2.safetensors, OWNER/Model-1]\n  loras: [[], [ink.safetensors:0.8, ./x/glow.bin]]",
    )
    found = [one.values for one in combinations(fleet)]
    assert {values["source"] for values in found} == {"painter.v2", "Model-1"}
    assert {values["loras"] for values in found} == {"none", "ink.safetensors0.8+glow"}
