"""Texts as chat models read them: ids and masks of transformers' tokenizer and template, and files that lie."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers

from olivelike.errors import SourceError
from olivelike.families.denoiser_forms import EncodedText
from olivelike.families.family import TextPart
from olivelike.runtime.prompts.text_kinds import open_text
from tests.fixtures.chat_tokenizer import write_chat_tokenizer

TEMPLATE = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
PART = TextPart("text_encoder", "tokenizer", 32, "Qwen3ForCausalLM", kind="chat", length=48, template=TEMPLATE)


@pytest.fixture
def folder(tmp_path):
    write_chat_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def encoded(folder, texts):
    """Return ids and mask that a text encoder is called with."""
    asked = []

    def encoder(ids, mask):
        asked.append((ids, mask))
        return EncodedText(np.zeros((*ids.shape, 2), np.float32))

    reader = open_text(folder, PART)
    assert reader.encode([reader.read(text) for text in texts], 1, encoder).hidden.shape == (len(texts), 48, 2)
    ((ids, mask),) = asked
    return ids, mask


def test_ids_and_mask_are_those_of_transformers(folder):
    texts = ["", "a red circle", "  The  cat, in é ☃ 12", "a (red:1.5) cat BREAK\ndog<|im_end|>", "a large dog " * 40]
    theirs = transformers.Qwen2Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    framed = [
        theirs.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        for text in texts
    ]
    assert framed == [TEMPLATE[0] + text + TEMPLATE[1] for text in texts]
    expected = theirs(framed, padding="max_length", max_length=48, truncation=True, return_tensors="np")
    ids, mask = encoded(folder, texts)
    assert np.array_equal(ids, expected.input_ids)
    assert np.array_equal(mask, expected.attention_mask)
    assert mask.sum(axis=1).tolist()[-1] == 48


def test_a_text_is_one_row_and_tells_how_much_of_it_is_read(folder):
    reader = open_text(folder, PART)
    empty, short, long = (reader.read(text) for text in ("", "a red cat", "a large dog " * 40))
    assert [one.chunks for one in (empty, short, long)] == [1, 1, 1]
    assert (empty.tokens, short.tokens, long.tokens) == (0, len(short.ids) - len(empty.ids), reader.room)
    assert reader.room == 48 - len(empty.ids)
    assert not reader.words


def replacing(pattern, content, *, times):
    one = {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
    return {"type": "Sequence", "normalizers": [one] * times}


def beginning_with(token, *, times):
    special = {"id": "X", "ids": [token] * times, "tokens": ["x"] * times}
    text = [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": text, "pair": text, "special_tokens": {"X": special}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole["model"].update(type="Unigram"), "another kind"),
        (lambda whole: whole["model"].update(vocab=[["a", 1.0]]), "another kind"),
        (lambda whole: whole["model"].update(vocab={str(n): n for n in range(300_001)}), "more than 300,000"),
        (lambda whole: whole["model"].update(merges=[["\u0120", "none"]]), "can't be used"),
        (lambda whole: whole.update(added_tokens=[]), "pad_token '<|endoftext|>'"),
        (lambda whole: whole.update(normalizer=replacing("a", "a" * 32, times=8)), "more than 1,024 times as long"),
        (lambda whole: whole.update(post_processor=beginning_with(1, times=600)), "48 tokens of a template alone"),
        (
            lambda whole: whole.update(
                added_tokens=whole["added_tokens"][:1], normalizer=replacing("[^0]", "", times=1)
            ),
            "0 tokens of a template alone",
        ),
    ],
)
def test_a_file_that_lies_is_refused_by_name(folder, change, said):
    path = folder / "tokenizer" / "tokenizer.json"
    whole = json.loads(path.read_bytes())
    change(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(SourceError, match=said.replace("|", r"\|")):
        open_text(folder, PART)
