"""`vae`, `loras` and `embeddings` of a workflow, and `--lora`."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivelike.data import demo_edges, demo_few_steps_lora, demo_transformer
from olivelike.errors import UsageError, WorkflowError
from olivelike.workflow import FileRef, Lora, Source, load_workflow
from olivelike.workflow.long_form import parse_lora, split_weight, text_source
from olivelike.workflow.places import file_ref, weighted_file


@pytest.fixture
def load(tmp_path):
    def load(text, **more):
        (tmp_path / "mine.yaml").write_text(f"extends: sd15_cpu\n{text}", encoding="utf-8")
        return load_workflow(str(tmp_path / "mine.yaml"), **more).workflow

    return load


def test_a_lora_is_a_file_a_file_with_its_weight_or_a_map(load, tmp_path):
    loras = load(
        "loras:\n  - a.safetensors\n  - b.safetensors:0.6\n"
        "  - {file: c.safetensors, weight: -1, weights: {text_encoder: 0}, adapter: ink}\n"
    ).loras
    assert [lora.file.path for lora in loras] == [tmp_path / f"{name}.safetensors" for name in "abc"]
    assert [lora.weight for lora in loras] == [1.0, 0.6, -1.0]
    assert [lora.adapter for lora in loras] == [None, None, "ink"]
    assert loras[2].weight_of("text_encoder") == 0
    assert loras[2].weight_of("unet") == -1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.safetensors", ("a.safetensors", None)),
        ("a.safetensors:0.5", ("a.safetensors", 0.5)),
        ("a.safetensors:-1", ("a.safetensors", -1.0)),
        ("a.safetensors:.5e-1", ("a.safetensors", 0.05)),
        (r"C:\a.safetensors", (r"C:\a.safetensors", None)),
        (r"C:\a.safetensors:2", (r"C:\a.safetensors", 2.0)),
        ("a:nan", ("a:nan", None)),
        (":1", (":1", None)),
    ],
)
def test_a_weight_is_a_number_behind_the_last_colon(text, parts):
    assert split_weight(text) == parts


@pytest.mark.parametrize(("written", "weight"), [("0,8", "0,8"), ("x", "x"), ("", "nothing")])
def test_what_stands_behind_a_file_and_is_no_number_is_named(tmp_path, written, weight):
    (tmp_path / "style.safetensors").touch()
    with pytest.raises(UsageError, match=f"--lora style.safetensors:{written}: {weight} is no weight; write a number"):
        weighted_file(f"style.safetensors:{written}", tmp_path)


def test_a_file_whose_name_ends_like_a_weight_is_found(tmp_path):
    (tmp_path / "style:2").touch()
    lora = parse_lora("style:2", tmp_path)
    assert lora.file.path == tmp_path / "style:2"
    assert lora.weight == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", FileRef(hub="owner/name")),
        ("owner/name/style.safetensors", FileRef(hub="owner/name", name="style.safetensors")),
        ("owner/name/sub/style.pt", FileRef(hub="owner/name", name="sub/style.pt")),
    ],
)
def test_a_hub_file_is_named_by_repository_and_path(tmp_path, text, expected):
    assert file_ref(text, tmp_path) == expected


@pytest.mark.parametrize("text", ["style.safetensors", "loras/style.safetensors", "./owner/name", "here/name/a.pt"])
def test_other_files_are_paths(tmp_path, text):
    (tmp_path / "here").mkdir()
    assert file_ref(text, tmp_path).path == tmp_path / text


def test_a_vae_is_a_path_or_a_hub_id(load, tmp_path):
    assert load("vae: ./better\n").vae.path == tmp_path / "better"
    assert load("vae: better.safetensors\n").vae.path == tmp_path / "better.safetensors"
    assert load("vae: {hub: owner/better, revision: v2}\n").vae.revision == "v2"
    assert load("").vae is None


def test_an_override_chooses_another_vae(load):
    vae = load("vae: {hub: owner/better, revision: v2}\n", overrides=["vae.path=./mine"]).vae
    assert vae.hub is None
    assert vae.revision is None


def test_embeddings_are_files_or_maps(load, tmp_path):
    first, second = load("embeddings: [cat.pt, {file: owner/dogs, token: <dog>}]\n").embeddings
    assert first.file.path == tmp_path / "cat.pt"
    assert first.token is None
    assert second.file.hub == "owner/dogs"
    assert second.token == "<dog>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loras: [{weight: 1}]\n", r"missing key 'file'"),
        ("loras: [{file: a, wieght: 1}]\n", r"unknown key 'wieght'.*weight"),
        ("loras: [{file: a, weights: {vae: 1}}]\n", r"loras\.0\.weights"),
        ("loras: [{file: a, weight: '1'}]\n", r"`loras\.0\.weight` must be"),
        ("loras: a.safetensors\n", r"`loras` must be a list"),
        ("embeddings: [{file: a, token: 'two words'}]\n", r"`embeddings\.0\.token`"),
        ("vae: {revision: v2}\n", r"`vae` has either `hub` or `path`"),
        ("source: {path: a, prediction: noise}\n", r"`source\.prediction`"),
    ],
)
def test_mistakes_are_placed_and_explained(load, text, message):
    with pytest.raises(WorkflowError, match=message):
        load(text)


def test_loras_of_the_command_line_follow_those_of_the_file(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loras = load("loras: [a.safetensors]\n", extra_loras=["b.safetensors:0.5"]).loras
    assert [(Path(str(lora.file)).name, lora.weight) for lora in loras] == [
        ("a.safetensors", 1.0),
        ("b.safetensors", 0.5),
    ]


def test_a_lora_without_a_file_is_refused(load):
    with pytest.raises(UsageError, match="no file is named"):
        load("", extra_loras=[" "])


def test_an_infinite_weight_is_refused(tmp_path):
    with pytest.raises(UsageError, match="finite number, not inf"):
        parse_lora(f"style:{10**400}", tmp_path)


def test_what_ships_beside_the_demo_is_named_where_nothing_else_has_its_name(tmp_path):
    assert parse_lora("demo_lcm:0.5", tmp_path) == Lora(file=FileRef(path=demo_few_steps_lora()), weight=0.5)
    assert text_source("demo_edges", tmp_path) == Source(path=demo_edges())
    assert text_source("demo_transformer", tmp_path) == Source(path=demo_transformer())
    (tmp_path / "demo_lcm").mkdir()
    assert file_ref("demo_lcm", tmp_path).path == tmp_path / "demo_lcm"
