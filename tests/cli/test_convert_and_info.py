"""`olivelike convert` and `olivelike info` on real files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from olivelike.cli.commands.convert import next_step
from olivelike.engine import convert_request
from olivelike.model.targets import TARGETS
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_pipeline
from tests.fixtures.little_transformers import little_transformer


def test_info_describes_a_lora(cli, project):
    notes = {"modelspec.trigger_phrase": "in ink"}
    path = make_lora(project / "style.safetensors", "kohya", base=project / "checkpoint", alpha=2, metadata=notes)
    found = json.loads(cli("info", str(path), "--json").out)
    assert (found["kind"], found["lora"]["ranks"], found["lora"]["alphas"]) == ("lora", [4], [2.0])
    assert found["lora"]["trigger_words"] == ["in ink"]
    assert set(found["lora"]["modules"]) == {"text_encoder", "unet"}
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert found["hashes"]["auto_v2"] == hashlib.sha256(data).hexdigest()[:10]
    assert found["hashes"]["auto_v3"] == hashlib.sha256(data[start:]).hexdigest()[:12]
    text = cli("info", str(path)).out
    assert "in ink" in text
    assert "AutoV2" in text
    assert "AutoV2" not in cli("info", str(path), "--no-hash").out


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_info_names_an_alpha_that_is_no_number(cli, project, value):
    path = make_lora(project / "style.safetensors", "kohya", base=project / "checkpoint", alpha=2)
    tensors = load_file(path)
    broken = next(name for name in tensors if name.endswith(".alpha"))
    save_file({**tensors, broken: np.array(value, np.float32)}, path)
    result = cli("info", str(path), "--json")
    found = json.loads(result.out, parse_constant=pytest.fail)
    assert (result.status, found["lora"]["alphas"]) == (0, [2.0])
    assert found["problem"].startswith(f"{broken} is {value}; ")


def test_info_describes_an_embedding(cli, tmp_path):
    save_file({"<cat>": np.zeros((2, 768), np.float32)}, tmp_path / "cat.safetensors")
    found = json.loads(cli("info", str(tmp_path / "cat.safetensors"), "--json").out)
    assert found["embedding"] == {"token": "<cat>", "shapes": {"text_encoder": [2, 768]}}


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0{}", b"PK\x03\x04junk"])
def test_info_refuses_what_it_cannot_read(cli, tmp_path, content):
    (tmp_path / "broken.safetensors").write_bytes(content)
    result = cli("info", str(tmp_path / "broken.safetensors"))
    assert result.status == 3
    assert "broken.safetensors" in result.err


def test_convert_prints_and_saves_the_workflow_that_it_would_run(cli, project):
    foreign = {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (16, 2048)}
    make_lora(project / "other.safetensors", "peft", base={"unet": foreign}, components=("unet",))
    result = cli(
        "convert", "checkpoint", "-t", "directml", "-o", "models/new", "--lora", "other.safetensors:0.5",
        "--save-workflow", "workflows/new.yaml", "--layout", "csharp",
    )  # fmt: skip
    assert result.status == 3  # The LoRA is for SDXL; the workflow is there all the same.
    saved = yaml.safe_load((project / "workflows" / "new.yaml").read_text())
    assert saved == yaml.safe_load(result.out.partition("\n\n")[0])
    assert saved["layout"] == "csharp"
    assert saved["loras"] == [{"file": "./other.safetensors", "weight": 0.5}]
    assert saved["components"]["unet"] == ["merge_lora", "convert", "fuse", "float16"]
    assert saved["components"]["vae_encoder"] == ["convert", "fuse", "float16"]
    assert not (project / "models" / "new").exists()
    again = cli("convert", "checkpoint", "-t", "cpu", "-o", "x", "--save-workflow", "workflows/new.yaml")
    assert again.status == 2
    assert "is there already" in again.err


def test_convert_tells_the_record_what_was_typed(cli, project, monkeypatch):
    told = []
    monkeypatch.setattr("olivelike.engine.run.run", lambda _, options, *rest: told.append(options.command) or _done())
    assert cli("convert", "checkpoint", "-t", "cpu", "-o", "my model", "--layout", "csharp").status == 0
    assert told == ["olivelike convert checkpoint --target cpu --output 'my model' --layout csharp"]


def _done():
    from olivelike.engine.run_result import RunResult

    return RunResult("run", "ok", 1, 1, 0, 0.1, 0, ())


def test_convert_takes_bfloat16_for_the_target_that_has_it(cli, project):
    asked = ("--precision", "bf16", "--lora", "absent.safetensors")
    result = cli("convert", "checkpoint", "-t", "openvino", "-o", "x", *asked)
    drafted = yaml.safe_load(result.out.partition("\n\n")[0])
    assert drafted["target"] == {"provider": "openvino", "precision": "bf16"}
    assert drafted["components"]["vae_encoder"] == ["convert", "fuse", "bfloat16"]
    result = cli("convert", "checkpoint", "-t", "tensorrt", "-o", "x", "--precision", "bf16")
    assert (result.status, "'tensorrt' runs no graphs in bfloat16" in result.err) == (2, True)


@pytest.mark.parametrize(("asked", "narrower"), [((), ["bfloat16"]), (("--precision", "fp32"), [])])
def test_convert_writes_bfloat16_for_openvino_unless_asked_otherwise(cli, project, asked, narrower):
    result = cli("convert", "checkpoint", "-t", "openvino", "-o", "x", "--lora", "absent.safetensors", *asked)
    drafted = yaml.safe_load(result.out.partition("\n\n")[0])
    assert drafted["components"]["vae_encoder"] == ["convert", "fuse", *narrower]


@pytest.mark.parametrize(
    ("target", "asked", "behind"),
    [
        ("cpu", (), [{"weights8": {"int8_compute": True}}]),
        ("cpu", ("--precision", "w4"), [{"weights4": {"int8_compute": True}}]),
        ("cpu", ("--precision", "fp32"), []),
        ("openvino", (), ["bfloat16", "weights8"]),
        ("cuda", (), ["float16"]),
        ("cuda", ("--precision", "bf16"), ["bfloat16"]),
    ],
)
def test_large_networks_of_transformers_have_weights_of_eight_bits_on_cpus(cli, monkeypatch, target, asked, behind):
    monkeypatch.setattr(convert_request, "_LARGE", 100_000)
    monkeypatch.setattr(convert_request, "processor", lambda: ["x86_64", "avx512_vnni"])
    arguments = ("-t", target, "-o", "x", "--lora", "absent.safetensors", *asked)
    told = cli("convert", str(little_transformer("sd3")), *arguments).out
    chains = yaml.safe_load(told.partition("\n\n")[0])["components"]
    small = {"cuda": ["float16"], "openvino": ["bfloat16"]}.get(target, [])
    assert chains["transformer"] == ["merge_lora", "convert", "fuse", *behind]
    assert chains["vae_decoder"] == ["convert", "fuse", *small]


@pytest.mark.parametrize(
    ("family", "asked", "behind"),
    [
        ("sd3", (), {"weights8": {"int8_compute": True, "int8_rows": True}}),
        ("sd3", ("--precision", "w4"), {"weights4": {"int8_compute": True}}),
        (
            "z_image",
            (),
            {
                "weights8": {
                    "int8_compute": True,
                    "int8_rows": True,
                    "exact_blocks": ["noise_refiner", "layers.*.feed_forward.w2", "layers.*.attention.to_out"],
                }
            },
        ),
    ],
)
def test_denoisers_are_multiplied_by_rows_where_the_processor_has_matrix_units(cli, monkeypatch, family, asked, behind):
    monkeypatch.setattr(convert_request, "_LARGE", 100_000)
    monkeypatch.setattr(convert_request, "processor", lambda: ["x86_64", "amx_int8"])
    text = cli(
        "convert", str(little_transformer(family)), "-t", "cpu", "-o", "x", "--lora", "absent.safetensors", *asked
    ).out
    assert yaml.safe_load(text.partition("\n\n")[0])["components"]["transformer"][-1] == behind


def test_networks_of_unets_are_as_they_were(cli, project, monkeypatch):
    monkeypatch.setattr(convert_request, "_LARGE", 1)
    result = cli("convert", "checkpoint", "-t", "cpu", "-o", "x", "--lora", "absent.safetensors")
    assert yaml.safe_load(result.out.partition("\n\n")[0])["components"]["unet"] == ["merge_lora", "convert", "fuse"]


def test_convert_refuses_an_unknown_layout(cli):
    result = cli("convert", "checkpoint", "-t", "cpu", "-o", "x", "--layout", "java")
    assert result.status == 2
    assert "csharp" in result.err


def test_info_on_weights_is_quick_since_it_imports_nothing_heavy(project):
    make_lora(project / "style.safetensors", "peft", base=project / "checkpoint")
    code = (
        "import sys; from olivelike.cli import main\n"
        "sys.argv[1:] = ['info', 'style.safetensors']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'onnx', 'onnx_ir', 'sympy', 'numpy', 'diffusers'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "heavy: []", result.stderr


@pytest.mark.parametrize(
    "option", ["SOURCE", "--vae", "--preview", "--lora", "--embedding", "--controlnet", "--t2i-adapter", "--ip-adapter"]
)
def test_an_option_that_names_nothing_is_refused_and_not_the_current_folder(cli, project, option):
    named = ["", "-t", "cpu"] if option == "SOURCE" else ["checkpoint", "-t", "cpu", option, " "]
    result = cli("convert", *named, "-o", "models/new")
    assert result.status == 2
    assert f"{option} '" in result.err
    assert "is named" in result.err


def test_one_mistake_of_all_components_is_told_once(empty_folder, cli):
    refused = cli("convert", "demo", "-t", "directml", "--precision", "w4", "-o", "models/x")
    assert refused.status == 2
    assert refused.err.count("has no kernel that is known to run weights in blocks of 4 bits") == 1
    assert re.search(r"the workflow that was made for this command:\d+:\d+: .+ \(also at \d+:\d+, ", refused.err)
    assert "convert.yaml" not in refused.err


def test_convert_takes_the_files_of_a_variant(cli, project):
    make_checkpoint(project / "hub", layout="hub", variant="fp16")
    for path in (project / "hub" / "unet").glob("*.safetensors*"):
        if "fp16" not in path.name:
            path.unlink()
    refused = cli("convert", "hub", "-t", "cpu", "-o", "models/new", "--dry-run")
    assert refused.status == 3
    assert "convert --variant fp16" in refused.err
    result = cli("convert", "hub", "-t", "cpu", "-o", "models/new", "--variant", "fp16", "--dry-run")
    assert result.status == 0, result.err
    assert yaml.safe_load(result.out.partition("\n\n")[0])["source"] == {"path": "./hub", "variant": "fp16"}


def test_the_next_step_is_to_draw_where_that_works_and_else_to_look(tmp_path, monkeypatch):
    drawing = next_step("cpu", little_pipeline())
    assert drawing.startswith("next: olivelike generate")
    of_a_plugin = replace(TARGETS["cpu"], name="cpu_of_theirs")
    monkeypatch.setattr("olivelike.cli.commands.convert.find_target", {**TARGETS, "cpu_of_theirs": of_a_plugin}.get)
    assert next_step("cpu_of_theirs", little_pipeline()) == drawing
    assert next_step("cuda", little_pipeline()).startswith("next, with cuda (onnxruntime-gpu): olivelike generate")
    for installed, told in (
        (None, "next, with openvino (olivelike[openvino]): olivelike"),
        ("spec", "next: olivelike"),
    ):
        monkeypatch.setattr("olivelike.cli.commands.convert.find_spec", lambda _, installed=installed: installed)
        assert next_step("openvino", little_pipeline()).startswith(told)
    shutil.copytree(little_pipeline(), tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "text_encoder")
    assert next_step("cpu", tmp_path / "part").startswith("next: olivelike info")
