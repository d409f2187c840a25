"""Calibration in a run: when pictures are drawn and when not, what decides that, and what is refused."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from olivelike.cli.app import run_command_line
from olivelike.engine import observed_pictures
from olivelike.engine.calibration import Drawn, FloatPipeline, TrialDrawing, calibrate
from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.output.swap import swap_loras
from olivelike.engine.preparation import plan, prepare
from olivelike.engine.prepared import Options
from olivelike.engine.run_result import readable_runs
from olivelike.errors import PassError, SafetyError, UsageError, WorkflowError
from olivelike.graphs.inspect import inspect_model
from olivelike.measure.contest.runtime_engine import kept_in, weights_dtype
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.observations import from_bytes
from olivelike.model.records.run_record import NodeRecord
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import Session
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.store import Store
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint, little_pipeline

from .conftest import Project, run_project

WORKFLOW = """
name: rounded
source: ./checkpoint
target: cpu
calibration: {prompts: [a cat, two dogs], steps: 2, size: [32, 32]}
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse, int8: {float_blocks: []}]
  vae_decoder: [convert, fuse]
  safety_checker: [convert, fuse]
output: models/small
"""
REQUEST = Request(("a cat",), steps=2, seed=1, size=(32, 32))
STEPS = tuple(f", step {step} of 3" for step in (1, 2, 3))
NETWORKS = ("text_encoder", "unet", "vae_decoder", "safety_checker")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, list[Any]]:
    """A project that has drawn two pictures, and what its run told."""
    folder = tmp_path_factory.mktemp("rounded")
    shutil.copytree(little_checkpoint(), folder / "checkpoint")
    project = run_project(folder, WORKFLOW, folder / "checkpoint", *NETWORKS)
    return project, project.events


@pytest.fixture
def rounded(first: tuple[Project, list[Any]]) -> Project:
    """That project; tests leave its output as it is."""
    return first[0]


def drawing(project: Project) -> NodeRecord:
    """Return how the node that draws ended last, where it ran."""
    record = next(readable_runs(Store.open(project.folder / "cache")))
    return next(node for node in record.nodes if node.id == "pipeline.calibrate")


def test_pictures_are_drawn_once_and_again_with_the_same_bytes(
    rounded: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count the same however many are denoised before the UNet is closed and they are decoded."""
    digest, facts = drawing(rounded).outputs["calibration.unet"], drawing(rounded).facts
    assert facts["pictures"] == 2
    assert facts["runs"] == {"unet": 6}  # PNDM: one more than steps
    seen = from_bytes(Store.open(rounded.folder / "cache").require_bytes(digest, "ranges"))
    assert len(seen) == facts["values"]["unet"] > 20
    assert all(one.low <= one.high and sum(one.counts) == 6 * 4096 for one in seen.values())
    before = rounded.files()
    assert rounded.run().executed == 0
    opened: dict[str, weakref.ref[Session]] = {}

    def opening(path: Path, settings: SessionSettings) -> Session:
        if path.parent.name == "safety_checker":
            assert opened["unet"]() is None
            assert opened["text_encoder"]() is None
        session = open_session(path, settings)
        opened[path.parent.name] = weakref.ref(session)
        return session

    monkeypatch.setattr(observed_pictures, "open_session", opening)
    monkeypatch.setattr(observed_pictures, "_AT_ONCE", 1)
    assert rounded.run(clean_cache=True).executed > 0
    assert {"unet", "text_encoder", "safety_checker"} <= opened.keys()
    assert "pipeline.calibrate" in rounded.executed()
    assert drawing(rounded).outputs["calibration.unet"] == digest
    assert rounded.files() == before


def test_each_step_and_picture_is_told_of(first: tuple[Project, list[Any]]) -> None:
    told = [event.data for event in first[1] if event.name == "node_progress"]
    told = [data for data in told if data["node"] == "pipeline.calibrate"]
    notes = [data["note"] for data in told]
    assert notes == [
        "writing networks to draw with",
        *(f"picture {number} of 2{step}" for number in (1, 2) for step in ("", *STEPS)),
        "decoded picture 1 of 2",
        "decoded picture 2 of 2",
    ]
    assert [told[-1][name] for name in ("done", "total", "seconds_left")] == [8, 8, 0.0]
    assert all(data["seconds_left"] is not None for data in told if data["done"] > 0)


@pytest.mark.parametrize(("trained", "size"), [(64, 64), (256, 256), (512, 256), (768, 384), (1024, 512)])
def test_pictures_without_a_size_have_half_the_trained_one_down_to_256(
    monkeypatch: pytest.MonkeyPatch, trained: int, size: int
) -> None:
    monkeypatch.setattr(PipelineFolder, "default_size", property(lambda _: (trained, trained)))
    assert observed_pictures.observed_size(open_folder(little_pipeline())) == (size, size)


