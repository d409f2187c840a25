"""Outputs laid out for other clients: what reruns, what the folder holds, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from olivelike.engine.output.initializers import Initializers
from olivelike.engine.output.scheduler_model import scheduler_model
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import UsageError
from olivelike.model.records.output import OutputRecord, StepRecord

from .conftest import Project

DEMO_TOKENIZER = Path(__file__).parents[2] / "olivelike" / "data" / "demo" / "tokenizer"
NETWORKS = ("text_encoder", "vae_decoder")


def nodes(*names: str) -> set[str]:
    return {f"{component}.{name}" for component in NETWORKS for name in names}


def dtypes(path: Path) -> dict[str, str]:
    graph = onnx.load(path, load_external_data=False).graph
    names = onnx.TensorProto.DataType
    return {v.name: names.Name(v.type.tensor_type.elem_type) for v in (*graph.input, *graph.output)}


def initializer(project: Project, record: OutputRecord, component: str) -> np.ndarray:
    path = project.output / record.model_file(component)
    return Initializers(path).read(next(iter(record.components[component].derivations)))


def test_another_layout_reruns_its_pass_and_the_streaming_alone(project: Project) -> None:
    before = project.files()
    record = OutputRecord.read(project.output)
    assert record is not None
    first = initializer(project, record, "text_encoder")

    project.run("layout=onnxstack")
    assert project.executed() == nodes("layout", "materialize")
    laid_out = project.files()
    assert {name.replace("model.onnx.data", "weights.pb") for name in laid_out} == set(before)
    for component in NETWORKS:
        assert laid_out[f"{component}/model.onnx.data"] == before[f"{component}/weights.pb"]
    record = OutputRecord.read(project.output)
    assert record is not None
    assert record.layout == "onnxstack"
    assert record.components["vae_decoder"].passes[-1] == StepRecord("layout", {"profile": "onnxstack", "size": None})
    # What a LoRA is swapped into is found under any file name.
    assert np.array_equal(initializer(project, record, "text_encoder"), first)

    assert project.run("layout=onnxstack").executed == 0
    project.run()
    assert project.executed() == nodes("materialize")
    assert project.files() == before


def test_a_workflow_may_ask_for_schedules_as_a_graph(project: Project) -> None:
    before = project.files()
    project.run("scheduler_model=true", "layout=onnxstack")
    assert project.executed() == nodes("layout", "materialize") | {"pipeline.assets"}
    data = project.files()["scheduler/model.onnx"]
    assert data == scheduler_model(json.loads(project.files()["scheduler/scheduler_config.json"]))
    assert OutputRecord.require(project.output).files["scheduler/model.onnx"].source is None
    assert project.run("scheduler_model=true", "layout=onnxstack").executed == 0
    (project.output / "scheduler" / "model.onnx").unlink()
    project.run("scheduler_model=true", "layout=onnxstack")
    assert project.files()["scheduler/model.onnx"] == data
    project.run()
    assert project.files() == before
    with pytest.raises(UsageError, match="scheduler_model: a folder of layout single-ids is no pipeline with"):
        project.run("scheduler_model=true", "layout=single-ids")


def test_a_layout_for_c_sharp_brings_the_tokenizer_as_an_onnx_model(project: Project) -> None:
    shutil.copytree(DEMO_TOKENIZER, project.folder / "checkpoint" / "tokenizer", dirs_exist_ok=True)
    project.run("layout=csharp")
    tokenizer = {f"tokenizer.{name}" for name in ("tokenizer", "onnx_tokenizer", "materialize")}
    assert project.executed() == nodes("layout", "materialize") | tokenizer | {"pipeline.assets"}
    assert "tokenizer/cliptokenizer.onnx" in project.files()
    assert "tokenizer/weights.pb" not in project.files()
    assert "tokenizer/config.json" not in project.files()
    index = json.loads(project.files()["model_index.json"])
    assert index["tokenizer"] == ["transformers", "CLIPTokenizer"]
    assert dtypes(project.output / "text_encoder" / "model.onnx")["last_hidden_state"] == "FLOAT"
    assert set(dtypes(project.output / "vae_decoder" / "model.onnx").values()) == {"FLOAT"}
    (project.output / "tokenizer" / "cliptokenizer.onnx").unlink()
    project.run("layout=csharp")
    assert project.executed() == {"tokenizer.materialize"}
    assert project.run("layout=csharp").executed == 0


def test_several_outputs_have_a_layout_each_and_share_the_rest(project: Project) -> None:
    project.edit(
        "output: models/small",
        "layout: optimum\noutputs: [{path: models/small, layout: diffusers}, {path: models/optimum}]",
    )
    project.run()
    added = {f"{node}@optimum" for node in nodes("layout", "materialize")}
    # The first one is there already.
    assert project.executed() == added
    index = json.loads((project.folder / "models" / "optimum" / "model_index.json").read_bytes())
    assert index["_class_name"] == "ORTStableDiffusionPipeline"
    assert index["text_encoder"] == ["optimum.onnxruntime.modeling_diffusion", "ORTTextEncoder"]


def test_a_layout_written_as_a_step_is_not_doubled(project: Project) -> None:
    project.edit("vae_decoder: [convert, float16]", "vae_decoder: [convert, float16, {layout: {profile: csharp}}]")
    project.run("layout=onnxstack")
    assert project.executed() == nodes("layout", "materialize")
    assert set(dtypes(project.output / "vae_decoder" / "model.onnx").values()) == {"FLOAT"}


def test_a_layout_of_one_network_needs_that_network(project: Project) -> None:
    with pytest.raises(UsageError, match="layout a1111-dml is for unet, which the workflow lacks"):
        project.run("layout=a1111-dml")


def test_a_part_of_an_output_cannot_be_laid_out_for_another_client(project: Project) -> None:
    with pytest.raises(UsageError, match="is laid out for diffusers, not for optimum; run without --only"):
        project.run("layout=optimum", only=("vae_decoder",))


def test_an_unknown_layout_is_refused_with_the_known_ones(project: Project) -> None:
    with pytest.raises(UsageError, match="`layout` must be 'diffusers', 'optimum', 'csharp', 'onnxstack', 'a1111-dml'"):
        project.run("layout=csarp")


def test_a_run_does_not_replace_a_page(project: Project) -> None:
    record = OutputRecord.require(project.output)
    (project.output / "olivelike.json").write_bytes(replace(record, layout="page").to_bytes())
    before = project.files()
    with pytest.raises(UsageError, match="is a page that `export-web` wrote"):
        project.run()
    assert project.files() == before
    project.run(overwrite=True)


def test_a_layout_whose_client_needs_more_is_warned_of(project: Project) -> None:
    _, planned = plan(project.workflow, Options(overrides=("layout=csharp",)))
    (warning,) = planned.warnings
    assert (
        "will have no safety_checker, and csharp can't load a folder without one; use a source that has it" in warning
    )
    _, planned = plan(project.workflow, Options(overrides=("layout=onnxstack",)))
    assert planned.warnings == ()
