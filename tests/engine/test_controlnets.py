"""ControlNets through a whole run: chains that they get, what they share, the record, what is refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from olivelike.errors import SourceError, UsageError, WorkflowError
from olivelike.measure.clients import check_client
from olivelike.model.records.output import OutputRecord
from olivelike.testing.controlnets import make_controlnet
from olivelike.testing.lora_files import make_lora
from olivelike.testing.models import lend_graphs
from tests.fixtures.little_controlnets import controlnet_model, little_controlnet
from tests.fixtures.little_pipeline import little_checkpoint, little_model

from .conftest import Project

WORKFLOW = """
name: small
source: {source}
target: cpu
controlnets: [{edges}, {{path: {depth}}}]
components:
  unet: [merge_lora, convert, fuse, float16, deepcache]
output: models/small
"""


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two ControlNets of one form, after its first run with a LoRA."""
    folder = tmp_path_factory.mktemp("led") / "project"
    (folder / "workflows").mkdir(parents=True)
    project = Project(folder)
    nets = little_controlnet(), little_controlnet("sd", "depth", 1)
    project.workflow.write_text(WORKFLOW.format(source=little_checkpoint(), edges=nets[0], depth=nets[1]))
    models = [little_model("sd", "unet"), *map(controlnet_model, nets)]
    lend_graphs(folder / "cache", [model.architecture for model in models if model.architecture is not None])
    make_lora(folder / "style.safetensors", "kohya", base=little_checkpoint(), components=("unet",))
    project.run("loras=[style.safetensors]")
    return project


def test_each_gets_what_of_the_unets_chain_applies_and_one_graph_serves_both(led: Project) -> None:
    record = OutputRecord.require(led.output)
    chains = {name: [step.name for step in one.passes] for name, one in record.components.items()}
    assert chains == {
        "unet": ["merge_lora", "convert", "fuse", "float16", "deepcache", "controlnet_inputs"],
        "controlnet": ["convert", "fuse", "float16"],
        "controlnet_2": ["convert", "fuse", "float16"],
    }
    facets = {name: one.facets for name, one in record.components.items()}
    assert facets["controlnet"]["graph"] == facets["controlnet_2"]["graph"]
    assert facets["controlnet"]["weights"] != facets["controlnet_2"]["weights"]
    executed = led.executed()
    assert not {"controlnet.convert", "controlnet_2.convert"} & executed
    assert ("controlnet.fuse" in executed) != ("controlnet_2.fuse" in executed)
    files = {path for path in record.files if path.endswith(".onnx")}
    assert files == {
        "unet/model.onnx", "unet/shallow.onnx", "unet/controlnet.onnx", "controlnet/model.onnx",
        "controlnet_2/model.onnx",
    }  # fmt: skip
    assert record.source.leading_names == {"controlnet": "edges", "controlnet_2": "depth"}
    led.run("loras=[style.safetensors]")
    assert led.executed() == set()


def test_a_chain_of_its_own_an_only_one_and_one_less(led: Project) -> None:
    chains = "components={unet: [convert], controlnet: [convert, fuse]}"
    led.run(chains, output=led.folder / "own")
    record = OutputRecord.require(led.folder / "own")
    assert [[step.name for step in record.components[name].passes] for name in ("controlnet", "controlnet_2")] == [
        ["convert", "fuse"], ["convert"],
    ]  # fmt: skip
    led.run(chains, f"controlnets=[{little_controlnet()}]", output=led.folder / "own")
    record = OutputRecord.require(led.folder / "own")
    assert set(record.components) == {"unet", "controlnet"}
    assert not (led.folder / "own" / "controlnet_2").exists()
    led.run(chains, "controlnets=[]", "components.controlnet=", output=led.folder / "own")
    assert not (led.folder / "own" / "unet" / "controlnet.onnx").exists()
    led.run(only=("controlnet_2",), output=led.folder / "only")
    assert set(OutputRecord.require(led.folder / "only").components) == {"controlnet_2"}


def test_onnxstack_finds_what_it_looks_for(led: Project) -> None:
    folder = led.folder / "onnxstack"
    led.run("layout=onnxstack", "components={unet: [convert]}", output=folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx*")}
    assert files == {
        f"{name}/model.onnx{data}" for name in ("unet", "controlnet", "controlnet_2") for data in ("", ".data")
    } | {"unet/controlnet.onnx"}
    strength = onnx.load(folder / "controlnet" / "model.onnx", load_external_data=False).graph.input[4]
    assert (strength.name, strength.type.tensor_type.elem_type) == ("conditioning_scale", onnx.TensorProto.DOUBLE)
    verdicts = check_client(folder, "onnxstack").verdicts
    assert [one.status for one in verdicts if "conditioning_scale" in one.requirement] == ["ok"]
    unet = onnxruntime.InferenceSession(folder / "unet" / "controlnet.onnx")
    assert [value.name for value in unet.get_inputs()][:4] == [
        "sample", "timestep", "encoder_hidden_states", "down_block_0_additional_residual",
    ]  # fmt: skip


def test_what_can_not_be_is_refused_before_anything_is_made(led: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no client of its layouts feeds any .csharp.; choose one of the layouts diff"):
        led.run("layout=csharp")
    with pytest.raises(WorkflowError, match="nothing says which passes run on ControlNets; add `controlnet:"):
        led.run("components={vae_decoder: [convert]}")
    with pytest.raises(WorkflowError, match="`controlnets.0` has either `hub` or `path`"):
        led.run("controlnets=[{path: a, hub: b/c}]")
    with pytest.raises(WorkflowError, match="'merge_lora' does not apply to 'controlnet'"):
        led.run("components.controlnet=[merge_lora, convert]")
    with pytest.raises(SourceError, match="no such folder or file"):
        led.run(f"controlnets=[{tmp_path / 'none'}]")
    other = make_controlnet(tmp_path / "other", little_checkpoint(), changes={"cross_attention_dim": 2048})
    with pytest.raises(SourceError, match=r"this ControlNet is for Stable Diffusion XL: it takes text of width 2048"):
        led.run(f"controlnets=[{other}]")
    with pytest.raises(SourceError, match="this pipeline has no controlnet"):
        led.run("controlnets=[]", "components.controlnet=[convert]")
    assert not led.leftovers()