def test_other_prompts_and_weights_draw_again_and_other_methods_do_not(rounded: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rounded.run("components.unet=[convert, fuse, int8: {method: percentile}]", output=out)
    assert rounded.executed() >= {"unet.int8", "unet.materialize"}
    assert "pipeline.calibrate" not in rounded.executed()
    rounded.run("calibration.prompts=[a cat]", output=out)
    assert {"pipeline.calibrate", "unet.int8"} <= rounded.executed()
    other = tmp_path / "other"
    shutil.copytree(little_checkpoint(), other)
    file = other / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({name: array * 1.1 for name, array in load_file(file).items()}, file)
    rounded.run(f"source={other}", "calibration.prompts=[a cat]", output=out, overwrite=True)
    assert rounded.executed() == {"pipeline.calibrate", "unet.int8", "unet.materialize"}


def test_another_weight_of_a_lora_draws_again_and_the_plan_says_what_decides_it(
    rounded: Project, tmp_path: Path
) -> None:
    lora = make_lora(tmp_path / "one.safetensors", "peft", base=rounded.folder / "checkpoint", modules="attention")
    same = "components.unet=[merge_lora, convert, fuse, int8: {float_blocks: []}]", "calibration.prompts=[a cat]"

    def weighing(weight: float) -> tuple[str, ...]:
        return *same, f"loras=[{{file: {lora}, weight: {weight}, weights: {{text_encoder: 0}}}}]"

    rounded.run(*weighing(1.0), output=tmp_path / "out")
    first = drawing(rounded).outputs["calibration.unet"]
    place, options = str(rounded.workflow), Options(overrides=weighing(0.5), output=tmp_path / "out")
    planned = {node.node.id: node for node in plan(place, options)[1].nodes}
    assert planned["unet.merge_lora"].reason == "LoRA one.safetensors: weight changed from 1.0 to 0.5"
    asked = planned["pipeline.calibrate"]
    assert (asked.status, asked.reason) == ("pending", "decided when unet.merge_lora has run")
    rounded.run(*weighing(0.5), output=tmp_path / "out")
    assert drawing(rounded).reason == "the unet.weights changed"
    assert drawing(rounded).outputs["calibration.unet"] != first
    rounded.run(*weighing(1.0), output=tmp_path / "out")
    assert "pipeline.calibrate" not in rounded.executed()


@pytest.mark.parametrize(
    ("step", "target"),
    [
        ("int8", "cpu"),
        pytest.param("weights8", "cpu", marks=pytest.mark.slow),
        pytest.param("fp8", "tensorrt", marks=pytest.mark.slow),
    ],
    ids=("int8", "weights8", "fp8"),
)
def test_a_session_takes_a_lora_for_quantised_convolutions(
    rounded: Project, tmp_path: Path, step: str, target: str
) -> None:
    chain = f"components.unet=[convert, fuse, {step}: {{float_blocks: []}}]"
    rounded.run(chain, f"target={target}", output=tmp_path / "out")
    file = make_lora(tmp_path / "one.safetensors", "locon", base=rounded.folder / "checkpoint", modules="all")
    swapped = swap_loras(tmp_path / "out", [WeightedLora(open_lora(file), 1.0)], only=("unet",))
    before, after = (
        open_pipeline(tmp_path / "out", SessionSettings(), initializers=given).generate(REQUEST).pictures[0].image
        for given in ({}, swapped)
    )
    assert before != after


@pytest.mark.slow  # `ablate` has tests of its own; those of `verify` see what a network is kept in.
def test_an_ablation_says_what_is_in_which_type(rounded: Project, tmp_path: Path) -> None:
    sweep = "sweep=[{name: plain, components: {unet: [convert, fuse]}}, {name: rounded}]"
    rounded.run(sweep, output=tmp_path / "swept")
    prepared = prepare(str(rounded.workflow), Options(overrides=(sweep,), output=tmp_path / "swept"), writes=False)
    plain, quantised = pytest.importorskip("olivelike.extras.bench.ablation").verified_rows(prepared)
    assert plain.weights is None
    assert quantised.weights is not None
    assert quantised.weights.startswith("int8 ")


def test_the_folder_draws_and_is_verified_and_inspected(rounded: Project) -> None:
    pictures = [open_pipeline(path).generate(REQUEST).pictures for path in (rounded.output, little_pipeline())]
    assert pictures[0][0].image != pictures[1][0].image
    (verdict,) = verify_folder(rounded.output, components=["unet"]).components
    assert (verdict.verification.precision, verdict.passed) == ("int8", True)
    assert (kept_in(rounded.output), weights_dtype(rounded.output)) == ("int8", "float32")
    found = inspect_model(rounded.output / "unet" / "model.onnx", targets=())
    assert found.parameters["int8"].elements > found.parameters["float32"].elements / 4


def test_unsafe_and_empty_prompts_are_refused(rounded: Project, tmp_path: Path, monkeypatch) -> None:
    from olivelike.runtime.pipeline.safety import SafetyCheck

    for prompts, reason in (("[a, '  ']", "a prompt of `calibration` is empty"), ("[]", "calibration.prompts")):
        with pytest.raises(WorkflowError, match=reason):
            rounded.run(f"calibration.prompts={prompts}", output=tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(WorkflowError, match="has no prompts; write one in each line"):
        rounded.run(f"calibration.prompts={tmp_path / 'empty.txt'}", output=tmp_path)
    monkeypatch.setattr(SafetyCheck, "flags", lambda _, images: [True] * len(images))
    with pytest.raises(SafetyError, match="flags what 1 prompts of the calibration draw, the first of them 'a knife'"):
        rounded.run("calibration.prompts=[a knife]", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_chains_without_what_draws_are_refused(rounded: Project, tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="there is no vae_decoder to draw with; add it to `components`"):
        rounded.run(only=("text_encoder", "unet"), output=tmp_path)
    with pytest.raises(WorkflowError, match="vae_encoder"):
        rounded.run("components.vae_encoder=[convert, fuse, int8]", output=tmp_path)
    with pytest.raises(WorkflowError, match="target 'directml' is not known to compute in 8 bits"):
        rounded.run("target=directml", output=tmp_path)


def test_a_search_draws_with_what_it_tries_and_remembers_it(
    rounded: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    float_blocks = "[down_blocks, mid_block, up_blocks.0]"

    def searched(limit: str) -> dict[str, Any]:
        auto = f"int8: {{float_blocks: {float_blocks}, auto: true, samples: 1, {limit}}}"
        rounded.run(f"components.unet=[convert, fuse, {auto}]", output=tmp_path / "out")
        record = next(readable_runs(Store.open(rounded.folder / "cache")))
        return next(node for node in record.nodes if node.id == "unet.int8").facts["auto"]

    whole = searched("error_of: latents, max_relative_error: 10")
    assert whole["kept_fp32_blocks"] == []
    assert 0 < whole["latents_error"] < 1
    assert whole["drawings"] == 1
    part = searched(f"error_of: latents, max_relative_error: {0.9 * whole['latents_error']}")
    assert part["kept_fp32_blocks"]
    assert part["latents_error"] < 0.9 * whole["latents_error"]
    assert part["without"]["latents_error"] == whole["latents_error"]
    monkeypatch.setattr(TrialDrawing, "compare", None)  # The next search's drawings are remembered.
    assert searched(f"error_of: pictures, min_psnr: {part['without']['psnr'] - 1}")["kept_fp32_blocks"] == []


def test_a_plugin_draws_without_reading_ranges(rounded: Project, tmp_path: Path) -> None:
    plugin = tmp_path / "drawer.py"
    plugin.write_text(
        "from olivelike.pass_api import Pass\n\nclass Drawer(Pass):\n"
        "    reads = ('graph', 'drawing')\n    writes = ('graph',)\n    files = ()\n    environment = ()\n\n"
        "    def run(self, model, context):\n"
        "        context.report(**context.require_drawing().compare(model.require('graph').to_ir()))\n"
        "        return model\n"
    )
    overrides = f"plugins=[{plugin}]", "calibration.prompts=[a cat]", "components.vae_decoder=[convert, fuse, drawer]"
    rounded.run(*overrides, "components.unet=[convert, fuse]", output=tmp_path / "out")
    record = next(readable_runs(Store.open(rounded.folder / "cache")))
    facts = next(node for node in record.nodes if node.id == "vae_decoder.drawer").facts
    assert facts == {"latents_error": 0.0, "psnr": None}


def test_values_that_are_not_finite_are_named(rounded: Project, tmp_path: Path) -> None:
    import numpy as np

    def draw(_folder, prefix, observe):
        observe(0, "unet", {f"{prefix}conv": np.array([0, 1, np.nan, 1], np.float32)})
        yield Drawn("a cat", False, np.zeros(1), np.zeros(1))

    with pytest.raises(PassError, match="unet: in run 1 of calibration, 'conv' has values that are not finite"):
        calibrate(FloatPipeline({}, {}, {}, {}, draw), ["unet"], tmp_path)


def test_convert_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\n")
    source, out = str(little_checkpoint()), tmp_path / "out"
    place, _ = draft(ConvertRequest(source, "cpu", out, precision="int8", calibration=str(prompts)), Options())
    assert place.text is not None
    lines = [line.split() for line in place.text.splitlines()]
    assert ["unet:", "[merge_lora,", "convert,", "fuse,", "int8]"] in lines
    assert ["vae_decoder:", "[convert,", "fuse]"] in lines
    assert str(prompts) in place.text
    command = ["convert", source, "-t", "cpu", "--precision", "int8", "-o", str(out), "--dry-run"]
    assert run_command_line([*command, "--cache-dir", str(tmp_path / "cache")]) == 0
    assert "pipeline.calibrate" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--calibration is for --precision int8 and fp8"):
        draft(ConvertRequest(source, "cpu", out, calibration=str(prompts)), Options())
