"""`only`, `until`, several outputs, other places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from olivelike.errors import UsageError, WorkflowError

from .conftest import Project

TWO_OUTPUTS = """outputs:
  - {path: models/small}
  - {path: models/unoptimized, until: convert}
"""


def test_an_unoptimised_pipeline_is_written_beside_the_optimised_one(project: Project) -> None:
    optimised = project.files()
    project.edit("output: models/small\n", TWO_OUTPUTS)
    project.run()
    assert project.executed() == {"text_encoder.materialize@unoptimized", "vae_decoder.materialize@unoptimized"}
    assert project.files() == optimised
    unoptimised = project.folder / "models" / "unoptimized"
    sizes = [(folder / "vae_decoder" / "weights.pb").stat().st_size for folder in (project.output, unoptimised)]
    assert sizes[1] > 1.5 * sizes[0]
    assert project.run().executed == 0


def test_only_updates_one_component_and_keeps_the_others(project: Project) -> None:
    before = project.files()
    project.edit("[convert, float16]\n  vae", "[convert, float16: {keep_io: true}]\n  vae")
    project.run("components.vae_decoder.1.float16.keep_io=true", only=("text_encoder",))
    assert project.executed() == {"text_encoder.float16", "text_encoder.materialize"}
    after = project.files()
    assert after["vae_decoder/model.onnx"] == before["vae_decoder/model.onnx"]
    record = json.loads((project.output / "olivelike.json").read_text(encoding="utf-8"))
    assert set(record["components"]) == {"text_encoder", "vae_decoder"}


def test_a_dropped_component_leaves_the_output(project: Project) -> None:
    (project.output / "vae_decoder" / "my notes.txt").write_text("mine", encoding="utf-8")
    project.edit("  vae_decoder: [convert, float16]\n", "")
    project.run()
    assert not (project.output / "vae_decoder" / "weights.pb").exists()
    assert (project.output / "vae_decoder" / "my notes.txt").read_text(encoding="utf-8") == "mine"
    index = json.loads((project.output / "model_index.json").read_text(encoding="utf-8"))
    assert "vae_decoder" not in index


def test_until_runs_no_later_pass_and_publishes_nothing(project: Project) -> None:
    before = project.files()
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, float16: {keep_io: true}]")
    result = project.run(until="convert")
    assert (result.nodes, result.executed) == (4, 0)
    assert project.files() == before


def test_the_output_can_be_sent_elsewhere(project: Project, tmp_path: Path) -> None:
    project.run(output=tmp_path / "elsewhere")
    assert project.executed() == {"text_encoder.materialize", "vae_decoder.materialize"}
    assert (tmp_path / "elsewhere" / "unet").exists() is False
    assert (tmp_path / "elsewhere" / "model_index.json").is_file()


def test_output_with_several_outputs_is_refused(project: Project) -> None:
    project.edit("output: models/small\n", TWO_OUTPUTS)
    with pytest.raises(UsageError, match="one output"):
        project.run(output=Path("x"))


@pytest.mark.parametrize(
    ("options", "message"), [({"only": ("unet",)}, "no such component"), ({"until": "fuse"}, "no chain has that pass")]
)
def test_what_the_workflow_does_not_have_is_refused(project: Project, options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        project.run(**options)


@pytest.mark.parametrize("chain", ["[float16]", "[float16, convert]"])
def test_a_pass_before_the_graph_exists_is_refused_with_its_place(project: Project, chain: str) -> None:
    project.edit("text_encoder: [convert, float16]", f"text_encoder: {chain}")
    with pytest.raises(WorkflowError, match=r"small\.yaml:6:\d+: pass 'float16' of text_encoder needs a graph"):
        project.run()


def test_fuse_knows_from_the_chain_what_the_graph_is_computed_in(project: Project) -> None:
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, fuse, float16]")
    assert project.run().status == "ok"
    project.edit("fuse, float16]", "fuse]")
    project.run()
    assert "text_encoder.fuse" in project.executed()


def test_bfloat16_is_refused_before_anything_runs_where_the_target_lacks_it(project: Project) -> None:
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, bfloat16]")
    project.edit("target: cuda", "target: tensorrt")
    with pytest.raises(WorkflowError, match=r"small\.yaml:6:\d+: target 'tensorrt' runs no graphs in bfloat16"):
        project.run()
    assert not project.events


def test_a_folder_with_other_files_is_not_written_into(project: Project, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    with pytest.raises(UsageError, match="did not write"):
        project.run(output=tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
