"""`olivelike check-client`: each requirement of each client, met and broken, on folders of headers."""

from __future__ import annotations

import json
import shutil

import pytest
from header_folders import (
    SD15,
    TRANSFORMERS,
    spec,
    transformer,
    write,
    write_graph,
    write_json,
    write_model,
    write_tokenizer_model,
)

from olivelike.cli.app import run_command_line
from olivelike.errors import SourceError, UsageError
from olivelike.measure.clients import CLIENTS, check_client
from olivelike.model.client_layouts import LAYOUTS, is_package


def verdicts(folder, client, status="failed"):
    return {v.requirement: v.reason for v in check_client(folder, client).verdicts if v.status == status}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "sd15", spec())


@pytest.fixture
def csharp(tmp_path):
    described = spec()
    unet = described["models"]["unet"][0]
    unet[1] = ("timestep", "INT64", [1])
    path = write(tmp_path / "csharp", described)
    write_tokenizer_model(path / "tokenizer" / "cliptokenizer.onnx")
    return path


@pytest.fixture
def dml(tmp_path):
    path = tmp_path / "painter" / "unet"
    path.mkdir(parents=True)
    inputs = [(name, "FLOAT16", shape) for name, _, shape in SD15["models"]["unet"][0]]
    inputs[0][2][1] = "unet_sample_channels"
    write_model(path / "painter.onnx", inputs, SD15["models"]["unet"][1], "FLOAT16", "painter.onnx.data")
    inputs[0][2][1] = 4
    return path.parent


def test_every_layout_has_its_client_but_one_file_and_packages_which_need_none():
    assert list(CLIENTS) == [name for name, layout in LAYOUTS.items() if not layout.one_file and not is_package(name)]


@pytest.mark.parametrize("float_type", ["FLOAT", "FLOAT16"])
def test_diffusers_and_onnxstack_load_a_pipeline_of_sd15(tmp_path, float_type):
    path = write(tmp_path, spec(float=float_type))
    assert verdicts(path, "diffusers") == verdicts(path, "diffusers", "advice") == {}
    assert verdicts(path, "onnxstack") == {}
    assert list(verdicts(path, "onnxstack", "advice")) == ["data files are called model.onnx.data"]


def test_optimum_loads_it_too_with_advice(folder):
    assert verdicts(folder, "optimum") == {}
    assert verdicts(folder, "optimum", "advice") == {
        "model_index.json names a class that `ORTDiffusionPipeline` finds": (
            "it is 'OnnxStableDiffusionPipeline': only a pipeline class named in code loads the folder"
        ),
        "unet: timestep is a scalar": "it has a dimension, which is added at each step with a warning",
        "CUDA: sizes of outputs can be computed from those of inputs": "vae_encoder: latent_sample has 'h'",
    }


@pytest.mark.parametrize("class_name", TRANSFORMERS)
def test_optimum_loads_the_transformers_that_it_has_pipelines_of(tmp_path, class_name):
    described = transformer(class_name)
    path = write(tmp_path, described)
    assert verdicts(path, "optimum") == verdicts(path, "optimum", "advice") == {}
    described["models"]["transformer"][0].append(("siglip", "FLOAT", ["batch", 8]))
    described["models"]["text_encoder"][1].pop(0 if class_name.startswith("Stable") else 1)
    write(path, described)
    write_json(path / "vae_decoder" / "config.json", {"scaling_factor": 1.0})
    shutil.rmtree(path / "text_encoder_2")
    found = verdicts(path, "optimum")
    assert {name.partition(":")[0] for name in found} >= {
        "transformer", "text_encoder", "text_encoder_2/model.onnx and its data are there",
        "text_encoder_2/config.json exists", "the configs of the VAE have shift_factor",
    }  # fmt: skip
    assert "siglip" in next(reason for name, reason in found.items() if name.startswith("transformer: the inputs"))


def test_a_folder_of_stable_diffusion_3_may_lack_t5(tmp_path):
    path = write(tmp_path, transformer("StableDiffusion3Pipeline"))
    shutil.rmtree(path / "text_encoder_3")
    assert verdicts(path, "optimum") == {}


def test_optimum_has_no_pipeline_of_other_transformers(tmp_path):
    described = transformer("FluxPipeline")
    path = write(tmp_path, {**described, "index": {**described["index"], "_class_name": "ZImagePipeline"}})
    assert verdicts(path, "optimum") == {"optimum has pipelines of its family": "it has none of Z-Image"}


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "optimum"])
def test_clients_of_unets_say_no_more_of_a_transformer(tmp_path, client):
    path = write(tmp_path, transformer("FluxPipeline"))
    (told,) = check_client(path, client).verdicts
    assert str(told).startswith("failed  its denoiser is a UNet: FLUX.1 has a transformer; draw with")


def test_the_sample_in_c_sharp_loads_what_is_laid_out_for_it(csharp, folder):
    assert verdicts(csharp, "csharp") == {}
    assert verdicts(folder, "csharp") == {
        "cliptokenizer.onnx takes string_input and gives int64 ids": "there is none",
        "unet: input timestep is int64 and accepts [1]": "it is float32",
    }


