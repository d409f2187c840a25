"""What differs between two keys, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from olivelike.engine.plan.reasons import differences, nearest
from olivelike.model.records.run_record import NodeRecord
from tests.fixtures.sample_records import run_record

BEFORE: dict[str, Any] = {
    "pass": "float16",
    "code": "1",
    "modules": {"float16": "1", "helper": "1"},
    "options": {"keep_io": False},
    "facets": {"graph": "1"},
    "target": {"name": "cuda", "opset": 23},
    "tools": {"onnx": "1.19.0"},
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"options": {"keep_io": True}}, "option keep_io changed from false to true"),
        ({"options": {"keep_io": False, "new": 1}}, "option new is new (1)"),
        ({"options": {}}, "option keep_io is gone (was false)"),
        ({"options": {"keep_io": None}}, "option keep_io changed from false to null"),
        ({"options": {"keep_io": ["a", "é"]}}, 'option keep_io changed from false to ["a", "é"]'),
        ({"facets": {"graph": "2"}}, "the graph changed"),
        ({"tools": {"onnx": "1.20.0"}}, "version of onnx changed from 1.19.0 to 1.20.0"),
        ({"target": {"name": "cuda", "opset": 21}}, "target fact opset changed from 23 to 21"),
        ({"code": "2", "modules": {"float16": "1", "helper": "2"}}, "code changed: helper"),
        (
            {"code": "2", "modules": {f"part{number}": "2" for number in range(9)}},
            "code changed: float16, helper, part0, part1, part2, part3, part4, part5 and 3 more",
        ),
        ({"named": {"environment variable X": "1"}}, "environment variable X changed"),
        ({"pass": "half"}, "pass float16 became half"),
    ],
)
def test_each_part_that_changed_is_named(change: dict[str, Any], sentence: str) -> None:
    assert differences({**BEFORE, **change}, BEFORE) == [sentence]


@pytest.mark.parametrize(
    ("after", "sentences"),
    [
        ({"a": {"weight": 0.6, "content": ["1"]}}, ["LoRA a: weight changed from 0.8 to 0.6"]),
        ({"a": {"weight": 0.8, "content": ["2"]}}, ["LoRA a: its content changed"]),
        ({"b": {"weight": 0.8, "content": ["1"]}}, ["LoRA a is gone (weight 0.8)", "LoRA b is new (weight 0.8)"]),
        ({}, ["LoRA a is gone (weight 0.8)"]),
        (None, ["the loras changed"]),
    ],
)
def test_of_a_list_each_item_that_changed_is_named(after: dict[str, Any] | None, sentences: list[str]) -> None:
    before = {**BEFORE, "facets": {"loras": "1"}, "behind": {"loras": {"a": {"weight": 0.8, "content": ["1"]}}}}
    now = {**before, "facets": {"loras": "2"}, "behind": {} if after is None else {"loras": after}}
    assert differences(now, before) == sentences


def test_equal_keys_differ_in_nothing() -> None:
    assert differences(BEFORE, BEFORE) == []


def test_the_nearest_earlier_run_is_the_one_with_the_fewest_changes() -> None:
    far = {**BEFORE, "options": {"keep_io": True}, "code": "9"}
    near = {**BEFORE, "options": {"keep_io": True}}
    node = NodeRecord("unet.float16", "unet", "float16", "executed")
    runs = [run_record(nodes=(replace(node, inputs=inputs),)) for inputs in (far, near)]
    assert nearest("unet.float16", BEFORE, runs) == near
    assert nearest("unet.convert", BEFORE, runs) is None
