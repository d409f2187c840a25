"""A pipeline in one file: what a run writes and reruns, what commands say of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from olivelike.cli.app import COMMANDS, run_command_line
from olivelike.engine.output.swap import swap_loras
from olivelike.errors import SourceError, UsageError
from olivelike.graphs.inspect import inspect_model
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.records.output import OutputRecord
from olivelike.runtime import open_pipeline
from tests.engine.conftest import Project, run_project
from tests.fixtures.little_pipeline import little_checkpoint

WORKFLOW = """
name: whole
source: {checkpoint}
target: cpu
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse]
  vae_decoder: [convert, fuse]
  safety_checker: [convert, fuse]
output: models/small
layout: single-ids
"""
NETWORKS = ("text_encoder", "unet", "vae_decoder", "safety_checker")
FILES = {"pipeline.onnx", "pipeline.onnx.data"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has written one file; tests leave it as it is."""
    base = little_checkpoint()
    return run_project(tmp_path_factory.mktemp("whole"), WORKFLOW.format(checkpoint=base), base, *NETWORKS)


def test_a_run_joins_all_chains_and_is_up_to_date_afterwards(whole: Project) -> None:
    assert whole.output.is_dir()
    files = {name for name in whole.files() if not name.startswith("tokenizer/")}
    assert files == FILES
    assert "tokenizer/tokenizer.json" in whole.files()
    record = OutputRecord.require(whole.output)
    assert record.layout == "single-ids"
    assert record.components.keys() == {"pipeline", *NETWORKS}
    assert [step.name for step in record.components["unet"].passes] == ["convert", "fuse"]
    assert record.component_files("unet").keys() == FILES
    assert whole.run().executed == 0
    # Another chain of one network is all that runs again.
    assert whole.run("components.unet=[convert, fuse, float16]", output=whole.folder / "half")
    assert whole.executed() == {"unet.fuse", "unet.float16", "pipeline.one_file"}
    half = inspect_model(whole.folder / "half" / "pipeline.onnx", targets=())
    assert half.parameters["float16"].elements > half.parameters["float32"].elements
    (verdict,) = verify_folder(whole.folder / "half", against=str(little_checkpoint()), components=["unet"]).components
    assert verdict.verification.precision == "fp16"
    assert verdict.passed


def test_a_damaged_file_is_made_again_and_what_is_in_the_way_is_not_replaced(whole: Project) -> None:
    target = whole.folder / "damaged"
    whole.run(output=target)
    (target / "pipeline.onnx.data").unlink()
    whole.run(output=target)
    assert whole.executed() == {"pipeline.one_file"}
    (target / "pipeline.onnx").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"pipeline\.onnx"):
        whole.run(output=target)
    assert (target / "pipeline.onnx").read_bytes() == b"mine"


def test_networks_in_the_file_are_compared_with_torch(whole: Project) -> None:
    found = verify_folder(whole.output, against=str(little_checkpoint()))
    assert [one.name for one in found.components] == networks_of(whole)
    assert found.passed
    assert found.pictures_skipped == "pipeline.onnx draws by itself, with other noise"


def networks_of(project: Project) -> list[str]:
    return [name for name in OutputRecord.require(project.output).components if name != "pipeline"]


def test_commands_say_what_it_is(whole: Project, capsys: pytest.CaptureFixture[str]) -> None:
    def cli(*arguments: object) -> str:
        assert run_command_line([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    shown = cli("inspect", whole.output / "pipeline.onnx", "--json")
    networks = json.loads(shown)["networks"]
    assert networks.keys() == set(NETWORKS)
    assert networks["unet"]["in_loop"] > networks["unet"]["nodes"] / 2
    assert "in each step" in cli("inspect", whole.output / "pipeline.onnx")
    told = cli("info", whole.output)
    assert "single-ids" in told
    assert "convert, fuse" in told
    profile = json.loads(cli("profile", whole.output, "--runs", "1", "--json"))["networks"]
    assert [network["name"] for network in profile] == ["pipeline"]
    assert profile[0]["inputs"]["noise"] == "1x1x4x16x16"
    operators = {operator["operator"] for operator in profile[0]["operators"]}
    assert "MultiHeadAttention" in operators
    assert "Loop" not in operators
    if "bench" in COMMANDS:
        (row,) = json.loads(cli("bench", whole.output, "--steps", "2", "--batch-count", "2", "--json"))["rows"]
        assert len(row["seconds"]) == 2
        assert row["peak_resident_bytes"] > 0
        assert run_command_line(["bench", str(whole.output), "--engine", "torch"]) == 2
        assert "--engine: " in capsys.readouterr().err
    with pytest.raises(SourceError, match=r"is a pipeline in one file, pipeline.onnx, .*; this command takes"):
        open_pipeline(whole.output)
    with pytest.raises(SourceError, match="is one file, which takes no other LoRA"):
        swap_loras(whole.output, [])


def test_a_part_of_one_file_cannot_be_made_alone(whole: Project) -> None:
    with pytest.raises(UsageError, match="--only: the layout single-ids is one file of all components"):
        whole.run(only=("unet",))


def test_the_model_is_valid_and_names_are_unique(whole: Project) -> None:
    path = whole.output / "pipeline.onnx"
    onnx.checker.check_model(str(path))
    graph = onnx.load(path, load_external_data=False).graph
    (body,) = [attribute.g for node in graph.node for attribute in node.attribute if attribute.name == "body"]
    names = [node.name for node in (*graph.node, *body.node)]
    assert len(set(names)) == len(names)
    assert Path(path).stat().st_size < 5_000_000
