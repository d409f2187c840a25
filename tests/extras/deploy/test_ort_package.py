"""Model packages of ONNX Runtime, read by ONNX Runtime itself: of one target, and put together of several."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from olivelike.cli.app import run_command_line
from olivelike.digest import digest_bytes
from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.extras.deploy.joined_package import package_outputs
from olivelike.extras.deploy.ort_package import package_root
from olivelike.measure.profiling import profile_folder
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.client_layouts import LAYOUTS
from olivelike.model.guides import GUIDES, GuideKind
from olivelike.model.records.output import ComponentRecord, OutputFile, OutputRecord
from olivelike.runtime import open_pipeline
from tests.engine.conftest import Project, run_project
from tests.extras.deploy.ort_packages import OpenPackage, RefusedPackageError
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.sample_records import write_output_record

WORKFLOW = """
name: packed
source: {checkpoint}
target: cpu
components:
  text_encoder: [convert]
  vae_decoder: [convert, fuse]
output: models/small
layout: ortpackage
"""
NETWORKS = ("text_encoder", "vae_decoder")
LATENTS = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has written a package, and plain outputs for two targets; tests leave it as it is."""
    base = little_checkpoint()
    project = run_project(tmp_path_factory.mktemp("packed"), WORKFLOW.format(checkpoint=base), base, *NETWORKS)
    for target in ("cpu", "cuda"):
        # Nothing that only one of the two runs, so that weights are alike.
        chains = "components={text_encoder: [convert], vae_decoder: [convert]}"
        project.run(f"target={target}", chains, "layout=diffusers", output=project.folder / target)
    return project


def plain_decoder(folder: Path) -> Any:
    path = folder / "vae_decoder" / "model.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"latent_sample": LATENTS})[0]


def test_a_package_says_what_it_holds() -> None:
    made = [json.loads(package_root("a", {name: 0}, {})["manifest.json"]) for name in ("unet", "transformer")]
    assert [one["description"].partition(": ")[2] for one in made] == [
        "text encoders, UNet and VAE", "text encoders, transformer and VAE",
    ]  # fmt: skip


def test_onnxruntime_opens_a_package_and_runs_what_is_in_it(packed: Project) -> None:
    package = OpenPackage(packed.output)
    assert package.components() == sorted(NETWORKS)
    assert package.variants("vae_decoder") == {"cpu": "CPUExecutionProvider"}
    plain = packed.folder / "plain"
    packed.run("layout=diffusers", output=plain)
    wanted = plain_decoder(plain)
    name, found = package.run("vae_decoder", {"latent_sample": LATENTS}, "sample", wanted.shape)
    assert name == "cpu"
    assert np.array_equal(found, wanted)
    manifest = json.loads((packed.output / "manifest.json").read_text())
    asset = packed.output / "shared_assets" / manifest["additional_metadata"]["olivelike"]["pipeline"].replace(":", "-")
    assert (asset / "tokenizer" / "vocab.json").is_file()
    assert (asset / "model_index.json").is_file()
    assert package.resolve(manifest["additional_metadata"]["olivelike"]["pipeline"]) == asset.resolve()
    assert packed.run().executed == 0


def test_settings_of_a_target_are_those_of_the_variant(packed: Project) -> None:
    target = "target={provider: cuda, options: {use_tf32: false}, session_options: {session.disable_prepacking: true}}"
    folder = packed.folder / "tuned"
    packed.run(target, output=folder)
    described = json.loads((folder / "vae_decoder" / "component.json").read_text())
    assert described["variants"]["cuda"] == {
        "ep": "CUDAExecutionProvider",
        "executor_info": {
            "ort": {
                "model_file": "model.onnx",
                "session_options": {"session.disable_prepacking": "1"},
                "provider_options": {"use_tf32": "0"},
            }
        },
    }
    assert OpenPackage(folder).variants("vae_decoder") == {"cuda": "CUDAExecutionProvider"}


