"""The files beside the networks: tokenizers, scheduler, feature extractor."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import diffusers
import pytest
import transformers

from olivelike.engine.output.assets import normalise_assets
from olivelike.engine.plan.chains import check_scheduler
from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.identify.published import tokenizer_files
from olivelike.testing import make_checkpoint
from olivelike.testing.models import tiny_checkpoint
from tests.fixtures.t5_tokenizer import write_t5_tokenizer


def assets_of(checkpoint):
    source = open_source(SourceSpec(path=checkpoint), [])
    return normalise_assets(source.index, source.extras)


@pytest.fixture(scope="module")
def whole_tokenizer(tmp_path_factory):
    """A tokenizer as transformers 5 saves it: without `vocab.json` and `merges.txt`."""
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.CLIPTokenizer.from_pretrained(tiny_checkpoint() / "tokenizer").save_pretrained(folder)
    assert not (folder / "vocab.json").exists()
    return folder / "tokenizer.json"


def test_vocab_and_merges_made_from_tokenizer_json_are_the_original_ones(whole_tokenizer):
    files = normalise_assets({}, {"tokenizer/tokenizer.json": whole_tokenizer})
    original = tiny_checkpoint() / "tokenizer"
    assert json.loads(files["tokenizer/vocab.json"]) == json.loads((original / "vocab.json").read_bytes())
    assert files["tokenizer/merges.txt"].decode() == (original / "merges.txt").read_text("utf-8")
    assert files["tokenizer/tokenizer.json"] == whole_tokenizer.read_bytes()


def test_merges_written_as_text_are_taken_too(tmp_path):
    content = {"model": {"vocab": {"é": 0}, "merges": ["a b", "c d"]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    files = normalise_assets({}, {"tokenizer_2/tokenizer.json": tmp_path / "tokenizer.json"})
    assert files["tokenizer_2/merges.txt"] == b"#version: 0.2\na b\nc d\n"
    assert files["tokenizer_2/vocab.json"] == '{"é": 0}'.encode()


def test_vocabularies_that_are_there_go_along_to_the_byte():
    original = tiny_checkpoint()
    names = ["tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer/tokenizer_config.json"]
    assert normalise_assets({}, {name: original / name for name in names}) == {
        name: (original / name).read_bytes() for name in names
    }


def test_a_checkpoint_of_an_older_generation_gives_the_files_of_todays(tmp_path):
    assert assets_of(make_checkpoint(tmp_path, layout="hub")) == assets_of(tiny_checkpoint())


def test_the_scheduler_is_the_one_of_the_source(tmp_path):
    (tmp_path / "scheduler_config.json").write_bytes(assets_of(tiny_checkpoint())["scheduler/scheduler_config.json"])
    ours = diffusers.PNDMScheduler.from_pretrained(tmp_path)
    theirs = diffusers.PNDMScheduler.from_pretrained(tiny_checkpoint() / "scheduler")
    assert dict(ours.config) == dict(theirs.config)


def test_the_packaged_merges_give_the_vocabulary_of_clip(tmp_path):
    family = FAMILIES["sdxl"]
    index = {folder: ["transformers", "CLIPTokenizer"] for folder in family.published.tokenizers}
    files = normalise_assets(index, tokenizer_files(family))
    vocabulary = json.loads(files["tokenizer/vocab.json"])
    assert list(vocabulary.values()) == list(range(49408))
    assert hashlib.sha256(files["tokenizer/merges.txt"]).hexdigest().startswith("9fd691f7")
    for folder, padding in (("tokenizer", 49407), ("tokenizer_2", 0)):
        for name, data in files.items():
            if name.startswith(f"{folder}/"):
                (tmp_path / name.partition("/")[2]).write_bytes(data)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(tmp_path)
        ids = tokenizer("a photo of a cat", padding="max_length", max_length=9).input_ids
        # As OpenAI's tokenizer gives them.
        assert ids == [49406, 320, 1125, 539, 320, 2368, 49407, padding, padding]


def test_merges_of_no_clip_tokenizer_make_no_vocabulary(tmp_path):
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nabc d\n")
    with pytest.raises(SourceError, match=r"tokenizer/merges\.txt: 'abc d' is no merge of CLIP"):
        normalise_assets({}, {"tokenizer/merges.txt": tmp_path / "merges.txt"})


def test_a_tokenizer_without_any_vocabulary_is_an_error(tmp_path):
    shutil.copy(tiny_checkpoint() / "tokenizer" / "tokenizer_config.json", tmp_path)
    with pytest.raises(SourceError, match=r"tokenizer has neither vocab.json with merges.txt nor tokenizer.json"):
        normalise_assets({}, {"tokenizer/tokenizer_config.json": tmp_path / "tokenizer_config.json"})


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {"vocab": []}}', '{"model": null}', "[" * 100_000])
def test_a_tokenizer_of_another_kind_is_an_error(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(SourceError, match=r"tokenizer/tokenizer.json is no byte-pair tokenizer"):
        normalise_assets({}, {"tokenizer/tokenizer.json": tmp_path / "tokenizer.json"})


@pytest.mark.parametrize("name", ["scheduler/scheduler_config.json", "feature_extractor/preprocessor_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"a": ' * 100_000])
def test_a_config_that_is_no_json_object_is_an_error(tmp_path, name, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SourceError, match=rf"the source's {name} is no JSON"):
        normalise_assets({"scheduler": ["diffusers", "PNDMScheduler"]}, {name: tmp_path / "config.json"})


def test_a_scheduler_without_bounds_is_taken_as_diffusers_saves_it(tmp_path):
    diffusers.DPMSolverMultistepScheduler().save_config(tmp_path)
    file = tmp_path / "scheduler_config.json"
    assert "-Infinity" in file.read_text()
    extras = {"scheduler/scheduler_config.json": file}
    check_scheduler(SimpleNamespace(extras=extras, few_steps=None))
    data = normalise_assets({"scheduler": ["diffusers", "DPMSolverMultistepScheduler"]}, extras)
    assert json.loads(data["scheduler/scheduler_config.json"])["lambda_min_clipped"] == float("-inf")


def test_a_tokenizer_of_any_generation_comes_out_as_saved_today(whole_tokenizer, tmp_path):
    index = {"tokenizer": ["transformers", "CLIPTokenizer"]}

    def normalised(folder):
        return normalise_assets(index, {f"tokenizer/{path.name}": path for path in folder.iterdir()})

    old, new = normalised(tiny_checkpoint() / "tokenizer"), normalised(whole_tokenizer.parent)
    assert old == new
    assert set(old) == {
        f"tokenizer/{name}"
        for name in ("merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json")
    }
    for name, data in old.items():
        (tmp_path / name.partition("/")[2]).write_bytes(data)
    prompt = "A photo of a cat, détaillé"
    ours, theirs = (
        transformers.CLIPTokenizer.from_pretrained(folder) for folder in (tmp_path, tiny_checkpoint() / "tokenizer")
    )
    assert ours(prompt, padding="max_length").input_ids == theirs(prompt, padding="max_length").input_ids
    assert normalised(tmp_path) == old


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("{", "#version: 0.2\n", r"tokenizer/vocab.json is no JSON.*fetch the file again"),
        ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\na", "merges.txt does not fit its vocab.json at 'a'"),
        ('{"a": 0, "b": 1}', "#version: 0.2\na b\n", "does not fit its vocab.json at 'a b'; fetch both"),
    ],
)
def test_a_tokenizer_that_was_cut_off_is_an_error(tmp_path, vocabulary, merges, message):
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    files = {f"tokenizer/{name}": tmp_path / name for name in ("vocab.json", "merges.txt")}
    with pytest.raises(SourceError, match=message):
        normalise_assets({"tokenizer": ["transformers", "CLIPTokenizer"]}, files)


def test_a_tokenizer_of_another_kind_goes_along_as_its_family_says(tmp_path, monkeypatch):
    write_t5_tokenizer(tmp_path)
    files = {f"tokenizer/{path.name}": path for path in tmp_path.iterdir()}
    with pytest.raises(SourceError, match="no byte-pair tokenizer"):
        normalise_assets({}, files)
    texts = tuple(replace(text, kind="t5") for text in FAMILIES["sd1"].texts)
    monkeypatch.setitem(FAMILIES, "sd1", replace(FAMILIES["sd1"], texts=texts))
    assert normalise_assets({}, files) == {name: path.read_bytes() for name, path in files.items()}
    with pytest.raises(SourceError, match=r"no CLIP tokenizer, so `embeddings:`"):
        normalise_assets({}, files, {"tokenizer": {"first": 1, "tokens": ["new"]}})
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(SourceError, match="no unigram tokenizer"):
        normalise_assets({}, files)
    del files["tokenizer/tokenizer.json"]
    with pytest.raises(SourceError, match="its other files alone are not read"):
        normalise_assets({}, files)
