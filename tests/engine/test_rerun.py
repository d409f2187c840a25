"""What reruns, and what does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from olivelike.engine.run_result import readable_runs
from olivelike.errors import UsageError
from olivelike.runtime.pipeline.pipeline_folder import read_folder_target, target_settings
from olivelike.store import Store

from .conftest import Project

ALL_NODES = 9
LENT = 2
"""Graphs that the project of tests begins with: `convert` of both networks is a hit."""


def test_the_first_run_executes_every_other_node_and_publishes(template: Project) -> None:
    assert template.result is not None
    assert (template.result.status, template.result.nodes, template.result.executed) == (
        "ok",
        ALL_NODES,
        ALL_NODES - LENT,
    )
    assert (template.output / "text_encoder" / "model.onnx").is_file()
    assert template.leftovers() == []


def test_a_second_run_does_nothing(template: Project) -> None:
    before = {path: path.stat().st_mtime_ns for path in template.output.rglob("*")}
    result = template.run()
    assert (result.hits, result.executed) == (ALL_NODES, 0)
    assert {path: path.stat().st_mtime_ns for path in template.output.rglob("*")} == before


def test_a_run_with_nothing_to_do_imports_no_heavy_library(template: Project) -> None:
    code = (
        "import sys; from olivelike.engine.prepared import Options; from olivelike.engine.run import run\n"
        f"run({str(template.workflow)!r}, Options(), lambda event: None)\n"
        "heavy = {'torch', 'onnx', 'diffusers', 'transformers', 'numpy', 'onnxruntime', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"


def test_moving_the_project_reruns_nothing(project: Project) -> None:
    assert project.run().executed == 0


def test_touching_files_reruns_nothing(project: Project) -> None:
    for path in [*project.folder.joinpath("checkpoint").rglob("*"), *project.output.rglob("*"), project.workflow]:
        os.utime(path)
    assert project.run().executed == 0


def test_rewriting_defaults_and_order_reruns_nothing(project: Project) -> None:
    project.workflow.write_text(
        textwrap.dedent("""
            output: models/small          # a comment
            components:
              vae_decoder: [{convert: {}}, {float16: {force_fp32: [], keep_io: false}}]
              text_encoder: [convert, {float16: {keep_io: false}}]
            target: {provider: cuda, precision: fp16}
            source: ./checkpoint
            name: small
        """),
        encoding="utf-8",
    )
    assert project.run().executed == 0


def test_another_device_or_option_of_sessions_reaches_the_folder_and_reruns_nothing(project: Project) -> None:
    before = project.files()
    project.edit("target: cuda", "target: {provider: cuda, session_options: {session.use_env_allocators: true}}")
    assert project.run().executed == 0
    target = read_folder_target(project.output)
    assert target is not None
    assert target_settings(target).session_config == {"session.use_env_allocators": "1"}
    assert project.files() == before
    assert project.leftovers() == []
    assert project.run("target.device_id=1").executed == 0
    target = read_folder_target(project.output)
    assert target is not None
    assert target.device_id == 1


def test_a_deleted_output_is_rebuilt_by_streaming_alone(project: Project) -> None:
    before = project.files()
    shutil.rmtree(project.output)
    project.run()
    assert project.executed() == {"text_encoder.materialize", "vae_decoder.materialize"}
    assert project.files() == before


@pytest.mark.parametrize("name", ["text_encoder/weights.pb", "text_encoder/model.onnx", "text_encoder/config.json"])
def test_a_lost_file_of_the_output_is_made_again_and_a_changed_one_when_asked(project: Project, name: str) -> None:
    before = project.files()
    path = project.output / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"changed since olivelike wrote them: {name}; move them away"):
        project.run()
    assert project.executed() == set()
    project.run(overwrite=True)
    assert project.executed() == {"text_encoder.materialize"}
    path.unlink()
    project.run()
    assert project.executed() == {"text_encoder.materialize"}
    assert project.files() == before


def test_a_lost_tokenizer_file_is_made_again_without_any_node(project: Project) -> None:
    before = project.files()
    (project.output / "tokenizer" / "merges.txt").unlink()
    assert project.run().executed == 0
    assert project.files() == before


def test_another_checkpoint_of_the_same_architecture_only_materialises(project: Project, checkpoints: Path) -> None:
    before = project.files()
    shutil.rmtree(project.folder / "checkpoint")
    shutil.copytree(checkpoints / "two", project.folder / "checkpoint")
    project.run()
    assert project.executed() == {"text_encoder.materialize", "vae_decoder.materialize"}
    assert "the weights changed" in project.reasons()["vae_decoder.materialize"]
    after = project.files()
    assert after["vae_decoder/weights.pb"] != before["vae_decoder/weights.pb"]
    graphs = ("vae_decoder/config.json", "tokenizer/vocab.json")
    assert all(after[name] == before[name] for name in graphs)


def test_a_folder_as_hubs_hold_it_gives_identical_bytes(project: Project, checkpoints: Path) -> None:
    before = project.files()
    shutil.rmtree(project.folder / "checkpoint")
    shutil.copytree(checkpoints / "hub", project.folder / "checkpoint")
    project.run()
    assert project.executed() == {
        "text_encoder.load", "vae_decoder.load", "text_encoder.materialize", "vae_decoder.materialize",
        "pipeline.assets",
    }  # fmt: skip
    assert project.files() == before


def test_one_changed_option_reruns_its_node_and_what_follows(project: Project) -> None:
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, float16: {keep_io: true}]")
    project.run()
    assert project.executed() == {"text_encoder.float16", "text_encoder.materialize"}
    assert project.reasons()["text_encoder.float16"] == "option keep_io changed from false to true"


def test_equal_output_upstream_stops_the_rerun(project: Project) -> None:
    """Forcing an operator that does not occur to float32 changes the key, not the graph."""
    project.edit("vae_decoder: [convert, float16]", "vae_decoder: [convert, float16: {force_fp32: [Softmax]}]")
    project.run()
    assert project.executed() == {"vae_decoder.float16"}
    assert project.counts()["output_unchanged"] == 1


def test_another_version_of_a_library_reruns_the_passes_whose_code_imports_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from olivelike.engine import keys as formulas

    real = formulas.tool_versions

    def newer(names: tuple[str, ...], imported: tuple[str, ...]) -> dict[str, str]:
        versions = real(names, imported)
        return {name: "99.0" if name == "onnxscript" else version for name, version in versions.items()}

    monkeypatch.setattr(formulas, "tool_versions", newer)
    project.run(only=("text_encoder",))
    assert project.executed() == {"text_encoder.convert"}
    assert project.reasons()["text_encoder.convert"].startswith("version of onnxscript changed from ")


def test_clean_cache_rebuilds_everything_of_this_workflow(project: Project) -> None:
    before = project.files()
    result = project.run(clean_cache=True)
    assert (result.executed, result.hits) == (ALL_NODES, 0)
    assert project.files() == before
    assert project.run().executed == 0


def test_an_emptied_store_is_filled_again(project: Project) -> None:
    before = project.files()
    shutil.rmtree(project.folder / "cache")
    assert project.run(only=("text_encoder",)).executed == 4
    assert project.files() == before


def test_a_damaged_object_heals_within_the_run(project: Project) -> None:
    before = project.files()
    shutil.rmtree(project.output)
    for path in (project.folder / "cache" / "objects").rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    project.run()
    assert project.files() == before
    assert project.run().executed == 0


def test_the_run_record_tells_what_happened(project: Project) -> None:
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, float16: {keep_io: true}]")
    project.run(command="olivelike convert checkpoint")
    record = next(readable_runs(Store.open(project.folder / "cache")))
    node = next(node for node in record.nodes if node.id == "text_encoder.materialize")
    assert (record.status, record.executed, record.hits) == ("ok", 2, 7)
    assert record.versions["torch"]
    assert record.peak_memory_bytes > 0
    assert node.facts["files"]["weights.pb"]["sha256"]
    assert node.seconds > 0
    assert 0 < node.start_seconds < node.start_seconds + node.seconds < record.seconds
    assert 0 < node.memory_before_bytes <= node.peak_memory_bytes * 1.01
    assert (node.output, record.outputs) == (str(project.output), (str(project.output),))
    assert record.project == str(project.folder)
    assert (record.file, record.command) == (None, "olivelike convert checkpoint")
    before = record.previous
    assert (before.seconds > 0, before.target.name) == (True, "cuda")
    assert before.nodes["text_encoder.load"].status == "executed"
    assert all(size > 0 for size in before.output_bytes.values())
