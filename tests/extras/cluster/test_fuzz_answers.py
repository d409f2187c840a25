"""Damaged answers of workers: each is taken, or said to be wrong."""

from __future__ import annotations

import json
import random

import pytest

from olivelike.engine.kinds.kind import Done, Needs
from olivelike.extras.cluster.cluster_data import packed
from olivelike.extras.cluster.cluster_executor import _OUTCOME, _answered, _written
from olivelike.extras.cluster.cluster_workers import LostError, Site, read_answer
from tests.fuzz.hostile import QUICK, SLOW, damage_json, feed

RUNS = pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
FILES = {"model.onnx": {"size": 7, "sha256": "1" * 64}, "weights.pb": {"size": 8, "sha256": "2" * 64}}
ANSWERS: tuple[dict[str, object], ...] = (
    {"done": {"outputs": {"graph": "0" * 64}, "parts": {"0" * 64: 7}, "facts": {"fused": {"a": 1}},
              "seconds": 1.5, "memory_before_bytes": 1000}, "failed": None},
    {"done": {"outputs": {}, "parts": {}, "seconds": 0.5, "memory_before_bytes": 0,
              "facts": {"files": FILES, "derivations": {"w": {"parameter": "w"}}, "saturated": {"w": 1}, "flushed": {},
                        "not_finite": {}}}, "failed": None},
    {"done": None, "failed": {"message": "no", "error": "pass", "facts": {}, "memory_before_bytes": 0}},
)  # fmt: skip


@RUNS
def test_damaged_answers_of_workers(runs: int) -> None:
    needs = Needs(folder="/out", file_names=("model.onnx", "weights.pb"))
    site = Site("tcp://there:1", {"host": "there"}, 1)
    rest = {"peak_memory_bytes": 1000, "written": {"model.onnx": (7, "1" * 64)}, "folder": "/there"}

    def make(rng: random.Random) -> tuple[bytes, bool]:
        answer = {"value": {**rest, **rng.choice(ANSWERS)}, "error": None, "text": ""}
        return damage_json(rng, answer), rng.random() < 0.5

    def read(sample: tuple[bytes, bool]) -> None:
        data, writes = sample
        try:
            told = packed(json.loads(data))
        except (ValueError, TypeError, RecursionError, OverflowError):
            told = data
        try:
            answer = _answered(read_answer(site, told, _OUTCOME), "unet.fuse: its worker there")
        except LostError:
            return
        if isinstance(answer, Done):
            _written(answer, needs if writes else Needs(), "unet.fuse: its worker there")

    feed(read, make, runs).check(least_read=0.05)
