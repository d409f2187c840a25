"""Damaged records of results, their tables and objects: each is taken, or said to be wrong."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pytest
from hostile import QUICK, SLOW, damage_json, feed

from olivelike.data import demo_folder
from olivelike.engine.plan.question import Question
from olivelike.engine.preparation import make_resolver, prepare
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import DamagedError
from olivelike.store import actions
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.lying_store import Honest, lie

RUNS = pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])

WORKFLOW = """
name: small
source: DEMO
target: cuda
components:
  text_encoder: [convert, fuse, float16]
output: out
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Honest, dict[str, Question]]:
    """What a machine has made of the demo, and the question that each record of it answers."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "small.yaml").write_text(WORKFLOW.replace("DEMO", str(demo_folder())), encoding="utf-8")
    options = Options(cache_dir=folder / "cache", output=None)
    run(str(folder / "small.yaml"), options, executor=InlineExecutor)
    prepared = prepare(str(folder / "small.yaml"), options, writes=False)
    resolver, questions = make_resolver(prepared), {}
    for node in prepared.nodes:
        resolution = resolver.resolve(node)
        if resolution.action is not None and resolution.key is not None:
            questions[resolution.key.digest] = resolver.question(node, resolution.key)
            resolver.record_outputs(node, resolution.action.outputs)
    root = folder / "cache"
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for name in ("actions", "objects")
        for path in (root / name).rglob("*")
        if path.is_file()
    }
    shutil.rmtree(folder / "out", ignore_errors=True)
    return Honest.read(files), questions


@RUNS
def test_damaged_records_tables_and_objects(asked: tuple[Honest, dict[str, Question]], runs: int) -> None:
    honest, questions = asked
    assert len(questions) == len(honest.records) >= 5

    def make(rng: random.Random) -> dict[str, bytes]:
        return {} if rng.random() < 0.1 else dict(lie(rng, honest, Path("/outside/victim.txt")))

    def read(changed: dict[str, bytes]) -> None:
        changed_records = [Path(name).stem for name in changed if name.startswith("actions/")]
        key = changed_records[0] if changed_records else next(iter(questions))
        data = changed.get(f"actions/{key[:2]}/{key}.json")
        action = actions.decoded(data if data is not None else honest.files()[f"actions/{key[:2]}/{key}.json"], key)
        if action is None:
            raise DamagedError("no record")

        def content(digest: str) -> bytes | None:
            return changed.get(f"objects/{digest[:2]}/{digest}", honest.objects.get(digest))

        question = questions[key]
        flaw = question.flaw(action, content) or question.flaw_within(action, content)
        if flaw is not None:
            assert len(flaw) < 300
            assert flaw.isprintable()
            raise DamagedError(flaw)

    feed(read, make, runs).check(least_read=0.02)


PART = "0" * 64
WEIGHTS = ["weights/1", [
    ["a", "F32", [2, 3], PART, 0], ["b", "F16", [3, 2], PART, 24, True],
    ["c", "F32", [2, 2], PART, 8, False, [[["F32", [2, 1], PART, 0], ["F32", [1, 2], PART, 0], 0.5, 1.0]]],
]]  # fmt: skip
RANGES = ["observations/1", {"x": [-1.5, 2.0, 1, 100, [1, 0, 3]], "y": [0, 0, -126, 0, []]}]


@RUNS
@pytest.mark.parametrize(("name", "sample"), [("weights", WEIGHTS), ("calibration.unet", RANGES)])
def test_damaged_tables_of_weights_and_of_ranges(
    asked: tuple[Honest, dict[str, Question]], runs: int, name: str, sample: list[object]
) -> None:
    honest, questions = asked
    key, question = next(iter(questions.items()))
    known = actions.decoded(honest.files()[f"actions/{key[:2]}/{key}.json"], key)
    assert known is not None

    def read(data: bytes) -> None:
        action = dataclasses.replace(known, outputs={name: "1" * 64}, parts={PART: 36, "1" * 64: len(data)})
        if (flaw := question.flaw_within(action, lambda _: data)) is not None:
            raise DamagedError(flaw)

    read(json.dumps(sample).encode())
    feed(read, lambda rng: damage_json(rng, sample), runs).check(least_read=0.1)