def test_the_directml_extension_loads_one_renamed_unet(dml, folder):
    assert verdicts(dml, "a1111-dml") == verdicts(dml, "a1111-dml", "advice") == {}
    assert set(verdicts(folder, "a1111-dml")) == {
        "every input is float16", "the dimensions have the names that the extension fixes",
    }  # fmt: skip
    assert set(verdicts(folder, "a1111-dml", "advice")) == {
        "the folder holds no other ONNX file", "the file is named after its checkpoint",
        "the data file is named after the UNet's file",
    }  # fmt: skip


def _change(component, side, position, value):
    def change(path):
        described = spec()
        values = described["models"][component][side]
        if value is None:
            del values[position]
        else:
            values[position : position + 1] = [value]
        write(path, described)

    return change


def _index(**entries):
    return lambda path: write_json(path / "model_index.json", {**SD15["index"], **entries})


def _without(name):
    def change(path):
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()

    return change


def _swap_unet_inputs(path):
    described = spec()
    described["models"]["unet"][0].reverse()
    write(path, described)


@pytest.mark.parametrize(
    ("client", "change", "requirement", "reason"),
    [
        (
            "diffusers",
            _index(_class_name="ORTStableDiffusionPipeline"),
            "model_index.json names an Onnx pipeline",
            "it is 'ORTS",
        ),
        (
            "diffusers",
            _index(unet=["diffusers", "UNet2DConditionModel"]),
            "model_index.json has each network",
            "that of unet is",
        ),
        (
            "diffusers",
            _index(safety_checker=[None, None]),
            "the safety checker is there",
            "requires_safety_checker is not false",
        ),
        ("diffusers", _without("scheduler"), "scheduler/scheduler_config.json exists", "it is missing"),
        (
            "diffusers",
            _without("vae_encoder/weights.pb"),
            "vae_encoder/model.onnx and its data",
            "weights.pb is missing",
        ),
        (
            "diffusers",
            _change("text_encoder", 0, 0, ("input_ids", "INT64", [1, 77])),
            "text_encoder: input input_ids is int32",
            "it is int64",
        ),
        (
            "diffusers",
            _change("unet", 0, 1, ("timestep", "FLOAT", [])),
            "unet: input timestep accepts [1]",
            "its shape is []",
        ),
        (
            "diffusers",
            _change("text_encoder", 1, 0, ("last_hidden_state", "FLOAT16", [])),
            "texts, latents and noise",
            "first output is float16",
        ),
        (
            "diffusers",
            _change("vae_encoder", 1, 0, None),
            "vae_encoder: the first output has shape",
            "[batch, 8, h, w]",
        ),
        (
            "diffusers",
            _change("safety_checker", 0, 1, ("images", "FLOAT16", [])),
            "the safety checker takes pictures",
            "images is float16",
        ),
        ("optimum", _index(unet=None), "model_index.json has an entry for unet", "it has none"),
        ("optimum", _without("vae_decoder/config.json"), "vae_decoder/config.json exists", "it is missing"),
        (
            "optimum",
            _change("unet", 1, 0, ("noise", "FLOAT", [])),
            "unet: the only output is out_sample",
            "they are noise",
        ),
        (
            "optimum",
            _change("vae_decoder", 1, 0, ("picture", "FLOAT", [])),
            "vae_decoder: the output is sample",
            "it is picture",
        ),
        (
            "onnxstack",
            _swap_unet_inputs,
            "unet: the inputs are sample, timestep, encoder_hidden_states, in this",
            "they are encoder",
        ),
        ("onnxstack", _without("tokenizer/merges.txt"), "tokenizer/merges.txt exists", "it is missing"),
        (
            "onnxstack",
            _change("unet", 0, 1, ("timestep", "INT32", [1])),
            "unet: input timestep is float32 or",
            "it is int32",
        ),
        ("onnxstack", _change("text_encoder", 1, 1, None), "text_encoder: the second output", "it has 1 outputs"),
        (
            "csharp",
            _change("text_encoder", 1, 0, ("last_hidden_state", "FLOAT", [1, 77, 1024])),
            "text_encoder: the first output has shape [1, 77, 768]",
            "1024",
        ),
        (
            "csharp",
            _change("safety_checker", 1, 1, ("has_nsfw_concepts", "INT64", [1])),
            "safety_checker: the last output is bool",
            "it is int64",
        ),
        ("a1111-dml", _without("unet"), "the UNet's file and its data are there", "of 4 ONNX files none"),
        ("a1111-dml", _change("unet", 0, 2, ("context", "FLOAT16", [])), "the inputs are sample", "timestep, context"),
    ],
)
def test_what_is_not_met_is_told_with_its_reason_and_a_remedy(folder, client, change, requirement, reason):
    before = verdicts(folder, client)
    change(folder)
    new = [
        v for v in check_client(folder, client).verdicts if v.status == "failed" and v.requirement not in before
    ] or [v for v in check_client(folder, client).verdicts if v.requirement.startswith(requirement)]
    (found,) = (v for v in new if v.requirement.startswith(requirement))
    assert reason in found.reason
    assert found.remedy


