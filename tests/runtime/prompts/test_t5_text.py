"""Texts as T5 reads them: ids of transformers' tokenizer, weights, and files that lie."""

from __future__ import annotations

import json

import numpy as np
import pytest

from olivelike.errors import SourceError
from olivelike.families.denoiser_forms import EncodedText
from olivelike.families.family import TextPart
from olivelike.runtime.prompts.text_kinds import open_text
from tests.fixtures.t5_tokenizer import write_t5_tokenizer

PART = TextPart("text_encoder_3", "tokenizer_3", 32, "T5EncoderModel", kind="t5", length=12)


@pytest.fixture
def folder(tmp_path):
    write_t5_tokenizer(tmp_path / "tokenizer_3")
    return tmp_path


@pytest.mark.parametrize("text", ["", "a red circle", "  The  cat, in é ☃", "a dog " * 9])
def test_ids_are_those_of_transformers(folder, text):
    import transformers

    theirs = transformers.T5Tokenizer.from_pretrained(folder / "tokenizer_3", local_files_only=True)
    expected = theirs(text, padding="max_length", max_length=12, truncation=True).input_ids
    read = open_text(folder, PART).read(text)
    assert [list(row) for row in read.ids] == [expected]
    assert read.chunks == 1


def test_brackets_are_weights_and_each_text_is_one_row(folder):
    reader = open_text(folder, PART)
    read = [reader.read(text) for text in ("a (red:1.5) cat", "a red cat BREAK in", "a red cat in")]
    assert read[0].ids == reader.read("a red cat").ids
    assert read[0].weights == ((1.0, 1.5, *(1.0,) * 10),)
    assert read[1].ids == read[2].ids
    assert reader.read("(a)", prompt_weights=False).tokens > 1
    states = np.arange(24, dtype=np.float32).reshape(12, 2)
    asked = []

    def encoder(ids):
        asked.append(ids.shape)
        return EncodedText(np.tile(states, (len(ids), 1, 1)))

    encoded = reader.encode(read, 3, encoder)
    assert asked == [(2, 12)]
    assert encoded.hidden.shape == (3, 12, 2)
    assert encoded.pooled is None
    assert np.array_equal(encoded.hidden[1], states)
    assert not np.array_equal(encoded.hidden[0], states)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole["model"].update(type="BPE"), "another kind"),
        (lambda whole: whole["model"].update(vocab="x"), "another kind"),
        (lambda whole: whole["model"].update(vocab=[["a", 0.0]] * 300_001), "more than 300,000"),
        (lambda whole: whole["model"].update(unk_id=999_999), "can't be used"),
        (lambda whole: whole.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "can't be"),
        (lambda whole: whole.update(added_tokens=[]) or whole["model"]["vocab"].pop(1), "eos_token '</s>'"),
    ],
)
def test_a_file_that_lies_is_refused_by_name(folder, change, said):
    path = folder / "tokenizer_3" / "tokenizer.json"
    whole = json.loads(path.read_bytes())
    change(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(SourceError, match=said):
        open_text(folder, PART).read("é")


def test_a_character_table_that_points_beyond_itself_is_refused_when_it_is_read(folder):
    path = folder / "tokenizer_3" / "tokenizer.json"
    whole = json.loads(path.read_bytes())
    whole["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAGFiY2Q="}
    path.write_text(json.dumps(whole))
    with pytest.raises(SourceError, match="can't be used"):
        open_text(folder, PART).read("é")


def test_a_folder_without_its_file_is_refused(folder):
    (folder / "tokenizer_3" / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"no tokenizer\.json"):
        open_text(folder, PART)
