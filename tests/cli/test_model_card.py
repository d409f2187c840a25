"""The model card of an output folder: what the hub reads, the figures, and what people wrote in it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import yaml

from olivelike.engine.output.folder_info import describe_folder
from olivelike.errors import UsageError
from olivelike.measure.network_sizes import Case
from olivelike.measure.verify.folder_verification import ComponentVerdict, FolderVerification
from olivelike.measure.verify.model_card import check_card
from olivelike.measure.verify.original import Figures, Sample, Verification
from olivelike.model.records.origin import License, LoraRecord, Origin
from olivelike.model.records.output import ComponentRecord, OutputFile, OutputRecord, StepRecord
from olivelike.model.targets import TargetChoice
from tests.fixtures.little_pipeline import little_pipeline
from tests.fixtures.sample_records import write_output_record

NETWORKS = ("text_encoder", "unet", "vae_decoder")


@pytest.fixture
def folder(tmp_path):
    """An output whose UNet was kept in 8 bits, by its record."""
    for name in NETWORKS:
        shutil.copytree(little_pipeline() / name, tmp_path / "painter" / name)
    return recorded(tmp_path / "painter")


def recorded(folder, source=None, **changes):
    files = {
        path.relative_to(folder).as_posix(): OutputFile(path.stat().st_size, "0" * 64)
        for name in NETWORKS
        for path in (folder / name).iterdir()
    }
    components = {name: ComponentRecord("", passes=(StepRecord("convert"),)) for name in NETWORKS}
    source = source or Origin("hub", "someone/painter", commit="1" * 40)
    said = {"target": TargetChoice("cpu", "fp32"), "source": source, "components": components, "files": files}
    write_output_record(folder, **{**said, **changes})
    return folder


def verified(folder, error=0.013, precision="w8"):
    figures = Figures(error, 1.0, (0,), 0.999, 0, 0)
    sample = Sample(Case(1, 8, 8), 0, {"sample": figures})
    verdicts = tuple(ComponentVerdict(name, Verification(precision, (sample,)), 0.05) for name in NETWORKS[:2])
    return FolderVerification(folder, {}, verdicts, (), None, ())


def front(card):
    return yaml.safe_load(card.split("---")[1])


def test_the_hub_reads_what_it_was_made_of_and_the_table_has_the_figures(folder):
    assert verified(folder).write_card() == folder / "README.md"
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert front(card) == {
        "base_model": "someone/painter",
        "base_model_relation": "quantized",
        "library_name": "onnx",
        "pipeline_tag": "text-to-image",
        "tags": ["onnx", "onnxruntime", "stable-diffusion", "w8", "olivelike"],
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines() if line.startswith("| ")]
    (unet,) = [row for row in rows if row[0] == "unet"]
    assert (unet[1], unet[4:]) == ("convert", ["1.3e-02", "0.05"])
    assert [row[4] for row in rows if row[0] == r"vae\_decoder"] == ["not compared"]


def test_the_hub_s_tag_is_that_of_the_family(folder):
    (folder / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    (folder / "unet" / "config.json").write_text('{"_class_name": "ZImageTransformer2DModel"}')
    verified(folder).write_card()
    assert "z-image" in front((folder / "README.md").read_text(encoding="utf-8"))["tags"]


def test_the_figures_are_renewed_and_what_people_wrote_stays(folder):
    verified(folder).write_card()
    place = folder / "README.md"
    place.write_text(place.read_text().replace("# painter", "# Painter, at night") + "\nMind the owls.\n")
    verified(folder, error=0.2).write_card()
    card = place.read_text(encoding="utf-8")
    assert "2.0e-01, **too far off**" in card
    assert "1.3e-02" not in card
    assert "# Painter, at night" in card
    assert card.endswith("Mind the owls.\n")


@pytest.mark.parametrize("content", [b"# Mine\n", b"\xff\xfe"])
def test_a_card_of_somebody_else_is_refused_before_anything_is_compared(folder, content, cli):
    (folder / "README.md").write_bytes(content)
    with pytest.raises(UsageError, match="--card: .*move it away"):
        check_card(folder)
    done = cli("verify", folder, "--card")
    assert done.status == 2
    assert "README.md" in done.err
    assert (folder / "README.md").read_bytes() == content
    assert cli("verify", folder, "--card", "--component", "unet").status == 2


def test_info_says_that_a_card_is_of_other_files(folder):
    verified(folder).write_card()
    assert not describe_folder(folder).problems
    record = OutputRecord.require(folder)
    files = {**record.files, "unet/model.onnx": replace(record.files["unet/model.onnx"], sha256="1" * 64)}
    recorded(folder, files=files)
    (problem,) = describe_folder(folder).problems
    assert problem == f"README.md has figures of what was here before; olivelike verify {folder} --card"


def test_names_of_strangers_are_text(folder):
    recorded(folder, Origin("hub", "x\n---\nlicense: mit # <script>|"))
    verified(folder, precision="fp32").write_card()
    card = (folder / "README.md").read_text(encoding="utf-8")
    found = front(card.replace("\\n---\\n", "\\n"))
    assert "license" not in found
    assert "base_model_relation" not in found
    assert "<script>" not in card.split("---\n", 2)[2]


def test_a_license_is_that_of_all_parts(folder):
    owls = License("owls", "LICENSE.md", "https://owls.org/license")
    recorded(folder, Origin("folder", "source", license=owls))
    verified(folder).write_card()
    card = (folder / "README.md").read_text(encoding="utf-8")
    said = ("other", "owls", "https://owls.org/license")
    assert tuple(front(card)[key] for key in ("license", "license_name", "license_link")) == said
    assert "base_model" not in front(card)
    assert "| source | source | owls | LICENSE.md |" in card
    (folder / "README.md").unlink()
    recorded(folder, Origin("folder", "source", license=License("mit", "README.md")))
    verified(folder).write_card()
    assert front((folder / "README.md").read_text(encoding="utf-8"))["license"] == "mit"
    (folder / "README.md").unlink()
    lora = LoraRecord(Origin("file", "night.safetensors"), 0.5)
    recorded(folder, Origin("folder", "source", license=owls), loras=(lora,))
    verified(folder).write_card()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "license" not in front(card)
    assert "With it: night.safetensors at 0.5." in card
