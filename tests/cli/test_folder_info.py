"""What `olivelike info` and `inspect` say of folders, and of files that are something else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from olivelike.engine.output import folder_info
from olivelike.model.records.output import ComponentRecord, StepRecord
from olivelike.model.targets import find_target
from tests.fixtures.sample_records import write_output_record

OUTPUT = "models/little"


def test_info_of_an_output_says_what_it_was_made_of_and_for_what(project, cli):
    text = cli("info", OUTPUT).out
    lines = dict(line.split(maxsplit=1) for line in text.splitlines()[1:])
    assert text.startswith("models/little: a pipeline that olivelike wrote\n")
    assert lines["workflow"] == "little"
    assert lines["made"] == "of       checkpoint (folder)"
    assert lines["target"] == "cpu in fp32"
    assert lines["written"].startswith("20")
    assert "convert, label" in lines["components"]
    assert " kB in " in lines["size"]
    found = json.loads(cli("info", OUTPUT, "--json").out)
    assert (found["kind"], found["problems"], found["made_of"]) == ("output", [], "checkpoint (folder)")
    assert found["components"]["text_encoder"]["bytes"] < found["bytes"]


def test_info_of_an_output_says_which_networks_have_fewer_bits(tmp_path):
    made = {
        name: ComponentRecord("k", passes=(StepRecord("convert"), *map(StepRecord, behind)))
        for name, behind in {"text_encoder": ["weights8"], "transformer": ["weights8"], "vae_decoder": []}.items()
    }
    write_output_record(tmp_path, components=made, target=find_target("cpu").choice())
    assert folder_info.describe_folder(tmp_path).facts["target"] == "cpu in fp32, w8 in text_encoder and transformer"


def test_info_of_an_output_names_loras_and_what_is_missing(project, cli):
    record = Path(OUTPUT, "olivelike.json")
    content = json.loads(record.read_text())
    content["loras"] = [
        {"origin": {"kind": "file", "name": "ink\x1b[2J.safetensors"}, "weight": 0.8, "weights": {"unet": 0.5}}
    ]
    record.write_text(json.dumps(content))
    Path(OUTPUT, "text_encoder", "model.onnx").unlink()
    Path(OUTPUT, "text_encoder", "config.json").write_text("{}")
    text = cli("info", OUTPUT).out
    assert "LoRAs         ink�[2J.safetensors (file) at 0.8, 0.5 in unet\n" in text
    assert "problem       text_encoder/model.onnx is missing; run the workflow again" in text
    assert "text_encoder/config.json has 2 bytes in place of" in text


def test_info_of_a_record_that_can_not_be_read_says_so(project, cli):
    Path(OUTPUT, "olivelike.json").write_text("{")
    result = cli("info", OUTPUT)
    assert (result.status, "run the workflow that made it again" in result.err) == (3, True)


@pytest.mark.parametrize("name", ["olivelike.json", "model_index.json", "config.json"])
def test_a_folder_whose_json_is_nested_without_end_is_refused(empty_folder, cli, name):
    Path(name).write_text("[" * 100_000)
    result = cli("info", ".")
    assert (result.status, result.err.count("\n")) == (3, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("command", ["info", "inspect"])
def test_a_pipe_is_not_waited_for(empty_folder, cli, command):
    pytest.importorskip(f"olivelike.cli.commands.{command}", reason="needs all of olivelike")
    os.mkfifo("model.onnx")
    result = cli(command, "model.onnx")
    assert (result.status, "only regular files are read" in result.err) == (3, True)


@pytest.mark.parametrize("name", ["olivelike.json", "model_index.json"])
def test_info_waits_for_no_pipe_in_a_folder(project, cli, name):
    folder = project / ("models/little" if name == "olivelike.json" else "checkpoint")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    found = cli("info", folder)
    assert found.status in {0, 2, 3}, found.err


@pytest.mark.parametrize("loras", [[1], [None], [{"weights": {"unet": "x"}}], [{"weight": "\x1b[31m"}]])
def test_a_record_with_strange_loras_is_no_bug(project, cli, loras):
    record = project / "models" / "little" / "olivelike.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "loras": loras}))
    found = cli("info", record.parent)
    assert found.status in {0, 2, 3}, found.err
    assert "\x1b" not in found.out + found.err


def test_info_of_a_diffusers_folder_lists_its_networks(project, cli):
    text = cli("info", "checkpoint").out
    assert text.startswith("checkpoint: a diffusers pipeline\nclass         StableDiffusionPipeline\n")
    assert "UNet2DConditionModel (diffusers)" in text
    assert "next          olivelike convert checkpoint -t TARGET -o models/checkpoint" in text
    text = cli("info", "checkpoint/unet").out
    assert text.startswith("checkpoint/unet: one network of a pipeline\nclass         UNet2DConditionModel\n")
    shutil.rmtree("checkpoint/unet")
    assert "unet" not in cli("info", "checkpoint").out
    Path("checkpoint").rename("my model")
    told = cli("info", "my model").out
    assert "next          olivelike convert 'my model' -t TARGET -o 'models/my model'" in told


def test_info_of_another_folder_names_what_is_in_it(project, cli):
    result = cli("info", "models")
    assert (result.status, result.out) == (3, "")
    assert result.err == "error: models: this folder holds no model; in it are little\n"
    assert "name a weight file" in cli("info", "workflows").err


@pytest.mark.parametrize(
    ("command", "file", "said"),
    [
        ("info", f"{OUTPUT}/text_encoder/model.onnx", "`olivelike inspect` reads models"),
        ("info", f"{OUTPUT}/text_encoder/weights.pb", "an ONNX model or its data"),
        ("info", "workflows/little.yaml", "this is text, no weight file"),
        ("info", "models/litle", "did you mean models/little?"),
        ("info", "model/little", "did you mean models/little?"),
        ("inspect", "checkpoint/unet/diffusion_pytorch_model.safetensors", "use `olivelike info`"),
        ("inspect", "workflows/little.yaml", "this is text, no ONNX model"),
        ("inspect", OUTPUT, f"name the model in it, such as {OUTPUT}/text_encoder/model.onnx"),
        ("inspect", "checkpoint/unet", "`olivelike info` may know it"),
        ("inspect", f"{OUTPUT}/text_encoder/modl.onnx", f"did you mean {OUTPUT}/text_encoder/model.onnx?"),
        ("plan", "workflows/litle.yaml", "did you mean workflows/little.yaml?"),
        ("generate", "models/litle", "did you mean models/little?"),
    ],
)  # fmt: skip
def test_what_is_something_else_or_not_there_is_told_with_what_to_do(project, cli, command, file, said):
    result = cli(command, file)
    assert result.status in {2, 3}
    assert result.out == ""
    assert said in result.err


def test_a_source_that_does_not_exist_names_the_nearest(empty_folder, cli):
    from olivelike.testing.checkpoints import make_checkpoint

    make_checkpoint(empty_folder / "painter")
    for wrong, said in (("./paintr", "did you mean painter?"), ("./else", "check its name")):
        result = cli("convert", wrong, "-t", "cpu", "-o", "out")
        assert (result.status, said in result.err) == (3, True)
    (empty_folder / "prompts.txt").write_text("a red circle\na blue one\n")
    result = cli("convert", "./prompts.txt", "-t", "cpu", "-o", "out")
    assert (result.status, "this is text, no weight file" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("layout", "line"), [("single", "olivelike bench out"), ("web", "olivelike export-web out site")]
)
def test_what_to_do_next_is_said_where_its_extra_is_there(monkeypatch, layout, line):
    monkeypatch.setattr(folder_info, "commands", lambda: {"bench": None, "export-web": None})
    assert folder_info._next(Path("out"), layout) == line
    monkeypatch.setattr(folder_info, "commands", dict)
    assert folder_info._next(Path("out"), layout) is None
    assert folder_info._next(Path("out"), "diffusers").startswith("olivelike generate")
