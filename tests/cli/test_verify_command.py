"""`olivelike verify`: an output folder against its original."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from olivelike.engine.run_result import readable_runs
from olivelike.measure.report.recorded_runs import RecordedRun
from olivelike.model.records.origin import EmbeddingRecord, LoraRecord, Origin
from olivelike.model.records.output import RECORD_FILE, ComponentRecord, OutputFile
from olivelike.model.targets import TargetChoice
from olivelike.store import Store
from tests.fixtures.little_pipeline import little_checkpoint, little_pipeline
from tests.fixtures.sample_records import write_output_record

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")


def recorded(folder, **changes):
    """Write the record that a run would have left."""
    files = {
        path.relative_to(folder).as_posix(): OutputFile(path.stat().st_size, "")
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD_FILE
    }
    components = dict.fromkeys(COMPONENTS, ComponentRecord(""))
    target, source = TargetChoice("cpu", "fp32"), Origin("folder", "little")
    said = {"target": target, "source": source, "components": components, "files": files, **changes}
    write_output_record(folder, **said)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_torch_thread):
    """The little pipeline as a run would leave it; not to be changed."""
    folder = tmp_path_factory.mktemp("verified") / "little"
    shutil.copytree(little_pipeline(), folder)
    return recorded(folder)


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def original():
    return little_checkpoint()


@pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")
def test_every_network_and_a_picture_are_like_the_originals(folder, original, cli, tmp_path):
    done = cli("verify", folder, "--against", original, "--steps", 2, "--json", "--save", tmp_path / "pictures")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["passed"]
    assert tuple(found["components"]) == COMPONENTS
    for figures in found["components"].values():
        assert figures["passed"]
        assert figures["relative_error"] < 1e-5
        assert len(figures["samples"]) == 2
    (picture,) = found["pictures"]
    assert picture["psnr"] is None or picture["psnr"] > 50
    assert picture["ssim"] > 0.999
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["0-optimised.png", "0-original.png"]


def test_the_figures_go_into_the_model_card(copy, original, cli):
    asked = ("verify", copy, "--against", original, "--samples", 1, "--pictures", 0, "--card")
    done = cli(*asked)
    assert (done.status, done.out.splitlines()[-1]) == (0, f"card: {copy / 'README.md'}")
    card = (copy / "README.md").read_text(encoding="utf-8")
    assert "| unet |  | " in card
    assert cli(*asked).status == 0
    assert (copy / "README.md").read_text(encoding="utf-8") == card


def test_a_network_can_be_compared_alone(folder, original, cli):
    done = cli("verify", folder, "--against", original, "--component", "vae_decoder", "--samples", 1, "--seed", 4)
    assert done.status == 0
    (line,) = done.out.splitlines()
    assert line.startswith("vae_decoder      fp32  relative error ")
    assert line.endswith("ok (limit 1e-04)")
    assert done.err.splitlines() == ["comparing vae_decoder"]


def test_a_network_that_was_changed_on_disk_is_caught(copy, original, cli):
    path = copy / "vae_decoder" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Conv":
            del node.input[2:]
    onnx.save(model, path)
    done = cli("verify", copy, "--against", original, "--component", "vae_decoder")
    assert done.status == 5
    assert "TOO FAR OFF" in done.out
    assert "vae_decoder is further from torch than 1e-04" in done.err


def test_pictures_can_be_held_to_a_limit(folder, original, cli):
    asked = ("--component", "vae_encoder", "--samples", 1, "--pictures", 1, "--steps", 1, "--min-ssim", 1.5)
    done = cli("verify", folder, "--against", original, *asked)
    assert done.status == 5
    assert "the picture of seed 0 is less like the original than asked for" in done.err


def test_a_folder_for_a_target_that_is_not_here_has_its_networks_compared_and_no_pictures(copy, original, cli):
    text = (copy / RECORD_FILE).read_text().replace('"name": "cpu"', '"name": "directml"')
    (copy / RECORD_FILE).write_text(text)
    done = cli("verify", copy, "--against", original, "--samples", 1)
    assert done.status == 0
    assert "no pictures: directml: DmlExecutionProvider is not installed" in done.out
    for asked in (("--pictures", 1), ("--min-psnr", 90), ("--min-ssim", 0.5), ("--provider", "directml")):
        done = cli("verify", copy, "--against", original, *asked)
        assert (done.status, done.out) == (3, "")
        assert "DmlExecutionProvider is not installed" in done.err


def test_pictures_that_a_damaged_folder_can_not_make_are_no_reason_to_pass(copy, original, cli):
    (copy / "scheduler" / "scheduler_config.json").unlink()
    done = cli("verify", copy, "--against", original, "--samples", 1)
    assert done.status == 3
    assert "scheduler_config.json: no such file" in done.err


def test_a_folder_that_is_no_whole_pipeline_has_its_networks_compared(project, cli):
    done = cli("verify", "models/little", "--against", "checkpoint", "--samples", 1)
    assert done.status == 0, done.err
    assert "no pictures: the folder has no unet/model.onnx" in done.out
    assert cli("verify", "models/little", "--against", "checkpoint", "--pictures", 1).status == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--component", "unte"), "--component unte: the folder has no such network; did you mean 'unet'?"),
        (("--threshold", "-1"), "--threshold -1.0: use a number above 0"),
        (("--threshold", "nan"), "--threshold nan: use a number above 0"),
        (("--min-psnr", "0"), "--min-psnr 0.0: use a number above 0"),
        (("--samples", "0"), "--samples"),
        (("--lora", "gone.safetensors"), "gone.safetensors"),
        (("--provider", "cdua"), "cdua"),
        (("--component", "vae_encoder", "--min-psnr", "90"), "no picture is compared; say how many with --pictures"),
        (("--pictures", "0", "--min-ssim", "0.9"), "no picture is compared; say how many with --pictures"),
        (("--save", "/dev/null/pictures"), "--save: /dev/null is no folder, or may not be written"),
    ],
)
def test_what_makes_no_sense_is_refused(folder, original, cli, arguments, message):
    done = cli("verify", folder, "--against", original, *arguments)
    assert done.status in {2, 3}
    assert message in done.err
    assert done.out == ""


def test_the_original_must_be_named_where_the_folder_does_not_know_its_place(folder, cli):
    done = cli("verify", folder)
    assert done.status == 2
    assert "was made from little, whose place it does not know; name it with --against" in done.err


def test_a_folder_without_a_record_is_refused(tmp_path, original, cli):
    (tmp_path / "empty").mkdir()
    unread = "has no readable olivelike.json; name a folder that `olivelike run` wrote"
    for place, reason in ((tmp_path / "empty", unread), (tmp_path / "gone", "gone: no such folder; ")):
        done = cli("verify", place, "--against", original)
        assert done.status == 3
        assert reason in done.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loras": (LoraRecord(Origin("file", "ink.safetensors"), 0.8, sha256="0"),)},
            "give exactly --lora ink.safetensors:0.8",
        ),
        ({"loras": (LoraRecord(Origin("file", "a"), 1, {"unet": 0}, sha256="0"),)}, "weights of their own"),
        ({"embeddings": (EmbeddingRecord(Origin("file", "cat"), "<cat>"),)}, "has textual inversions (<cat>)"),
        (
            {"source": Origin("folder", "x", vae=Origin("file", "better.safetensors"))},
            "has another VAE, better.safetensors; name it with --vae",
        ),
    ],
)
def test_what_was_added_to_the_checkpoint_must_be_told(copy, original, cli, changes, message):
    recorded(copy, **changes)
    done = cli("verify", copy, "--against", original)
    assert done.status == 2
    assert message in done.err


def test_a_checkpoint_of_another_size_does_not_fit(folder, cli):
    done = cli("verify", folder, "--against", little_checkpoint("inpainting"), "--component", "unet")
    assert done.status != 0


def test_a_missing_checkpoint_is_an_error_of_its_own(folder, cli, tmp_path):
    done = cli("verify", folder, "--against", tmp_path / "gone")
    assert done.status == 3


def test_the_figures_are_added_to_the_report_of_the_run_that_wrote_the_folder(project, cli):
    (record,) = Path("cache/runs").glob("*.json")
    # The project was copied from where the run wrote.
    done = cli("verify", json.loads(record.read_text())["outputs"][0], "--report")
    assert done.status == 0, done.err  # The checkpoint lies near, so its place need not be told.
    page = project / "cache" / "logs" / record.stem / "report.html"
    assert done.out.splitlines()[-1] == f"report: {page}"
    assert "The output against the original" in page.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")
def test_the_report_has_the_pictures(folder, original, project, cli, monkeypatch):
    (record,) = Path("cache/runs").glob("*.json")
    place = project / "cache" / "logs" / record.stem
    run = RecordedRun(next(readable_runs(Store.open(Path("cache")))), place)
    monkeypatch.setattr("olivelike.measure.report.recorded_runs.last_writer", lambda *_: run)
    done = cli("verify", folder, "--against", original, "--steps", "2", "--report")
    assert done.status == 0, done.err
    assert (place / "report.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 2


def test_a_folder_that_no_run_wrote_has_no_report(folder, original, project, cli):
    done = cli("verify", folder, "--against", original, "--report")
    assert done.status == 2
    assert "no run that wrote" in done.err
