"""`verify` in a run: what is too far from torch is not published."""

from __future__ import annotations

import pytest

from olivelike.errors import VerificationError, WorkflowError
from olivelike.store import Store
from olivelike.testing.lora_files import make_lora

from .conftest import Project

DROPS_BIASES = '''
from olivelike.model import Graph
from olivelike.model.graph import PARAMETER_KEY
from olivelike.pass_api import Pass


class DropBiases(Pass):
    """Leave out what linear layers add."""

    reads = ("graph",)
    writes = ("graph",)

    def run(self, model, context):
        onnx_model = model.graph.to_ir()
        for node in list(onnx_model.graph):
            parameters = [value.metadata_props.get(PARAMETER_KEY, "") for value in node.inputs]
            if node.op_type == "Add" and any(name.endswith(".bias") for name in parameters):
                (kept,) = (v for v, name in zip(node.inputs, parameters) if not name.endswith(".bias"))
                node.outputs[0].replace_all_uses_with(kept)
        return model.replace(graph=Graph.from_ir(onnx_model))
'''

HALVES = '''
import numpy as np
from olivelike.pass_api import Pass


class Halves(Pass):
    """Halve one matrix."""

    reads = ("weights",)
    writes = ("weights",)

    def run(self, model, context):
        name = next(name for name in model.weights if name.endswith("q_proj.weight"))
        array = context.tensors.read(model.weights[name]) * np.float32(0.5)
        return model.replace(weights=model.weights.replace({name: context.tensors.write(array)}))
'''


@pytest.fixture
def broken(project: Project) -> tuple[str, ...]:
    """The plugin with the broken pass, beside the workflow."""
    path = project.folder / "drops_biases.py"
    path.write_text(DROPS_BIASES, encoding="utf-8")
    return (str(path),)


def records(project: Project) -> list[dict]:
    return list(Store.open(project.folder / "cache").runs())


def node(record: dict, name: str) -> dict:
    (found,) = (node for node in record["nodes"] if node["id"] == name)
    return found


def test_a_pass_that_drops_biases_is_caught_and_nothing_is_published(project: Project, broken: tuple[str, ...]) -> None:
    before = project.files(skip=())
    chain = "components.text_encoder=[convert, drop_biases, verify]"
    with pytest.raises(VerificationError, match="text_encoder.verify failed: text_encoder: its fp32 graph") as caught:
        project.run(chain, plugins=broken)
    assert caught.value.exit_code == 5
    assert project.files(skip=()) == before
    assert not project.leftovers()

    record = records(project)[0]
    assert record["status"] == "failed"
    verified = node(record, "text_encoder.verify")
    assert verified["status"] == "failed"
    assert verified["facts"]["verification"]["relative_error"] > 1e-2
    assert not verified["facts"]["verification"]["passed"]
    assert node(record, "text_encoder.materialize")["status"] == "skipped"
    # What does not depend on it is kept.
    assert node(record, "text_encoder.drop_biases")["status"] == "executed"
    project.run("components.text_encoder=[convert, drop_biases]", plugins=broken)
    assert "text_encoder.drop_biases" not in project.executed()


def test_what_passes_is_published_and_not_verified_again(project: Project) -> None:
    chain = "components.text_encoder=[convert, float16, verify: {samples: 1}]"
    project.run(chain)
    assert "text_encoder.verify" in project.executed()
    figures = node(records(project)[0], "text_encoder.verify")["facts"]["verification"]
    assert figures["passed"]
    assert (figures["precision"], figures["limit"]) == ("fp16", 2e-2)
    assert 1e-5 < figures["relative_error"] < 2e-2
    result = project.run(chain)
    assert (result.executed, result.hits) == (0, result.nodes)


@pytest.fixture
def halving(project: Project) -> tuple[str, ...]:
    """The plugin that changes weights, beside the workflow."""
    path = project.folder / "halves.py"
    path.write_text(HALVES, encoding="utf-8")
    return (str(path),)


def test_a_pass_that_changes_weights_is_held_against_those_that_were_loaded(
    project: Project, halving: tuple[str, ...]
) -> None:
    chain = "components.text_encoder=[convert, halves, verify: {samples: 1, max_relative_error: LIMIT}]"
    with pytest.raises(VerificationError, match="text_encoder.verify failed: text_encoder: its fp32 graph"):
        project.run(chain.replace("LIMIT", "1e-4"), plugins=halving)
    project.run(chain.replace("LIMIT", "0.9"), plugins=halving)
    verified = node(records(project)[0], "text_encoder.verify")
    assert 1e-3 < verified["facts"]["verification"]["relative_error"] < 0.9
    assert "original.weights" in verified["inputs"]["facets"]
    project.run(chain.replace("LIMIT", "0.8"), plugins=halving)
    assert project.executed() == {"text_encoder.verify"}


def test_a_lora_that_is_merged_into_changed_weights_leaves_nothing_to_compare_with(
    project: Project, halving: tuple[str, ...]
) -> None:
    lora = make_lora(
        project.folder / "style.safetensors", "kohya", base=project.folder / "checkpoint", components=("text_encoder",)
    )
    chain = "components.text_encoder=[convert, halves, merge_lora, verify]"
    with pytest.raises(WorkflowError, match="put `merge_lora` before `halves`"):
        project.run(chain, f"loras=[{lora.name}]", plugins=halving)
