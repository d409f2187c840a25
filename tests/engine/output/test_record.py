"""The record of an output, from wherever the folder comes."""

from __future__ import annotations

import json
import re

import pytest
from output_folders import OLD, publish_files

from olivelike.model.records.output import OutputRecord


def test_a_record_says_what_a_component_holds(tmp_path):
    publish_files(tmp_path / "out", OLD)
    record = OutputRecord.read(tmp_path / "out")
    assert record.component_files("unet").keys() == {"unet/model.onnx", "unet/weights.pb"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"output"', '"journal"'),
        lambda text: text.replace('"version": 2', '"version": 0'),
        lambda text: text.replace('"version": 2', '"version": "2"'),
        lambda text: text.replace('"layout"', '"folder"'),
        lambda text: text.replace('"files"', '"flies"'),
        lambda text: text.replace('"size"', '"seize"'),
        lambda text: re.sub(r'"files": .*', '"files": []}', text, flags=re.DOTALL),
        lambda text: re.sub(r'"components": \{.*?\}', '"components": {"unet": 3', text, flags=re.DOTALL),
        lambda text: "\udcff",
    ],
)
def test_a_damaged_record_is_none(tmp_path, damage):
    publish_files(tmp_path / "out", OLD)
    file = tmp_path / "out" / "olivelike.json"
    file.write_text(damage(file.read_text()), errors="surrogateescape")
    assert OutputRecord.read(tmp_path / "out") is None


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "/", "/etc/passwd", "../f", "a/../../f", "a//b", "a/./b", "a/", "C:/f", "C:f", "a\\b",
        "\\\\host\\f", "a\0b", "a\nb", "nul", "NUL.txt", "unet/con", "a/COM1.onnx", "a/lpt9 .x",
        "a.", "a ", "a:stream", "\ud800", None, 3, [], "olivelike.json", ".olivelike-journal.json", "OliveLike.json",
    ],
)  # fmt: skip
def test_a_record_of_what_is_no_plain_path_is_none(tmp_path, path):
    publish_files(tmp_path / "out", OLD)
    file = tmp_path / "out" / "olivelike.json"
    content = json.loads(file.read_bytes())
    content["files"] = {path: content["files"]["model_index.json"]} if isinstance(path, str) else [path]
    file.write_text(json.dumps(content))
    assert OutputRecord.read(tmp_path / "out") is None
