"""The pass `onnx_tokenizer`: its ids against those of `CLIPTokenizer`, through onnxruntime-extensions."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime_extensions import get_library_path
from transformers import CLIPTokenizer

from olivelike.engine.output.assets import normalise_assets
from olivelike.engine.output.tokenizer_step import tokenizer_architecture
from olivelike.errors import PassError, SourceError
from olivelike.model import Model
from olivelike.testing import run_pass
from olivelike.testing.checkpoint_configs import write_clip_tokenizer, write_tokenizer
from olivelike.workflow.passes import Registry

ONNX_TOKENIZER = Registry.built_in().get("onnx_tokenizer").cls
DEMO = Path(__file__).parents[2] / "olivelike" / "data" / "demo" / "tokenizer"
INDEX = {"tokenizer": ["transformers", "CLIPTokenizer"]}
ADDED = ("<sks>", "<cat-toy_1>", "<Big>")

TEXTS = (
    "", "   ", "a photo of a cat", "A  Photo,  of CATS!!", "hello\nworld\t x", "a\r\nb", "don't we're they'll I'M",
    "we 're here, the dog 's there", "100 cats 3.14 4k 1girl", "½ ² ③ Ⅷ", "(masterpiece:1.2), [bad], {x}",
    "<lora:style:0.8> --ar 16:9", "<|endoftext|> test", "4<|startoftext|>4", "x <|endoftext|>", "café naïve ÀÉÎ",
    "日本語 テスト", "Русский текст", "हिन्दी", "مرحبا", "한국어", "😀 here 👩‍👧", "no\u00a0break\u3000wide\u2028line",
    "snake_case __x__ -- ...", "“quoted” — it", "word " * 100, "x" * 200, "1" * 90,
)  # fmt: skip
PIECES = (
    *TEXTS[2:-3], "#1", "!", "''", ",", "~", "°", "§", "ß", "ñ", "İ", "Ω", "ﬁ", "\u200b", "\t", "cat", "dragon", "8k",
)  # fmt: skip


class Tokenizers:
    """The tokenizer of a folder, by transformers and as an ONNX model."""

    def __init__(self, folder: Path, added: tuple[str, ...] = ()) -> None:
        files = {f"tokenizer/{path.name}": path for path in folder.iterdir()}
        size = len(CLIPTokenizer.from_pretrained(folder))
        tokens = {"tokenizer": {"tokens": list(added), "first": size}} if added else None
        contents = normalise_assets(INDEX, files, tokens)
        for name, data in contents.items():
            (folder / name.rpartition("/")[2]).write_bytes(data)
        self.theirs = CLIPTokenizer.from_pretrained(folder)
        architecture = tokenizer_architecture("tokenizer", contents)
        self.result = run_pass(ONNX_TOKENIZER, Model("tokenizer", architecture))
        options = ort.SessionOptions()
        options.register_custom_ops_library(get_library_path())
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(self.result.graph.data, options, providers=["CPUExecutionProvider"])

    def differences(self, texts: list[str]) -> list[str]:
        """Texts whose ids or masks are not the same."""
        ours = self.session.run(None, {"string_input": np.array(texts, dtype=object)})
        theirs = self.theirs(texts, padding="max_length", max_length=77, truncation=True, return_tensors="np")
        same = (ours[0] == theirs.input_ids) & (ours[1] == theirs.attention_mask)
        assert ours[0].dtype == ours[1].dtype == np.int64
        return [text for text, row in zip(texts, same, strict=True) if not row.all()]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """CLIP's own vocabulary with the tokens of three textual inversions."""
    folder = tmp_path_factory.mktemp("clip")
    write_clip_tokenizer(folder, "pad_end")
    return Tokenizers(folder, ADDED)


@pytest.fixture(scope="module")
def other_padding(tmp_path_factory):
    """CLIP's vocabulary as SD 2 and SDXL's second encoder have it: short texts end in exclamation marks."""
    folder = tmp_path_factory.mktemp("padded")
    write_clip_tokenizer(folder, "pad_exclamation")
    return Tokenizers(folder)


def test_ids_and_masks_are_those_of_transformers(clip):
    assert clip.differences(list(TEXTS)) == []


def test_tokens_of_textual_inversions_are_one_token_each(clip):
    texts = ["a <sks> cat", "<sks>", "a<cat-toy_1>b 1", "two <BIG> <big> ones", "x <Big>", "<sks><sks> 's"]
    assert clip.differences(texts) == []
    assert {49408, 49409, 49410} <= set(clip.theirs(" ".join(ADDED)).input_ids)


def test_random_texts_get_the_same_ids(clip):
    choose = random.Random(0)
    texts = [
        "".join(choose.choice(PIECES) + choose.choice(["", " ", "  "]) for _ in range(choose.randint(0, 25)))
        for _ in range(300)
    ]
    # A contraction behind a space and something that is no letter: the operator takes its apostrophe apart.
    assert clip.differences([text for text in texts if "'" not in text]) == []


def test_the_padding_token_is_that_of_the_tokenizer(other_padding):
    assert other_padding.differences([*TEXTS, "wow!! a !b! '!'"]) == []
    ids = other_padding.session.run(None, {"string_input": np.array(["cat"], dtype=object)})[0][0]
    assert ids[[0, 2, 3, 76]].tolist() == [49406, 49407, 0, 0]


def test_a_small_vocabulary_works_as_well(tmp_path):
    shutil.copytree(DEMO, tmp_path / "tokenizer")
    texts = ["a big red circle on a blue background", "", "4k portrait!"]
    assert Tokenizers(tmp_path / "tokenizer").differences(texts) == []


def test_a_vocabulary_with_words_that_merges_do_not_make_is_refused(tmp_path):
    write_tokenizer(tmp_path, 1000)
    with pytest.raises(PassError, match="the vocabulary holds 'photo</w>', which its merges take apart"):
        Tokenizers(tmp_path)


def test_the_interface_is_that_of_the_c_sharp_sample(clip):
    assert [(value.name, value.type) for value in clip.session.get_inputs()] == [("string_input", "tensor(string)")]
    outputs = [(value.name, value.type, value.shape) for value in clip.session.get_outputs()]
    assert outputs == [
        ("input_ids", "tensor(int64)", ["texts", 77]),
        ("attention_mask", "tensor(int64)", ["texts", 77]),
    ]
    assert clip.result.facts == {"tokens": 49408}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "the source has no tokenizer_2; fetch it, or remove `tokenizer_2`"),
        (
            {"tokenizer_2/tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer"}'},
            "tokenizer_2 is a T5Tokenizer; an ONNX model can be made of CLIP's tokenizers alone",
        ),
    ],
)
def test_what_is_no_tokenizer_of_clip_is_refused(files, message):
    with pytest.raises(SourceError, match=message):
        tokenizer_architecture("tokenizer_2", files)
