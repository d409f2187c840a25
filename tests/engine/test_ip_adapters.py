"""IP-Adapters through a whole run: chains that they bring, the record, verification, what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from olivelike.cli.app import run_command_line
from olivelike.errors import SourceError, UsageError, WorkflowError
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.records.output import OutputRecord
from olivelike.testing.ip_adapters import make_ip_adapter
from olivelike.testing.lora_files import make_lora
from olivelike.testing.models import lend_graphs
from tests.fixtures.little_controlnets import little_controlnet
from tests.fixtures.little_ip_adapters import image_encoder_model, little_ip_adapter, little_prompted
from tests.fixtures.little_pipeline import little_checkpoint, little_model

from .conftest import Project

WORKFLOW = """
name: small
source: {source}
target: cpu
ip_adapter: {adapter}
components:
  unet: [merge_lora, convert, fuse, float16]
output: models/small
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with an IP-Adapter, after its first run with a LoRA."""
    folder = tmp_path_factory.mktemp("shown") / "project"
    (folder / "workflows").mkdir(parents=True)
    project = Project(folder)
    project.workflow.write_text(WORKFLOW.format(source=little_checkpoint(), adapter=little_ip_adapter()))
    models = [little_model("sd", "unet"), image_encoder_model(little_ip_adapter())]
    lend_graphs(folder / "cache", [model.architecture for model in models if model.architecture is not None])
    make_lora(folder / "style.safetensors", "kohya", base=little_checkpoint(), components=("unet",))
    project.run("loras=[style.safetensors]")
    return project


def test_it_comes_behind_convert_and_its_encoder_has_the_unets_chain(shown: Project) -> None:
    record = OutputRecord.require(shown.output)
    chains = {name: [step.name for step in one.passes] for name, one in record.components.items()}
    assert chains == {
        "unet": ["merge_lora", "convert", "ip_adapter", "fuse", "float16"],
        "image_encoder": ["convert", "fuse", "float16"],
    }
    files = {path for path in record.files if path.endswith(".onnx")}
    assert files == {"unet/model.onnx", "unet/ip_adapter.onnx", "image_encoder/model.onnx"}
    assert record.source.ip_adapter is not None
    assert (record.source.ip_adapter.name, record.source.ip_adapter.kind) == ("ip-adapter.safetensors", "file")
    shown.run("loras=[style.safetensors]")
    assert shown.executed() == set()


def test_the_folder_without_it_is_the_same_but_for_its_files(shown: Project) -> None:
    before = shown.files()
    shown.run("loras=[style.safetensors]", "ip_adapter=", output=shown.folder / "plain")
    plain = shown.folder / "plain"
    assert not (plain / "image_encoder").exists()
    assert not (plain / "unet" / "ip_adapter.onnx").exists()
    for name in ("unet/model.onnx", "unet/config.json"):
        assert (plain / name).read_bytes() == before[name]
    assert before["unet/weights.pb"].startswith((plain / "unet" / "weights.pb").read_bytes())


def test_other_clients_and_one_file_have_the_plain_graph(shown: Project) -> None:
    outputs = [f"{{path: models/{name}, layout: {name}}}" for name in ("diffusers", "csharp")]
    shown.run("output=", f"outputs=[{', '.join(outputs)}]", "components={unet: [convert]}")
    ours, theirs = (shown.folder / "models" / name for name in ("diffusers", "csharp"))
    assert (ours / "unet" / "ip_adapter.onnx").is_file()
    assert {path.name for path in theirs.rglob("*.onnx")} == {"model.onnx"}
    with pytest.raises(UsageError, match=r"no client of its layouts feeds any .csharp.; choose the layout diffusers"):
        shown.run("layout=csharp")


def test_folders_are_verified(tmp_path: Path) -> None:
    folder, adapter = little_prompted(controlled=True), little_ip_adapter()
    more = {"against": str(little_checkpoint()), "controlnets": [str(little_controlnet())], "pictures": 0, "samples": 1}
    found = verify_folder(folder, **more, ip_adapter=str(adapter), components=["unet", "image_encoder"])
    assert found.passed
    figures = {one.name: one.verification for one in found.components}
    assert set(figures) == {"unet", "image_encoder"}
    outputs = {name for sample in figures["unet"].samples for name in sample.outputs}
    assert outputs == {"out_sample", "out_sample of ip_adapter.onnx"}
    with pytest.raises(UsageError, match="the folder has no such network"):
        verify_folder(folder, **more, components=["image_encoder"])
    other = make_ip_adapter(tmp_path / "other", little_checkpoint(), seed=1)
    assert not verify_folder(folder, **more, ip_adapter=str(other), components=["unet"]).passed


def test_convert_writes_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = shutil.copy(little_ip_adapter(), tmp_path)
    encoder = little_ip_adapter().with_name("image_encoder")
    asked = ["convert", str(little_checkpoint()), "-t", "cuda", "-o", str(tmp_path / "made"), "--dry-run"]
    asked += ["--ip-adapter", str(adapter), "--cache-dir", str(tmp_path / "cache")]
    assert run_command_line(asked) == 3
    assert "has no image encoder, which ip-adapter.safetensors can't do without" in capsys.readouterr().err
    assert run_command_line([*asked, "--image-encoder", str(encoder)]) == 0
    told = capsys.readouterr().out
    assert f"ip_adapter: {{file: {adapter}, image_encoder: {encoder}}}" in told
    assert "image_encoder:  [convert, fuse, float16]" in told
    assert "unet.ip_adapter" in told
    assert run_command_line([*asked[:7], "--image-encoder", str(encoder)]) == 2
    assert "--image-encoder is that of an IP-Adapter; name one with --ip-adapter" in capsys.readouterr().err


def test_what_can_not_be_is_refused_before_anything_is_made(shown: Project, tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="an IP-Adapter changes the UNet; add `unet` to `components`"):
        shown.run("components={vae_decoder: [convert]}")
    with pytest.raises(WorkflowError, match="`image_encoder` is part of an IP-Adapter; name one as `ip_adapter:`"):
        shown.run("ip_adapter=", "components.image_encoder=[convert]")
    with pytest.raises(WorkflowError, match="`ip_adapter.image_encoder` has either `hub` or `path`"):
        shown.run("ip_adapter={file: a.safetensors, image_encoder: {path: a, hub: b/c}}")
    with pytest.raises(WorkflowError, match="the graph that `convert` makes, and the chain of unet has no such step"):
        shown.run("components={unet: [fuse]}")
    with pytest.raises(SourceError, match="no such file"):
        shown.run(f"ip_adapter={tmp_path / 'none.safetensors'}")
    other = make_ip_adapter(tmp_path / "other", little_checkpoint("xl"))
    with pytest.raises(SourceError, match="its tokens have width 64, and the UNet of"):
        shown.run(f"ip_adapter={other}")
    with pytest.raises(SourceError, match="its UNet is a graph that somebody else exported, and an IP-Adapter changes"):
        shown.run(f"source={shown.folder / 'plain'}", "components={unet: [convert, fuse]}")
    assert not shown.leftovers()
