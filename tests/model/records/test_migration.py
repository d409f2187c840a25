"""What 0.1.0 wrote is read as if today's olivelike had written it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olivelike.model.records.origin import EmbeddingRecord, Identification, LoraRecord, Origin
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.run_record import EarlierNode, RunRecord
from olivelike.model.targets import TargetChoice

WRITTEN = Path(__file__).parent / "written_by_0_1_0"
HUB = {"kind": "hub", "repository": "some/painter", "commit": "0123456789abcdef0123"}


def output_content() -> dict[str, Any]:
    return json.loads((WRITTEN / "output.json").read_bytes())


def run_content() -> dict[str, Any]:
    return json.loads((WRITTEN / "run.json").read_bytes())


def read(folder: Path, content: dict[str, Any]) -> OutputRecord:
    (folder / "olivelike.json").write_text(json.dumps(content))
    return OutputRecord.require(folder)


def test_the_record_of_an_output_is_read_whole(tmp_path):
    record = read(tmp_path, output_content())
    assert record.source == Origin("folder", "src_demo")
    assert record.target == TargetChoice("directml", "fp16")
    decoder = record.components["vae_decoder"]
    assert [step.name for step in decoder.passes] == ["convert", "fuse", "float16"]
    assert decoder.passes[2].options["max_relative_error"] == 0.02
    assert decoder.derivations["post_quant_conv.bias"]["op"] == "Cast"
    network, index = record.files["vae_decoder/model.onnx"], record.files["model_index.json"]
    assert (network.node, network.key) == ("vae_decoder.materialize", decoder.key)
    assert (index.node, index.source, index.size) == (None, None, 633)
    assert record.files["scheduler/scheduler_config.json"].source == "scheduler/scheduler_config.json"


def test_the_record_of_an_output_is_the_same_once_it_is_written_anew(tmp_path):
    record = read(tmp_path, output_content())
    (tmp_path / "olivelike.json").write_bytes(record.to_bytes())
    assert OutputRecord.read(tmp_path) == record


def test_origins_had_three_words_for_their_names(tmp_path):
    checkpoint = {
        "name": "painter.safetensors", "kind": "file", "family": "sd1", "inpainting": False, "prediction": "epsilon",
        "zero_snr": False, "identified_by": ["its widths"], "vae": HUB,
    }  # fmt: skip
    source = read(tmp_path, output_content() | {"source": checkpoint}).source
    assert (source.kind, source.name, source.repository) == ("file", "painter.safetensors", None)
    assert source.identified == Identification("sd1", False, "epsilon", False, ("its widths",))
    assert source.vae == Origin("hub", "some/painter", commit="0123456789abcdef0123")
    assert str(source.vae) == "some/painter at 0123456789ab"
    assert read(
        tmp_path, output_content() | {"source": {"kind": "folder", "name": "x", "exported": True}}
    ).source.exported


def test_loras_and_embeddings_had_their_origin_among_their_own_keys(tmp_path):
    lora = {**HUB, "file": "style.safetensors", "sha256": "0", "weight": 1, "weights": {"unet": 0.5}, "adapter": None}
    cat = {"name": "cat.pt", "kind": "file", "sha256": "1", "token": "<cat>", "vectors": {"text_encoder": 2}}
    record = read(tmp_path, output_content() | {"loras": [lora], "embeddings": [cat]})
    origin = Origin("hub", "some/painter", commit=HUB["commit"], file="style.safetensors")
    assert record.loras == (LoraRecord(origin, 1, {"unet": 0.5}, None, "0"),)
    assert record.embeddings == (EmbeddingRecord(Origin("file", "cat.pt"), "<cat>", {"text_encoder": 2}, "1"),)
    assert origin.place == "some/painter/style.safetensors"


def test_the_record_of_a_run_is_read_whole():
    record = RunRecord.from_json(run_content())
    assert record.source == Origin("folder", "src_demo", "/art/src_demo")
    assert record.outputs == ("/art/models/demo_cpu",)
    assert (record.count("executed"), record.host.cores, record.previous) == (len(record.nodes), 2, None)
    fuse = next(node for node in record.nodes if node.name == "fuse")
    assert (fuse.parent, fuse.start_seconds, fuse.facts["nodes_before"]) == ("vae_decoder.convert", None, 174)
    assert fuse.inputs is not None
    assert fuse.inputs["pass"] == "fuse"


def test_a_run_is_the_same_once_it_is_written_anew():
    record = RunRecord.from_json(run_content())
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_the_run_before_had_lists_for_nodes():
    earlier = {
        "run_id": "1", "finished": "2026-01-01T00:00:00+00:00", "seconds": 2.5, "target": {"name": "cpu"},
        "source": HUB, "nodes": {"unet.load": ["executed", 2.0]}, "output_bytes": {"/art/models/demo_cpu": 7},
    }  # fmt: skip
    record = RunRecord.from_json(run_content() | {"previous": earlier})
    assert record.previous is not None
    assert record.previous.nodes == {"unet.load": EarlierNode("executed", 2.0)}
    assert record.previous.source.name == "some/painter"


@pytest.mark.parametrize(("output", "outputs"), [([], ()), ("/a", ("/a",)), (["/a", "/b"], ("/a", "/b"))])
def test_a_run_of_one_output_had_no_list_of_them(output, outputs):
    assert RunRecord.from_json(run_content() | {"output": output}).outputs == outputs