def test_outputs_for_two_targets_are_one_package_with_equal_weights_once(
    packed: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    target, folders = packed.folder / "both.ortpackage", [packed.folder / "cpu", packed.folder / "cuda"]
    assert run_command_line(["package", *map(str, folders), "-o", str(target), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["targets"] == ["cpu", "cuda"]
    package = OpenPackage(target)
    assert package.variants("vae_decoder") == {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    wanted = plain_decoder(folders[0])
    name, found = package.run("vae_decoder", {"latent_sample": LATENTS}, "sample", wanted.shape)
    assert (name, np.array_equal(found, wanted)) == ("cpu", True)
    weights = sorted(path.relative_to(target).parts[0] for path in target.rglob("weights.pb"))
    assert weights == ["shared_assets", "shared_assets"]
    sizes = [(folders[0] / name / "weights.pb").stat().st_size for name in NETWORKS]
    assert told["shared_bytes"] >= sum(sizes)
    # One file on the disk, with a name in the output and one here.
    (decoder,) = (path for path in target.rglob("weights.pb") if path.stat().st_size == sizes[1])
    assert decoder.samefile(folders[0] / "vae_decoder" / "weights.pb")
    again = package_outputs(folders, target)
    assert again.files == told["files"] == len(OutputRecord.require(target).files)
    assert run_command_line(["info", str(target)]) == 0
    told_of = capsys.readouterr().out
    assert "\ntarget        cpu, cuda\n" in told_of
    assert re.search(
        r"^shared        [\d.]+ .B in shared_assets, which the networks' sizes leave out$", told_of, re.MULTILINE
    )
    with pytest.raises(SourceError, match="is laid out for package"):
        open_pipeline(target)
    for compare in (verify_folder, profile_folder):
        with pytest.raises(SourceError, match="is a package of several outputs; name one of those"):
            compare(target)  # type: ignore[operator]
    # A package of one target has its weights where each reader looks.
    (verdict,) = verify_folder(packed.output, against=str(little_checkpoint()), components=["vae_decoder"]).components
    assert verdict.passed
    with pytest.raises(UsageError, match="is a package that `package` put together"):
        packed.run(output=target)
    # Weights that differ lie with their variant.
    half = packed.folder / "half"
    packed.run("target=cuda", "components.vae_decoder=[convert, fuse, float16]", "layout=ortpackage", output=half)
    mixed = package_outputs([packed.output, half], packed.folder / "mixed")
    homes = {path.relative_to(mixed.path).parent.as_posix() for path in mixed.path.rglob("weights.pb")}
    assert {"vae_decoder/cpu", "vae_decoder/cuda"} < homes
    assert len(homes) == 3
    assert decoded_alike(OpenPackage(mixed.path), OpenPackage(packed.output), wanted.shape)


def decoded_alike(one: OpenPackage, other: OpenPackage, shape: tuple[int, ...]) -> bool:
    given = {"latent_sample": LATENTS}
    first, second = (package.run("vae_decoder", given, "sample", shape)[1] for package in (one, other))
    return bool(np.array_equal(first, second))


@pytest.mark.parametrize(
    ("folders", "error", "said"),
    [
        (["cpu", "cpu_again"], UsageError, "are both for cpu; a package has one variant for each target"),
        (["cpu", "nowhere"], SourceError, "nowhere: no such folder"),
        (["cpu", "triton"], SourceError, "its layout is onnxstack; a package is put together of diffusers or ortp"),
        (["cpu", "lone"], UsageError, "differ in text_encoder, which one of them lacks"),
        (["cpu", "windows"], UsageError, "windowsml names no execution provider of ONNX Runtime"),
        (["cpu", "damaged"], SourceError, r"model\.onnx: is missing, damaged, or was changed"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    packed: Project, tmp_path: Path, folders: list[str], error: type[OlivelikeError], said: str
) -> None:
    made = {
        "cpu_again": ["layout=diffusers"],
        "triton": ["layout=onnxstack", "target=cuda"],
        "lone": ["layout=diffusers", "target=cuda", "components={vae_decoder: [convert]}"],
        "windows": ["layout=diffusers", "target=windowsml"],
        "damaged": ["layout=diffusers", "target=openvino_ep"],
    }
    if folders[1] in made:
        packed.run(*made[folders[1]], output=packed.folder / folders[1])
    if folders[1] == "damaged":
        with (packed.folder / "damaged" / "vae_decoder" / "model.onnx").open("r+b") as file:
            file.write(b"\1\2\3\4")
    with pytest.raises(error, match=said):
        package_outputs([packed.folder / name for name in folders], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="overlaps"):
        package_outputs([packed.folder / "cpu"], packed.folder / "cpu" / "inside")


def test_onnxruntime_refuses_what_is_no_package_of_its_format(packed: Project, tmp_path: Path) -> None:
    manifest = json.loads((packed.output / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "configs_dir": "configs"}))
    with pytest.raises(RefusedPackageError, match="configs_dir"):
        OpenPackage(tmp_path)


def test_controlnets_and_windowsml_have_no_place_in_a_package(packed: Project) -> None:
    with pytest.raises(UsageError, match="layout ortpackage: windowsml names no execution provider"):
        packed.run("target=windowsml", output=packed.folder / "refused")
    assert not any(LAYOUTS[name].has("controlnet") for name in ("triton", "ortpackage"))  # So a run refuses them.
    with pytest.raises(UsageError, match="--only: the layout ortpackage describes all components together"):
        packed.run(only=("vae_decoder",))


@pytest.mark.parametrize("kind", GUIDES.values(), ids=GUIDES)
def test_no_guide_has_a_place_in_a_package(
    packed: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: GuideKind
) -> None:
    record = OutputRecord.require(packed.output)
    led = {**record.components, kind.components[0]: record.components["vae_decoder"]}
    monkeypatch.setattr(OutputRecord, "require", lambda _: replace(record, components=led))
    with pytest.raises(UsageError, match=f"has {kind.components[0]}; a package holds no {kind.title}s"):
        package_outputs([packed.output], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shared_file_outside_of_an_asset_is_no_part_of_the_pipeline(tmp_path: Path) -> None:
    empty = OutputFile(0, digest_bytes(b""))
    files = ("shared_assets/lone", "shared_assets/sha256-1/model_index.json", "unet/cpu/model.onnx")
    for name in files:
        path = tmp_path / "strange" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    known = {"layout": "ortpackage", "components": {"unet": ComponentRecord("key")}}
    write_output_record(tmp_path / "strange", files=dict.fromkeys(files, empty), **known)
    assert package_outputs([tmp_path / "strange"], tmp_path / "made").targets == ("cpu",)
