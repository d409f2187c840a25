"""Which nodes a workflow has: what its outputs' layouts and its tokenizers bring with them."""

from __future__ import annotations

import pytest

from olivelike.engine.plan.adapters import Adapters
from olivelike.engine.plan.building import active_steps, build_nodes
from olivelike.errors import WorkflowError
from olivelike.workflow import load_workflow

HEAD = """
source: ./checkpoint
target: cpu
components:
  text_encoder: [convert]
  unet: [convert, fuse]
"""


@pytest.fixture
def nodes(tmp_path):
    """Return id → node of a workflow with these lines more."""

    def build(lines, until=None):
        path = tmp_path / "workflow.yaml"
        path.write_text(HEAD + lines)
        loaded = load_workflow(str(path))
        outputs = loaded.workflow.outputs
        found = build_nodes(loaded, outputs, active_steps(loaded, outputs, Adapters()), until)
        return {node.id: node for node in found}

    return build


def test_the_default_layout_adds_nothing(nodes):
    found = nodes("layout: diffusers\noutput: out")
    assert list(found) == list(nodes("output: out"))
    assert not any(node.name == "layout" for node in found.values())
    assert found["unet.materialize"].file_names == {}


def test_another_layout_puts_its_pass_between_the_chain_and_the_folder(nodes):
    found = nodes("layout: onnxstack\noutput: out")
    assert found["unet.layout"].parent == "unet.fuse"
    assert found["unet.materialize"].parent == "unet.layout"
    assert found["unet.materialize"].file_names == {"model_file": "model.onnx", "data_file": "model.onnx.data"}


def test_an_output_that_ends_early_is_laid_out_there(nodes):
    found = nodes("outputs: [{path: out, until: convert, layout: optimum}, {path: all}]")
    assert (found["unet.layout@out"].parent, found["unet.materialize@all"].parent) == ("unet.convert", "unet.fuse")


def test_a_layout_of_one_network_leaves_the_others_out(nodes):
    found = nodes("layout: a1111-dml\noutput: models/painter")
    assert {node.component for node in found.values()} == {"unet", "pipeline"}
    assert found["unet.materialize"].file_names == {
        "model_file": "painter.onnx", "data_file": "painter.onnx.data",
    }  # fmt: skip


def test_a_tokenizer_is_read_from_the_assets_and_written_to_each_pipeline(nodes):
    lines = "  tokenizer: [onnx_tokenizer]\noutputs: [{path: a}, {path: b, layout: a1111-dml}]"
    found = nodes(lines)
    assert [id_ for id_ in found if found[id_].component == "tokenizer"] == [
        "tokenizer.tokenizer", "tokenizer.onnx_tokenizer", "tokenizer.materialize@a",
    ]  # fmt: skip
    assert found["tokenizer.tokenizer"].parent == "pipeline.assets"
    assert list(found).index("pipeline.assets") < list(found).index("tokenizer.tokenizer")
    assert found["tokenizer.materialize@a"].file_names["model_file"] == "cliptokenizer.onnx"
    assert "pipeline.assets" in nodes(lines, until="onnx_tokenizer")


def test_a_layout_that_wants_a_tokenizer_brings_it_for_its_folder_alone(nodes):
    found = nodes("outputs: [{path: a}, {path: b, layout: csharp}]")
    assert "tokenizer.materialize@b" in found
    assert "tokenizer.materialize@a" not in found
    assert "tokenizer_2.tokenizer" not in found


def test_passes_for_networks_do_not_apply_to_tokenizers(nodes):
    with pytest.raises(WorkflowError, match="pass 'convert' does not apply to 'tokenizer', only to text_encoder"):
        nodes("  tokenizer: [convert]\noutput: out")
    with pytest.raises(WorkflowError, match="pass 'onnx_tokenizer' does not apply to 'vae_decoder'"):
        nodes("  vae_decoder: [convert, onnx_tokenizer]\noutput: out")


def test_nodes_of_several_outputs_are_named_after_their_folders(nodes):
    found = nodes("outputs: [{path: models/plain}, {path: models/my optimum, layout: optimum}]")
    assert "unet.materialize@plain" in found
    assert found["unet.materialize@my-optimum"].parent == "unet.layout@my-optimum"
    assert found["unet.materialize@my-optimum"].label == "materialize@my-optimum"
    assert found["unet.materialize@my-optimum"].name == "materialize"


def test_folders_of_one_name_are_told_apart_by_those_around_them(nodes):
    found = nodes("outputs: [{path: cpu/model}, {path: gpu/model}]")
    assert {id_ for id_ in found if id_.startswith("unet.materialize")} == {
        "unet.materialize@cpu-model", "unet.materialize@gpu-model",
    }  # fmt: skip


def test_folders_that_differ_in_special_letters_alone_get_numbers(nodes):
    found = nodes("outputs: [{path: 'a b'}, {path: 'a,b'}]")
    assert {"unet.materialize@1", "unet.materialize@2"} <= found.keys()
