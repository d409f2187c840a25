from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.families.denoiser_forms import FORMS, EncodedText
from olivelike.runtime.prompts.clip_text import chunk_prompt, open_tokenizer, weighted
from olivelike.runtime.prompts.syntax import BREAK, Fragment, parse_prompt
from olivelike.runtime.prompts.text_kinds import encode_prompts
from olivelike.testing.checkpoint_configs import write_clip_tokenizer, write_tokenizer

VOCABULARY = 2000
TOKENS = ["<style>", "<style>_1", "<style>_2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer's folder as an output has it, with a textual inversion of three vectors."""
    from transformers import CLIPTokenizer

    old, new = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(old, VOCABULARY)
    tokenizer = CLIPTokenizer.from_pretrained(old)
    tokenizer.add_tokens(TOKENS)
    tokenizer.save_pretrained(new)
    return new


@pytest.fixture(scope="module")
def tokenizer(folder):
    return open_tokenizer(folder)


@pytest.fixture(scope="module")
def pipe(folder):
    """Diffusers' own pipeline, as far as it encodes prompts."""
    import torch
    from diffusers import PNDMScheduler, StableDiffusionPipeline
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=VOCABULARY + len(TOKENS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, projection_dim=16, bos_token_id=VOCABULARY - 2, eos_token_id=VOCABULARY - 1,
    )  # fmt: skip
    pipe = StableDiffusionPipeline(
        vae=None, text_encoder=CLIPTextModel(config).eval(), tokenizer=CLIPTokenizer.from_pretrained(folder),
        unet=None, scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1, set_alpha_to_one=False),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def encoder(pipe):
    import torch

    def encode(ids):
        assert ids.dtype == np.int32
        assert len({tuple(row) for row in ids.tolist()}) == len(ids)
        # One row at a time, since the bits of a row depend on the size of the batch.
        with torch.no_grad():
            outputs = [pipe.text_encoder(torch.from_numpy(row[None])) for row in ids]
        return EncodedText(
            np.concatenate([output.last_hidden_state.numpy() for output in outputs]),
            np.concatenate([output.pooler_output.numpy() for output in outputs]),
        )

    return encode


def parts(text):
    return [list(vars(part).values()) if isinstance(part, Fragment) else "BREAK" for part in parse_prompt(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("normal text", [["normal text", 1.0]]),
        ("an (important) word", [["an ", 1.0], ["important", 1.1], [" word", 1.0]]),
        ("(unbalanced", [["unbalanced", 1.1]]),
        (r"\(literal\]", [["(literal]", 1.0]]),
        ("(unnecessary)(parens)", [["unnecessaryparens", 1.1]]),
        (
            "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
            [
                ["a ", 1.0], ["house", 1.5730000000000004], [" ", 1.1], ["on", 1.0], [" a ", 1.1], ["hill", 0.55],
                [", sun, ", 1.1], ["sky", 1.4641000000000006], [".", 1.1],
            ],
        ),
    ],
)  # fmt: skip
def test_prompts_are_read_as_the_examples_of_a1111_say(text, expected):
    assert parts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [["", 1.0]]),
        ("()", [["", 1.0]]),
        ("a) b] c", [["a) b] c", 1.0]]),
        ("[[weaker]]", [["weaker", 1 / 1.1 / 1.1]]),
        ("(a : -0.5 )", [["a ", -0.5]]),
        ("(a:.5)(b:2.)", [["a", 0.5], ["b", 2.0]]),
        ("(a:1.2.3)", [["a:1.2.3", 1.1]]),
        ("ratio 16:9) wide", [["ratio 16:9) wide", 1.0]]),
        (r"a \\ b \o/", [["a \\ b o/", 1.0]]),
        ("(a:1.0) b", [["a b", 1.0]]),
        ("one BREAK two", [["one", 1.0], "BREAK", ["two", 1.0]]),
        ("(one\nBREAK  two:2)", [["one", 2.0], "BREAK", ["two", 2.0]]),
        ("BREAK", ["BREAK"]),
        ("a BREAK BREAK b", [["a", 1.0], "BREAK", "BREAK", ["b", 1.0]]),
        ("BREAKFAST", [["BREAKFAST", 1.0]]),
    ],
)
def test_prompts_at_the_edges_of_the_syntax(text, expected):
    assert parts(text) == expected


def test_without_weights_a_prompt_is_taken_literally():
    text = r"(a:1.2) \( BREAK [b]"
    assert parse_prompt(text, prompt_weights=False) == (Fragment(text, 1.0),)


TEXTS = [
    "a photo of a cat!", "hello !! world", "a <|endoftext|> b", "naïve café 東京 🎉 it's  don't\n\t x", "", "   ",
    "<|startoftext|>x", "red <Style> of", "wow!",
]  # fmt: skip


