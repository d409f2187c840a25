"""`olivelike bom`: valid CycloneDX, of what the record says, the same for the same folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

pytest.importorskip("cyclonedx")

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from olivelike.model.records.origin import License, LoraRecord, Origin
from olivelike.model.records.output import ComponentRecord, OutputFile, StepRecord
from tests.cli import conftest as commands
from tests.fixtures.sample_records import write_output_record

cli, empty_folder = commands.cli, commands.empty_folder
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def output(empty_folder):
    """An output with two networks, made of a repository, another VAE and a LoRA."""
    folder = empty_folder / "out"
    files = {"unet/model.onnx": b"unet", "vae_decoder/model.onnx": b"vae", "scheduler/scheduler_config.json": b"{}"}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    source = Origin("hub", "someone/painter", commit="1" * 40, license=License("openrail++", "README.md"))
    vae = Origin("file", "vae.safetensors", license=License("mit", "workflow"))
    lora = Origin("file", "night.safetensors")
    made_of = {"unet/diffusion_pytorch_model.safetensors": "2" * 64}
    write_output_record(
        folder,
        workflow="painter",
        source=replace(source, vae=vae),
        loras=(LoraRecord(lora, 0.5),),
        components={
            "unet": ComponentRecord("a" * 64, passes=(StepRecord("convert"), StepRecord("fuse")), made_of=made_of),
            "vae_decoder": ComponentRecord("b" * 64),
        },
        files={name: OutputFile(len(data), digest(data)) for name, data in files.items()},
    )
    return folder


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_it_is_valid_and_says_what_went_into_what(cli, output):
    told = cli("bom", "out")
    assert (told.status, told.err) == (0, "")
    assert "wrote out/bom.cdx.json: 2 networks, 4 files, 3 sources" in told.out
    assert "no file says the licence of night.safetensors" in told.out
    text = (output / "bom.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    by_ref = {one["bom-ref"]: one for one in found["components"]}
    (held,) = by_ref["network:unet"]["components"]
    assert held["hashes"] == [{"alg": "SHA-256", "content": digest(b"unet")}]
    assert by_ref["network:unet"]["type"] == "machine-learning-model"
    assert by_ref["network:unet"]["pedigree"]["notes"] == "convert, fuse"
    assert by_ref["network:unet"]["pedigree"]["ancestors"][0]["hashes"][0]["content"] == "2" * 64
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert needs["output:painter"] == ["network:unet", "network:vae_decoder"]
    assert needs["network:unet"] == ["made-of:0:source", "made-of:2:LoRA"]
    assert needs["network:vae_decoder"] == ["made-of:1:vae"], "no LoRA changes a VAE"
    assert by_ref["made-of:0:source"]["purl"] == f"pkg:huggingface/someone/painter@{'1' * 40}"
    assert by_ref["made-of:0:source"]["licenses"] == [
        {"license": {"acknowledgement": "declared", "name": "openrail++"}}
    ]
    assert by_ref["made-of:1:vae"]["licenses"] == [{"license": {"acknowledgement": "declared", "id": "MIT"}}]
    assert {"name": "olivelike:unknown-licence", "value": "night.safetensors"} in by_ref["made-of:2:LoRA"]["properties"]
    recorded = digest((output / "olivelike.json").read_bytes())
    assert by_ref["file:olivelike.json"]["hashes"][0]["content"] == recorded
    assert [file["name"] for file in found["components"] if file["type"] == "file"] == [
        "olivelike.json",
        "scheduler/scheduler_config.json",
    ]


def test_the_same_folder_gives_the_same_bytes_and_no_path(cli, output):
    assert cli("bom", output).status == 0
    first = (output / "bom.cdx.json").read_bytes()
    assert cli("bom", "out", "--output", "other.json").status == 0
    assert (output.parent / "other.json").read_bytes() == first
    assert str(output.parent).encode() not in first
    moved = output.rename(output.with_name("moved"))
    assert cli("bom", moved).status == 0
    assert (moved / "bom.cdx.json").read_bytes() == first


def test_a_changed_file_and_a_foreign_one_are_refused(cli, output):
    (output / "bom.cdx.json").write_text("{}")
    refused = cli("bom", "out")
    assert (refused.status, "is no bill of materials" in refused.err) == (2, True)
    (output / "bom.cdx.json").unlink()
    (output / "unet/model.onnx").write_bytes(b"UNET")
    refused = cli("bom", "out")
    assert (refused.status, "unet/model.onnx" in refused.err) == (5, True)
    assert not (output / "bom.cdx.json").exists()
    assert cli("bom", "nowhere").status == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"source": Origin("hub", "someone/")},
        {"source": Origin("hub", "a/b", license=License("", "README.md"))},
        {"source": Origin("file", "a.safetensors", sha256="no digest")},
        {"components": {"unet": ComponentRecord("k", made_of={"a": "no digest"})}},
    ],
)
def test_a_record_of_nonsense_is_told(cli, empty_folder, changes):
    write_output_record(empty_folder, **changes)
    refused = cli("bom", ".")
    assert (refused.status, "olivelike.json: names what no bill of materials can: " in refused.err) == (3, True)
    assert not (empty_folder / "bom.cdx.json").exists()


def test_every_source_counts_also_those_of_one_name_and_odd_links_are_left_out(cli, empty_folder):
    twins = tuple(LoraRecord(Origin("file", "a.safetensors"), 1.0) for _ in range(2))
    license = License("mit", "README.md", "https://a\nb")  # noqa: A001  (the field's word)
    networks = {"unet": ComponentRecord("k")}
    write_output_record(empty_folder, source=Origin("hub", "a/b", license=license), loras=twins, components=networks)
    assert "1 file, 3 sources" in cli("bom", ".").out
    text = (empty_folder / "bom.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_info_says_that_it_is_of_what_was_there_before(cli, output):
    assert cli("bom", "out").status == 0
    assert "bom.cdx.json is of what was here before" not in cli("info", "out").out
    record = read(output / "olivelike.json") | {"workflow": "other"}
    (output / "olivelike.json").write_text(json.dumps(record))
    assert "bom.cdx.json is of what was here before, or is damaged; olivelike bom out" in cli("info", "out").out
    (output / "bom.cdx.json").write_bytes(b"noise")
    assert "bom.cdx.json is of what was here before, or is damaged" in cli("info", "out").out
