"""T2I-Adapters through a whole run and on the command line: chains, records, what is shared, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from olivelike.cli.app import run_command_line
from olivelike.engine.convert_request import ConvertRequest, draft_workflow
from olivelike.engine.prepared import DEFAULTS
from olivelike.errors import UsageError, WorkflowError
from olivelike.model.records.output import OutputRecord
from olivelike.runtime.pictures import read_picture_record
from olivelike.testing.models import lend_graphs
from tests.fixtures.little_controlnets import controlnet_model, little_controlnet
from tests.fixtures.little_pipeline import little_checkpoint, little_model
from tests.fixtures.little_t2i_adapters import NAMES, little_adapted, little_t2i_adapter, t2i_adapter_model

from .conftest import Project

WORKFLOW = """
name: small
source: {source}
target: cpu
controlnets: [{edges}]
t2i_adapters: [{sketch}, {{path: {colour}}}]
components:
  unet: [merge_lora, convert, fuse, float16]
output: models/small
"""


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a ControlNet and two T2I-Adapters of two forms, after its first run."""
    folder = tmp_path_factory.mktemp("led") / "project"
    (folder / "workflows").mkdir(parents=True)
    project = Project(folder)
    adapters = [little_t2i_adapter("attending", name, seed) for seed, name in enumerate(NAMES)]
    net, source = little_controlnet("attending"), little_checkpoint("attending")
    text = WORKFLOW.format(source=source, edges=net, sketch=adapters[0], colour=adapters[1])
    project.workflow.write_text(text)
    models = [little_model("attending", "unet"), controlnet_model(net), *map(t2i_adapter_model, adapters)]
    lend_graphs(folder / "cache", [model.architecture for model in models if model.architecture is not None])
    project.run()
    return project


def test_they_get_what_of_the_unets_chain_applies_and_lead_graphs_of_its_weights(led: Project) -> None:
    record = OutputRecord.require(led.output)
    chains = {name: [step.name for step in one.passes] for name, one in record.components.items()}
    own = ["convert", "fuse", "float16"]
    assert chains == {
        "unet": [*own, "controlnet_inputs", "t2i_adapter_inputs"],
        "controlnet": own, "t2i_adapter": own, "t2i_adapter_2": own,
    }  # fmt: skip
    assert {path for path in record.files if path.endswith(".onnx")} == {
        "unet/model.onnx", "unet/controlnet.onnx", "unet/t2i_adapter.onnx", "unet/controlnet_t2i_adapter.onnx",
        "controlnet/model.onnx", "t2i_adapter/model.onnx", "t2i_adapter_2/model.onnx",
    }  # fmt: skip
    assert record.source.leading_names == {
        "controlnet": "edges", "t2i_adapter": "sketch", "t2i_adapter_2": "colour",
    }  # fmt: skip
    assert record.source.t2i_adapters is not None
    led.run()
    assert led.executed() == set()


def test_nothing_changes_for_who_has_none(led: Project) -> None:
    folder = led.folder / "plain"
    led.run("controlnets=[]", "t2i_adapters=[]", "components={unet: [convert, fuse, float16]}", output=folder)
    for name in ("model.onnx", "weights.pb"):
        assert (folder / "unet" / name).read_bytes() == (led.output / "unet" / name).read_bytes()
    assert {path.name for path in (folder / "unet").iterdir()} == {"model.onnx", "weights.pb", "config.json"}
    assert "t2i_adapters" not in json.loads((folder / "olivelike.json").read_text())["source"]


def test_what_can_not_be_is_refused_before_anything_is_made(led: Project) -> None:
    with pytest.raises(
        UsageError, match="T2I-Adapters, and no client of its layouts feeds any .onnxstack.; choose the"
    ):
        led.run("layout=onnxstack")
    with pytest.raises(WorkflowError, match="nothing says which passes run on T2I-Adapters; add `t2i_adapter:"):
        led.run("controlnets=[]", "components={vae_decoder: [convert]}")
    with pytest.raises(WorkflowError, match="`t2i_adapters.0` has either `hub` or `path`"):
        led.run("t2i_adapters=[{path: a, hub: b/c}]")
    with pytest.raises(WorkflowError, match="'merge_lora' does not apply to 't2i_adapter'"):
        led.run("components.t2i_adapter=[merge_lora, convert]")
    assert not led.leftovers()


def test_convert_writes_such_a_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapters = tuple(str(little_t2i_adapter("attending", name, seed)) for seed, name in enumerate(NAMES))
    source = str(little_checkpoint("attending"))
    request = ConvertRequest(source, "cpu", tmp_path / "out", t2i_adapters=adapters)
    assert f"--t2i-adapter {adapters[0]} --t2i-adapter {adapters[1]}" in request.command()
    text = draft_workflow(request, DEFAULTS, tmp_path)
    assert "t2i_adapters:\n" + "".join(f"  - {adapter}\n" for adapter in adapters) in text
    assert "  t2i_adapter_2: [convert, fuse]\n" in text


def test_the_command_line_leads_by_them_and_verifies_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = little_adapted(controlled=True)
    Image.radial_gradient("L").resize((32, 32)).save(tmp_path / "shape.png")
    asked = ["a red circle", "--steps", "3", "--seed", "7", "--threads", "1", "--control-end", "0.7"]
    asked += ["--control", f"sketch={tmp_path / 'shape.png'}:0.6", "--control", f"edges={tmp_path / 'shape.png'}"]
    assert run_command_line(["generate", str(folder), *asked, "-o", str(tmp_path / "one.png")]) == 0
    record = read_picture_record(tmp_path / "one.png")
    assert record is not None
    assert [(one.net, one.strength, one.end) for one in record.controls] == [("sketch", 0.6, 0.7), ("edges", 1.0, 0.7)]
    again = ["--threads", "1", "--from", str(tmp_path / "one.png"), "-o", str(tmp_path / "two.png")]
    assert run_command_line(["generate", str(folder), *again]) == 0
    first, second = (Image.open(tmp_path / f"{name}.png").tobytes() for name in ("one", "two"))
    assert first == second
    capsys.readouterr()
    adapters = [little_t2i_adapter("attending", name, seed) for seed, name in enumerate(NAMES)]
    against = ["--against", str(little_checkpoint("attending"))]
    given = [word for adapter in adapters for word in ("--t2i-adapter", str(adapter))]
    one = ["--component", "t2i_adapter", "--component", "t2i_adapter_2"]
    assert run_command_line(["verify", str(folder), *against, *given, *one, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(part["relative_error"] < 1e-5 for part in found["components"].values()), found
    assert len(found["components"]) == 2
    swapped = ["--t2i-adapter", str(adapters[1]), "--component", "t2i_adapter"]
    assert run_command_line(["verify", str(folder), *against, *swapped]) != 0
    capsys.readouterr()
    assert run_command_line(["verify", str(folder), *against, "--pictures", "0", "--samples", "1"]) == 0
    told = capsys.readouterr().out
    assert "not compared: " in told
    assert "t2i_adapter, t2i_adapter_2; name what they were made of with --controlnet, --t2i-adapter" in told
    assert run_command_line(["inspect", str(folder / "unet" / "t2i_adapter.onnx"), "--json"]) == 0