@pytest.mark.parametrize("pad", ["<|endoftext|>", "!"])
def test_ids_are_those_of_transformers_whichever_files_there_are(pad, tmp_path):
    from transformers import CLIPTokenizer

    write_tokenizer(tmp_path, VOCABULARY)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        (tmp_path / name).write_text(json.dumps({**settings, "pad_token": pad}), encoding="utf-8")
    reference = CLIPTokenizer.from_pretrained(tmp_path)
    without = open_tokenizer(tmp_path)
    reference.save_pretrained(tmp_path)
    for text in TEXTS:
        expected = reference(text, padding="max_length", max_length=77, truncation=True).input_ids
        for ours in (without, open_tokenizer(tmp_path)):
            assert list(chunk_prompt(ours, (Fragment(text, 1.0),)).ids[0]) == expected
    assert (without.pad, without.length) == (0 if pad == "!" else VOCABULARY - 1, 77)


def ids_of(tokenizer, text):
    chunks = chunk_prompt(tokenizer, parse_prompt(text))
    return [[token for token in row[1:] if token != tokenizer.end] for row in chunks.ids], chunks


def test_long_prompts_go_on_in_the_next_chunk(tokenizer):
    rows, chunks = ids_of(tokenizer, "car " * 160)
    assert [len(row) for row in rows] == [75, 75, 10]
    assert chunks.tokens == 160
    assert all(row[0] == tokenizer.start and len(row) == 77 for row in chunks.ids)
    assert all(row[76] == tokenizer.end for row in chunks.ids)


def test_a_chunk_ends_at_a_comma_that_is_near(tokenizer):
    words = ["car"] * 100
    words[60] = "car,"
    assert [len(row) for row in ids_of(tokenizer, " ".join(words))[0]] == [62, 39]
    words[60], words[40] = "car", "car,"
    assert [len(row) for row in ids_of(tokenizer, " ".join(words))[0]] == [75, 26]


def test_break_fills_a_chunk_up(tokenizer):
    rows, chunks = ids_of(tokenizer, "car BREAK dog dog BREAK BREAK (bird:1.5)")
    assert [len(row) for row in rows] == [1, 2, 0, 1]
    assert chunks.weights[3][:3] == (1.0, 1.5, 1.0)


def test_the_vectors_of_a_textual_inversion_stay_together(tokenizer):
    vectors = [VOCABULARY, VOCABULARY + 1, VOCABULARY + 2]
    rows, chunks = ids_of(tokenizer, "car (<style>:1.3) dog")
    assert rows[0][1:4] == vectors
    assert chunks.weights[0][1:6] == (1.0, 1.3, 1.3, 1.3, 1.0)
    rows, _ = ids_of(tokenizer, "car " * 73 + "<style>")
    assert [len(row) for row in rows] == [73, 3]
    assert ids_of(tokenizer, "<style>_1")[0] == [[VOCABULARY + 1]]


@pytest.mark.parametrize(
    ("prompt", "negative"),
    [
        ("a photo of a red car on a blue sofa", ""),
        ("", "blurry"),
        ("a drawing in <style> of a house", "bad, ugly"),
        (" ".join(["house"] * 75), "low quality"),
    ],
)
def test_an_embedding_equals_that_of_diffusers_to_the_bit(pipe, encoder, tokenizer, prompt, negative):
    expected = pipe.encode_prompt(prompt, "cpu", 1, True, negative)
    (found,) = encode_prompts([prompt, negative], [(tokenizer, encoder)])
    assert np.array_equal(found.hidden, np.concatenate([one.detach().numpy() for one in expected]))


def test_prompts_become_equally_long(encoder, tokenizer):
    long = "car " * 80
    texts = [long, "dog", "", long * 2]
    (found,) = encode_prompts(texts, [(tokenizer, encoder)])
    assert found.hidden.shape == (4, 3 * 77, 16)
    assert [(read.chunks, read.tokens) for read in map(tokenizer.read, texts)] == [(2, 80), (1, 1), (1, 0), (3, 160)]
    empty = encoder(np.array(chunk_prompt(tokenizer, parse_prompt("")).ids, np.int32))
    assert np.array_equal(found.hidden[1, 77:154], empty.hidden[0])
    assert np.array_equal(found.hidden[2, :77], empty.hidden[0])
    assert np.array_equal(found.pooled[2:3], empty.pooled)
    (alone,) = encode_prompts(["dog"], [(tokenizer, encoder)])
    assert np.array_equal(alone.hidden[0], found.hidden[1, :77])