def test_sdxl_is_asked_for_its_second_encoder_and_not_fed_by_sd_1_clients(tmp_path):
    described = spec()
    described["models"]["text_encoder_2"] = (
        [("input_ids", "INT32", ["batch", "sequence"])],
        [("last_hidden_state", "FLOAT", ["batch", "sequence", 8]), ("text_embeds", "FLOAT", ["batch", 8])],
    )
    described["models"]["unet"][0].append(("text_embeds", "FLOAT", ["batch", 8]))
    path = write(tmp_path, described)
    assert verdicts(path, "optimum") == {
        "text_encoder_2: text_embeds is the first output": "the first is last_hidden_state",
        "text encoders give hidden_states.N for each layer": "text_encoder lacks hidden_states.0",
    }
    assert verdicts(path, "onnxstack") == {
        "text_encoder_2: the first output is float32 or float16 or bfloat16 and has shape [1, ?]": (
            "its shape is [batch, sequence, 8]"
        )
    }
    extra = "unet: the inputs are sample, timestep, encoder_hidden_states"
    assert verdicts(path, "diffusers")[extra] == "they are sample, timestep, encoder_hidden_states, text_embeds"


@pytest.mark.parametrize("changes", [{"operator": "BertTokenizer"}, {"text": "text"}])
def test_an_onnx_tokenizer_of_another_kind_is_told(csharp, changes):
    write_tokenizer_model(csharp / "tokenizer" / "cliptokenizer.onnx", **changes)
    assert list(verdicts(csharp, "csharp")) == ["cliptokenizer.onnx takes string_input and gives int64 ids"]


def test_a_part_that_is_missing_is_told_once_with_what_brings_it(csharp):
    shutil.rmtree(csharp / "safety_checker")
    failed = [one for one in check_client(csharp, "csharp").verdicts if one.status == "failed"]
    assert [one.requirement for one in failed] == ["safety_checker/model.onnx and its data are there"]
    assert "a single file never has one" in failed[0].remedy


@pytest.mark.parametrize("layers", [10**13, "abc", None, 2.5])
def test_a_count_of_layers_that_is_none_is_a_reason_and_no_crash(folder, layers):
    write_json(folder / "model_index.json", {**SD15["index"], "_class_name": "StableDiffusionXLPipeline"})
    write_json(folder / "text_encoder" / "config.json", {"num_hidden_layers": layers})
    found = verdicts(folder, "optimum")["text encoders give hidden_states.N for each layer"]
    assert found == ("text_encoder lacks hidden_states.0" if layers == 10**13 else
                     "the config of text_encoder has no whole number as num_hidden_layers")  # fmt: skip


def test_a_broken_model_is_a_reason_and_no_crash(folder):
    (folder / "unet" / "model.onnx").write_bytes(b"\0no protobuf" * 9)
    assert "is not an ONNX model" in verdicts(folder, "diffusers")["unet/model.onnx and its data are there"]
    write_graph(folder / "unet" / "model.onnx", [], [], [], [], {"": 17})
    assert verdicts(folder, "optimum")["unet: the only output is out_sample"] == "they are "


def test_an_empty_folder_fails_every_client(tmp_path):
    for client in CLIENTS:
        result = check_client(tmp_path, client)
        assert result.failed
        assert {verdict.status for verdict in result.verdicts} <= {"failed", "advice", "ok"}


def test_the_command_writes_a_line_for_each_requirement_and_exits_with_3(folder, capsys):
    assert run_command_line(["check-client", str(folder), "--client", "diffusers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CLIENTS["diffusers"])
    assert all(line.startswith("ok      ") for line in lines)
    assert run_command_line(["check-client", str(folder), "--client", "csharp"]) == 3
    found = capsys.readouterr()
    assert "failed  unet: input timestep is int64 and accepts [1]: it is float32; run the workflow with" in found.out
    assert "csharp can't load it: 2 of 26 requirements are not met" in found.err


def test_the_command_writes_json(folder, capsys):
    assert run_command_line(["check-client", str(folder), "--client", "optimum", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["client"], content["ok"]) == ("optimum", True)
    assert content["requirements"][0] == {
        "requirement": "optimum has pipelines of its family", "status": "ok", "reason": None, "remedy": None,
    }  # fmt: skip
    assert {entry["status"] for entry in content["requirements"]} == {"ok", "advice"}


def test_an_unknown_client_or_folder_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="unknown client 'optimun'; did you mean 'optimum'"):
        check_client(folder, "optimun")
    with pytest.raises(SourceError, match="is no folder; name the folder of a pipeline"):
        check_client(tmp_path / "nothing", "optimum")


def test_a_page_wants_a_manifest_and_float32_at_the_border(tmp_path):
    path = write(tmp_path, spec(float="FLOAT16"))
    assert verdicts(path, "web")
    path = write(tmp_path / "float32", spec(float="FLOAT"))
    found = verdicts(path, "web")
    assert list(found) == ["manifest.json exists", "scheduler/model.onnx exists"]
    (path / "scheduler").mkdir(exist_ok=True)
    for name in ("manifest.json", "scheduler/model.onnx"):
        (path / name).write_text("{}")
    assert verdicts(path, "web") == {}
