from __future__ import annotations

import json

import pytest

from olivelike.serve import ServeSettings
from olivelike.serve.lora_cards import LoraCard, card_of
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import running

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


def test_the_page_is_sent_cards_and_a1111s_clients_all_that_a_trainer_wrote(little, tmp_path):
    told = {
        "modelspec.title": "Ink é",
        "ss_tag_frequency": json.dumps({"5_ink": {f"word {n}": n for n in range(9000)}}),
    }
    make_lora(tmp_path / "ink.safetensors", "kohya", base=little_checkpoint(), metadata=told)
    settings = ServeSettings(folders=(little,), gallery=tmp_path / "gallery", lora_dirs=(tmp_path,))
    with running(settings) as server, server.client() as client:
        (listed,), (theirs,) = client.get("/api/loras").json(), client.get("/sdapi/v1/loras").json()
        length = len(client.get("/api/loras").content)
    assert listed["card"]["title"] == "Ink é"
    assert "metadata" not in listed
    assert length < 3000
    assert theirs["name"] == "ink"
    assert told.items() <= theirs["metadata"].items()
