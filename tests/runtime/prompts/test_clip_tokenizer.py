"""CLIP tokenizers as the `tokenizers` library alone writes them, against transformers."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from olivelike.data import demo_folder
from olivelike.engine.output.fallback_assets import LibraryTokenizer
from olivelike.runtime.prompts.clip_tokenizer import ClipTokenizer, UnknownFormError
from olivelike.testing.checkpoint_configs import write_clip_tokenizer, write_tokenizer

LOADING = ("is_local", "local_files_only")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
NEW = ("<sks>", "<cat-toy>_1", "<Über>")
WHOLE, CONFIG, MAP, ADDED = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """CLIP's own tokenizer with both paddings, as the hub has it."""
    folder = tmp_path_factory.mktemp("published")
    for settings in ("pad_end", "pad_exclamation"):
        write_clip_tokenizer(folder / settings, settings)
    shutil.copytree(demo_folder() / "tokenizer", folder / "demo")
    return {path.name: read(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tokenizer of 1000 tokens, by the generation of transformers that saved it: 4, and 5."""
    folder = tmp_path_factory.mktemp("small")
    write_tokenizer(folder, 1000)
    old = read(folder)
    return {4: old, 5: LibraryTokenizer(old).files()}


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def saved(loaded, added=()):
    """Return what a tokenizer saves; how it was loaded is no part of it."""
    assert loaded.tokenizer.add_tokens(list(added)) == len(added)
    files = loaded.files()
    config = {key: value for key, value in json.loads(files[CONFIG]).items() if key not in LOADING}
    return files | {CONFIG: json.dumps(config, indent=2, ensure_ascii=False)}


def ours(files, added=()):
    loaded = ClipTokenizer(files)
    assert loaded.files()[CONFIG].decode().endswith("}\n")
    return saved(loaded, added)


def theirs(files, added=()):
    return saved(LibraryTokenizer(files), added)


def changed(files, name, change):
    content = json.loads(files.get(name, b"{}"))
    change(content)
    return files | {name: json.dumps(content).encode()}


def listed(text, **flags):
    return {"content": text, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, **flags}


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("pad_end", ()), ("pad_exclamation", NEW), ("demo", ()), ("demo", NEW),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("pad_end", NEW), ("pad_exclamation", ()))),
    ],
)  # fmt: skip
def test_published_tokenizers_are_written_to_the_byte(published, name, added):
    assert ours(published[name], added) == theirs(published[name], added)


@pytest.mark.parametrize("name", ["pad_exclamation", pytest.param("pad_end", marks=pytest.mark.slow)])
def test_what_transformers_5_saved_is_written_to_the_byte(published, name):
    new = LibraryTokenizer(published[name]).files()
    assert "vocab.json" not in new
    assert ours(new) == theirs(new) == theirs(published[name])
    again = ours(new, ["<sks>"])
    assert ours({key: value if isinstance(value, bytes) else value.encode() for key, value in again.items()}) == again


@pytest.mark.parametrize("pad", ["<|endoftext|>", "!"])
@pytest.mark.parametrize("extra", [None, {}, []])
def test_what_transformers_4_saved_is_written_to_the_byte(small, pad, extra):
    """Since 4.34 the added tokens are in the config; since 4.4x with an empty list or table of further ones."""
    config = json.loads(small[4][CONFIG]) | {"pad_token": pad}
    texts = {
        key: token["content"] if isinstance(token, dict) else token for key, token in config.items() if key in SPECIAL
    }
    config |= texts
    config["added_tokens_decoder"] = {
        "998": listed("<|startoftext|>", special=True),
        "999": listed("<|endoftext|>", special=True),
        "1000": listed("<sks>", special=False),
    }
    config["clean_up_tokenization_spaces"] = True
    if pad == "!":
        config["added_tokens_decoder"]["0"] = listed("!", special=True) | {"normalized": False}
    if extra is not None:
        config["extra_special_tokens"] = extra
    files = small[4] | {CONFIG: json.dumps(config).encode(), ADDED: b'{"<sks>": 1000}'}
    assert ours(files) == theirs(files)
    del files[CONFIG]
    assert ours(files) == theirs(files)
    del files[MAP]
    assert ours(files) == theirs(files)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_folder_says_of_its_special_tokens_is_read_as_transformers_does(small, seed):
    choose = random.Random(seed)
    texts = ["<|startoftext|>", "<|endoftext|>", "!", "<pad>", "a</w>"]

    def token(**more):
        flags = ("lstrip", "normalized", "rstrip", "single_word")
        said = {flag: choose.random() < 0.3 for flag in flags if choose.random() < 0.9}
        return {"content": choose.choice(texts), **said, **({"special": True} if choose.random() < 0.4 else {}), **more}

    def table():
        return {str(number): token() for number in choose.sample(range(996, 1004), choose.randint(0, 3))}

    files = dict(small[choose.choice([4, 5])])
    if WHOLE in files and choose.random() < 0.5:
        tokens = [{"id": int(number), **fields} for number, fields in table().items()]
        files = changed(files, WHOLE, lambda content: content.update(added_tokens=tokens))
    config = {
        key: choose.choice([choose.choice(texts), token(__type="AddedToken")])
        for key in SPECIAL[choose.randint(0, 3) :]
    }
    others = {
        "add_prefix_space": False, "backend": "tokenizers", "do_lower_case": True, "errors": "replace",
        "is_local": True, "local_files_only": True, "model_max_length": 77, "name_or_path": "elsewhere",
        "processor_class": "CLIPProcessor", "special_tokens_map_file": "there", "tokenizer_class": "CLIPTokenizer",
        "vocab_file": "other.json",
    }  # fmt: skip
    config |= {key: value for key, value in others.items() if choose.random() < 0.5}
    if choose.random() < 0.4:
        config["added_tokens_decoder"] = table()
    files[CONFIG] = json.dumps(config).encode()
    if choose.random() < 0.5:
        files[MAP] = json.dumps({key: choose.choice([choose.choice(texts), token()]) for key in SPECIAL[1:]}).encode()
    if choose.random() < 0.3:
        files[ADDED] = json.dumps({text: 1000 + i for i, text in enumerate(choose.sample(texts, 2))}).encode()
    try:
        mine = ours(files)
    except UnknownFormError:
        assert WHOLE in files  # the only doubt: two tokens with one number
    else:
        assert mine == theirs(files)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"{{ messages }}"),
        (CONFIG, b'{"padding_side": "left"}'),
        (CONFIG, b'{"model_max_length": 1e30}'),
        (CONFIG, b'{"bos_token": null}'),
        (CONFIG, b'{"bos_token": {"content": "<|startoftext|>"}}'),
        (CONFIG, b'{"add_bos_token": true}'),
        (CONFIG, b'{"extra_special_tokens": ["<x>"]}'),
        (CONFIG, b'{"added_tokens_decoder": {"1000": "<x>"}}'),
        (CONFIG, b"[]"),
        (MAP, b'{"additional_special_tokens": ["<x>"]}'),
        (MAP, b'{"bos_token": null}'),
        (ADDED, b'{"<x>": "1000"}'),
        ("vocab.json", b'{"a": -1}'),
        ("merges.txt", b"#version: 0.2\n\na b\n"),
    ],
)
def test_other_forms_are_left_to_transformers(small, name, content):
    with pytest.raises(UnknownFormError):
        ClipTokenizer({key: data for key, data in small[4].items() if key != MAP} | {name: content})


@pytest.mark.parametrize(
    "change",
    [
        {"truncation": {"direction": "Right", "max_length": 77, "strategy": "LongestFirst", "stride": 0}},
        {"added_tokens": None},
        {"model": {"type": "WordPiece"}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b c"]}},
    ],
)
def test_a_tokenizer_json_of_another_form_is_left_to_transformers(small, change):
    with pytest.raises(UnknownFormError):
        ClipTokenizer(changed(small[5], WHOLE, lambda content: content.update(change)))


def test_a_file_that_is_no_json_is_an_error(small):
    with pytest.raises(ValueError, match="Expecting"):
        ClipTokenizer(small[4] | {MAP: b"{"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"#version: 0.2\nno such\n", r"merges\.txt has merges of 'no', which the vocabulary lacks"),
        (b"#version: 0.2\nhalfwa", "'halfwa' is no pair of merges"),
        (b"\xff\x00", "decode"),
    ],
)
def test_damaged_merges_are_an_error_which_transformers_has_too(small, tmp_path, content, said):
    files = {key: data for key, data in small[4].items() if key != MAP} | {"merges.txt": content}
    with pytest.raises(ValueError, match=said):
        ClipTokenizer(files)
    transformers = pytest.importorskip("transformers")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(Exception):  # noqa: B017
        transformers.CLIPTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(("merges", "said"), [([["a", "b"]], "merges of 'ab'"), ([["a"]], "'a' is no pair")])
def test_damaged_merges_of_a_tokenizer_json_are_an_error(small, merges, said):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": merges}
    with pytest.raises(ValueError, match=said):
        ClipTokenizer(changed(small[5], WHOLE, lambda content: content.update(model=model)))