def test_weights_scale_the_states_and_keep_their_mean(encoder, tokenizer):
    def lifted(ids):  # The mean of what a fresh norm gives is nothing but what rounding leaves.
        return EncodedText(encoder(ids).hidden + np.float32(0.3))

    (encoded,) = encode_prompts(["a (red:1.4) [car]"], [(tokenizer, lifted)])
    found = encoded.hidden
    chunks = chunk_prompt(tokenizer, parse_prompt("a (red:1.4) [car]"))
    states = lifted(np.array(chunks.ids, np.int32)).hidden
    z = states * np.array(chunks.weights, np.float32)[..., None]
    expected = z * (states.mean() / z.mean())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found, states)


def test_weights_in_half_precision_are_applied_in_single():
    hidden = np.random.default_rng(0).standard_normal((2, 77, 8), np.float32).astype(np.float16)
    found = weighted(hidden, [[1.0] * 77, [1.3] * 30 + [1.0] * 47])
    assert found.dtype == np.float16
    assert np.array_equal(found[0, :77], hidden[0])
    with pytest.raises(UsageError, match="finite"):
        weighted(hidden, [[1.0] * 77, [1e39] + [1.0] * 76])


def test_two_encoders_give_one_embedding_and_the_second_one_s_pooled_output(encoder, tokenizer):
    def second(ids):
        output = encoder(ids)
        return EncodedText(np.tile(output.hidden, 2) * 2, output.pooled + 1)

    (one,) = encode_prompts(["car " * 90], [(tokenizer, encoder)])
    encoded = encode_prompts(["car " * 90], [(tokenizer, encoder), (tokenizer, second)])
    both = FORMS["sdxl"].encode(dict(zip(("text_encoder", "text_encoder_2"), encoded, strict=True)), {})
    states = both["encoder_hidden_states"]
    assert states.shape == (1, 154, 48)
    assert np.array_equal(states[..., :16], one.hidden)
    assert np.array_equal(states[..., 16:32], one.hidden * 2)
    assert np.array_equal(both["text_embeds"], one.pooled + 1)
    (first,) = encode_prompts(["car " * 75], [(tokenizer, encoder)])
    assert np.array_equal(one.pooled, first.pooled)


def test_there_has_to_be_a_prompt(encoder, tokenizer):
    with pytest.raises(UsageError, match="no prompt"):
        encode_prompts([], [(tokenizer, encoder)])


def test_broken_tokenizers_are_refused_with_their_file(folder, tmp_path):
    whole = (folder / "tokenizer.json").read_text(encoding="utf-8")
    with pytest.raises(SourceError, match="no folder"):
        open_tokenizer(tmp_path / "absent")
    with pytest.raises(SourceError, match="neither tokenizer.json nor vocab.json"):
        open_tokenizer(tmp_path)
    for content in (whole[:-50], "[]", '{"model": {}}', whole.replace('"merges": [', '"merges": [["ca", "☃"],')):
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(SourceError, match=r"tokenizer\.json"):
            open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(whole, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<nothing>"}', encoding="utf-8")
    with pytest.raises(SourceError, match="pad_token '<nothing>'"):
        open_tokenizer(tmp_path)


def test_break_is_a_single_value():
    assert parse_prompt("a BREAK b")[1] is BREAK


def test_ids_of_odd_texts_are_those_of_transformers_which_is_not_imported(tmp_path):
    from transformers import CLIPTokenizer

    folders = {}
    for name in ("pad_end", "pad_exclamation"):
        write_clip_tokenizer(folder := tmp_path / name, name)
        folders[folder] = CLIPTokenizer.from_pretrained(folder)
    added = tmp_path / "added"
    shutil.copytree(folder, added)
    (added / "added_tokens.json").write_text(json.dumps({token: 49408 + i for i, token in enumerate(TOKENS)}), "utf-8")
    folders[added] = CLIPTokenizer.from_pretrained(added)
    chosen = random.Random(42)
    letters = (
        "aAbBeé'!,.<|>_- 019strvmld\n\x00"
        "\u0301\u0130\u03a3\ufeff\u0085\u00a0\u200b\u4e2d\U0001f600\U0001f3fd\u0660\u00bd"
    )
    texts = [*TEXTS, "中文 " * 90, "<style>", "a<style>_1 <STYLE>b", "<|endoftext|>x<|startoftext|>", "\ufffd" * 5]
    texts += ["".join(chosen.choices(letters, k=chosen.randrange(80))) for _ in range(1500)]
    for folder, reference in folders.items():
        ours = open_tokenizer(folder).backend.encode_batch(texts, add_special_tokens=False)
        assert [found.ids for found in ours] == reference(texts, add_special_tokens=False).input_ids
    code = (
        "import sys; from pathlib import Path; from olivelike.runtime.prompts.clip_text import open_tokenizer\n"
        "open_tokenizer(Path(sys.argv[1])); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(added)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
