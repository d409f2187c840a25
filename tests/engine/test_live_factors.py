"""Pictures with LoRAs as factors of graphs that take them: those of the same LoRAs merged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from olivelike._untrusted import Json
from olivelike.cli.app import run_command_line
from olivelike.engine.output.expressions import parameters
from olivelike.engine.output.low_rank_factors import lora_factors
from olivelike.engine.output.swap import LiveLoras, swap_loras
from olivelike.errors import OlivelikeError
from olivelike.model.components import MODEL_FILE
from olivelike.model.guides import guided_file
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE, UP
from olivelike.model.records.output import RECORD_FILE
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs import PromptLine, plan_jobs
from olivelike.runtime.pipeline.networks import Networks, denoiser_name
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import find_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings
from olivelike.serve.drawing.warm import SessionChoice, WarmPipelines
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.lora_settings import CONFIG_NAME, METADATA_KEY
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint

from .conftest import run_project

NETWORKS = ("text_encoder", "unet", "vae_decoder")
WORKFLOW = """
name: small
source: ./checkpoint
target: cpu
components:
  text_encoder: [convert, fuse, lora_inputs]
  unet: [convert, fuse, lora_inputs]
  vae_decoder: [convert, fuse]
output: models/small
"""
REQUEST = Request(prompts=("a red circle",), steps=3, seed=5)
SEVERAL = ("ink:0.8",), ("ink:0.8", "glow:0.5"), ("ink:0.8", "glow:-0.5", "wash:0.3"), ("glow:0.5",)


class Folders:
    """A pipeline with graphs that take factors, without them, and LoRAs."""

    def __init__(self, root: Path) -> None:
        base = little_checkpoint("attending")
        (root / "checkpoint").symlink_to(base)
        self.taking = run_project(root, WORKFLOW, base, *NETWORKS).output
        self.plain = root / "models" / "plain"
        shutil.copytree(self.taking, self.plain)
        for path in self.plain.rglob(LORA_INPUTS_FILE):
            path.unlink()
        self.loras = root / "loras"
        self.loras.mkdir()
        for seed, name in enumerate(("ink", "glow", "wash")):
            make_lora(self.loras / f"{name}.safetensors", "kohya", base=base, seed=seed, modules="attention+ff")
        make_lora(self.loras / "dora.safetensors", "dora", base=base, seed=5)
        self.files = LiveLoras([self.loras])

    def named(self, *names: str) -> list:
        return [self.files.named(str(self.loras / name.replace(":", ".safetensors:"))) for name in names]

    def merged(self, *names: str, folder: Path | None = None):
        return self.files.merge(self.named(*names), folder or self.taking)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("factors"))


def decibels(found: np.ndarray, wanted: np.ndarray) -> float:
    error = np.mean((found - wanted).astype(np.float64) ** 2)
    return 10 * np.log10((wanted.max() - wanted.min()) ** 2 / max(error, 1e-30))


def test_pictures_with_factors_are_those_of_merged_weights_and_others_as_if_there_had_been_none(
    folders: Folders,
) -> None:
    pipeline, base = (open_pipeline(folder) for folder in (folders.taking, folders.plain))
    plain, without = base.latents(REQUEST), pipeline.latents(REQUEST)
    assert decibels(without, plain) > 100
    for names in SEVERAL:
        pipeline = pipeline.with_initializers(folders.merged(*names))
        assert pipeline.lora_ways(REQUEST) == ("text_encoder: as factors", "unet: as factors")
        wanted = base.with_initializers(folders.merged(*names, folder=folders.plain)).latents(REQUEST)
        assert decibels(pipeline.latents(REQUEST), wanted) > 100
        assert decibels(wanted, plain) < 40
    off = pipeline.with_initializers({})
    assert {"text_encoder/lora_inputs", "unet/lora_inputs"} <= {*off._networks}
    assert not {"text_encoder", "unet"} & {*off._networks}
    assert (off.latents(REQUEST) == without).all()
    # The one before draws as before, though both have the same networks.
    assert decibels(pipeline.latents(REQUEST), wanted) > 100


def test_each_component_has_its_strength(folders: Folders) -> None:
    files = folders.files
    ink = files.tagged("<lora:ink:1:0.4>", "ink", 1.0, 0.4)
    found, wanted = (
        open_pipeline(folder, initializers=files.merge([ink], folder)).latents(REQUEST)
        for folder in (folders.taking, folders.plain)
    )
    assert decibels(found, wanted) > 100


def test_what_can_t_be_factors_is_merged_and_told_of(folders: Folders) -> None:
    pipeline = open_pipeline(folders.taking, initializers=folders.merged("ink:0.8", "dora:0.5"))
    assert [way.partition("; ")[0] for way in pipeline.lora_ways(REQUEST)] == ["text_encoder: merged", "unet: merged"]
    assert "is changed by a DoRA" in pipeline.lora_ways(REQUEST)[1]
    wanted = open_pipeline(folders.plain, initializers=folders.merged("ink:0.8", "dora:0.5", folder=folders.plain))
    assert (pipeline.latents(REQUEST) == wanted.latents(REQUEST)).all()


def test_a_denoiser_that_guides_lead_has_them_merged_and_so_have_other_providers(
    folders: Folders, tmp_path: Path
) -> None:
    folder, leaders = tmp_path / "guided", ("controlnet",)
    shutil.copytree(folders.taking, folder)
    shutil.copy(folder / "unet" / MODEL_FILE, folder / "unet" / guided_file(leaders))
    changes = folders.merged("ink:0.8", folder=folder)
    networks = Networks(open_folder(folder), SessionSettings(), changes)
    led = networks.denoiser(leaders).session.opened
    assert {*networks} == {denoiser_name("unet", leaders)}
    assert led.initializers is changes["unet"].merged
    assert networks.denoiser().session.fed is changes["unet"].feeds
    assert {*networks} == {"unet/lora_inputs"}
    elsewhere = SessionSettings((ProviderChoice(find_provider("cuda")),))
    reasons = Networks(open_folder(folder), elsewhere, changes).reasons()
    assert reasons == dict.fromkeys(("text_encoder", "unet"), "factors are for ONNX Runtime's CPU")


def test_nothing_is_kept_of_a_graph_that_takes_factors(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("olivelike.runtime.sessions.compiled._SETTLED_NS", 0)
    for name in (LORA_INPUTS_FILE, MODEL_FILE):
        assert not [*tmp_path.iterdir()]
        open_session(folders.taking / "text_encoder" / name, SessionSettings(compiled=tmp_path, keep_compiled=True))
    assert [*tmp_path.iterdir()]


def test_a_server_feeds_other_factors_to_the_network_that_is_open(folders: Folders) -> None:
    warm, opened = WarmPipelines(SessionChoice(), 1 << 30), []

    def draw(*names: str) -> np.ndarray:
        job = plan_jobs(folders.taking, [PromptLine("a")], {"steps": 2}, loras=folders.named(*names)).jobs[0]
        pipeline = warm.get(folders.taking, job.loras, folders.files, safety=False)
        opened.append(pipeline.denoiser.session)
        return pipeline.latents(REQUEST)

    plain, ink, glow, again, off = draw(), draw("ink:0.8"), draw("glow:0.8"), draw("ink:0.8"), draw()
    assert (ink == again).all()
    assert (plain == off).all()
    assert (ink != glow).any()
    assert len({id(one) for one in opened}) == 1


def test_a_lora_of_the_same_numbers_and_other_settings_is_another_one(folders: Folders, tmp_path: Path) -> None:
    files, path = LiveLoras([tmp_path]), tmp_path / "ink.safetensors"
    made = make_lora(tmp_path / "made", "peft_native", base=little_checkpoint("attending"), components=("unet",))
    shutil.move(made / "adapter_model.safetensors", path)
    config = json.loads((made / "adapter_config.json").read_text())
    fed = []
    for name, alpha in (("ink", 2.0), ("ink", 8.0), ("twin", 8.0)):
        if name == "twin":
            tensors = {f"unet.{key.removeprefix('base_model.model.')}": one for key, one in load_file(path).items()}
            metadata = {"unet.r": config["r"], "unet.lora_alpha": 2.0}
            save_file(tensors, tmp_path / "twin.safetensors", {METADATA_KEY: json.dumps(metadata)})
        else:
            (tmp_path / CONFIG_NAME).write_text(json.dumps(config | {"lora_alpha": alpha}))
        lora = files.tagged("", name, 1.0, 1.0)
        fed.append((lora, files.merge([lora], folders.taking)["unet"].feeds))
    (first, low), (second, high), (twin, again) = fed
    assert first.hash == second.hash == twin.hash
    assert first != second
    changed = [name for name, array in low.items() if name.endswith(UP) and array.any()]
    assert changed
    for name in changed:
        np.testing.assert_allclose(high[name], low[name] * 4, rtol=1e-6)
        assert (again[name] == low[name]).all()


def of_type(number: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "unet" / LORA_INPUTS_FILE
        model = onnx.load(path, load_external_data=False)
        for value in model.graph.input:
            if value.name.startswith("lora_"):
                value.type.tensor_type.elem_type = number
        path.unlink()
        path.write_bytes(model.SerializeToString())

    return change


def derived_by(expression: Callable[[Json], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / RECORD_FILE
        record = json.loads(path.read_bytes())
        derivations = record["components"]["unet"]["derivations"]
        record["components"]["unet"]["derivations"] = {name: expression(one) for name, one in derivations.items()}
        path.unlink()
        path.write_text(json.dumps(record))

    return change


def nested(expression: Json) -> Json:
    for _ in range(40):
        expression = {"op": "Cast", "inputs": [expression]}
    return expression


@pytest.mark.parametrize(
    "change",
    [
        of_type(0), of_type(99), of_type(onnx.TensorProto.INT64), of_type(onnx.TensorProto.STRING),
        derived_by(lambda _: {"constant": [1, 2]}),
        derived_by(lambda one: {"op": "Reshape", "inputs": [one, {"constant": []}]}),
        derived_by(lambda one: {"op": "Expand", "inputs": [one, {"constant": [1 << 40]}], "attributes": {}}),
        derived_by(lambda one: {"parameter": next(parameters(one))[0], "shape": [-3, 2]}),
        derived_by(nested), derived_by(lambda _: {"parameter": 7, "shape": "x"}),
    ],
)  # fmt: skip
def test_a_graph_or_a_record_that_lies_is_refused(folders: Folders, tmp_path: Path, change) -> None:
    folder = tmp_path / "lying"
    shutil.copytree(folders.taking, folder, copy_function=os.symlink)
    change(folder)
    loras = [WeightedLora(open_lora(folders.loras / "ink.safetensors"), 1.0)]
    with pytest.raises(OlivelikeError):
        lora_factors(folder, loras)
    with contextlib.suppress(OlivelikeError):  # Some lies are about what merging does not ask for.
        swap_loras(folder, loras)


def test_a_strength_that_no_float_holds_is_merged(folders: Folders) -> None:
    (lora,) = folders.named("ink:1")
    with np.errstate(over="ignore"):
        change = folders.files.merge([replace(lora, unet_weight=1e39, text_weight=1.0)], folders.taking)["unet"]
    assert change.feeds is None
    assert "too large for its factors" in change.reason


def test_generate_says_which_way_was_taken(folders: Folders, tmp_path: Path, capsys) -> None:
    command = ["generate", str(folders.taking), "a<lora:ink:0.5>", "b<lora:dora>", "--steps", "1", "--json"]
    assert run_command_line([*command, "--lora-dir", str(folders.loras), "-o", str(tmp_path)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = (one["lora_ways"] for one in told if one["event"] == "generate_started")
    assert first == ["text_encoder: as factors", "unet: as factors"]
    assert second[1].startswith("unet: merged; ")
