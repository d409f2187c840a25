from __future__ import annotations

import json

import pytest

from olivelike.serve.lora_cards import LoraCard, card_of

KOHYA = {
    "ss_output_name": "ink", "ss_base_model_version": "sdxl_base_v1-0",
    "ss_tag_frequency": json.dumps({"5_ink": {"ink drawing": 40, "cat": 3}, "reg": {"cat": 90, " ": 7}}),
}  # fmt: skip


def test_a_card_is_read_of_kohyas_keys(tmp_path):
    expected = LoraCard(title="ink", base_model="sdxl_base_v1-0", trigger_words=("cat", "ink drawing"))
    assert card_of(tmp_path / "ink.safetensors", KOHYA) == expected


def test_what_a1111_keeps_beside_a_file_goes_before_its_metadata(tmp_path):
    kept = {
        "activation text": "inkstyle,  lines , inkstyle",
        "preferred weight": 0.7,
        "sd version": "SDXL",
        "description": "Ink.",
    }
    (tmp_path / "ink.json").write_text(json.dumps(kept))
    named = {"modelspec.title": "Ink lines", "modelspec.trigger_phrase": "other"}
    assert card_of(tmp_path / "ink.safetensors", KOHYA | named) == LoraCard(
        title="Ink lines", base_model="SDXL", trigger_words=("inkstyle", "lines"), weight=0.7, description="Ink."
    )


@pytest.mark.parametrize(
    "beside",
    [
        b"[1]",
        b"{",
        b"\xff",
        b'{"preferred weight": "1", "activation text": 3}',
        b"",
        b'{"preferred weight": 1' + b"0" * 400 + b"}",
    ],
)
@pytest.mark.parametrize("tags", ["[1]", "{", '{"a": [1]}', '{"a": {"b": "x"}}', '{"a": {"b": 1e999}}'])
def test_a_card_of_damaged_notes_is_empty(tmp_path, beside, tags):
    (tmp_path / "ink.json").write_bytes(beside)
    assert card_of(tmp_path / "ink.safetensors", {"ss_tag_frequency": tags, "modelspec.title": "None"}) == LoraCard()
