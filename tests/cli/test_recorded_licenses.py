"""Licences from a source's card to the record, `info` and warnings."""

from __future__ import annotations

import json
from dataclasses import replace

from olivelike.engine.output.license_notes import passing_on, unknown_licenses
from olivelike.model.records.origin import License, LoraRecord, Origin
from olivelike.model.records.output import OutputRecord
from tests.fixtures.sample_records import write_output_record

DEV = "flux-1-dev-non-commercial-license"


def test_a_run_records_the_licence_and_renews_the_record_alone(cli, project):
    output = project / "models" / "little"
    assert "source: unknown" in cli("info", output).out
    (project / "checkpoint" / "README.md").write_text("---\nlicense: openrail++\n---\n")
    before = (output / "text_encoder" / "model.onnx").stat()
    assert cli("run", "workflows/little.yaml").status == 0
    record = OutputRecord.require(output)
    assert record.source.license == License("openrail++", "README.md")
    assert (output / "text_encoder" / "model.onnx").stat().st_mtime_ns == before.st_mtime_ns
    assert "source: openrail++ (README.md says it)" in cli("info", output).out
    written = (output / "olivelike.json").stat().st_mtime_ns
    assert cli("run", "workflows/little.yaml").status == 0
    assert (output / "olivelike.json").stat().st_mtime_ns == written


def test_a_workflow_that_says_another_licence_than_the_files_is_told_once(cli, project):
    (project / "checkpoint" / "README.md").write_text(f"---\nlicense: other\nlicense_name: {DEV}\n---\n")
    stated = ("--set", "source={path: ./checkpoint, license: Owls Ltd 5}")
    found = cli("run", "workflows/little.yaml", *stated)
    assert (found.status, found.err.count(f"its files say that it is under {DEV}")) == (0, 1)
    record = OutputRecord.require(project / "models" / "little")
    assert record.source.license == License("Owls Ltd 5", "workflow", otherwise=DEV)


def test_convert_states_it(cli, project):
    found = cli("convert", "checkpoint", "-t", "cpu", "-o", "models/new", "--license", "Owls Ltd 5", "--dry-run")
    assert 'license: "Owls Ltd 5"' in found.out, found.err


def test_layouts_that_are_for_others_name_what_a_licence_forbids(cli, project):
    (project / "checkpoint" / "README.md").write_text(f"---\nlicense: other\nlicense_name: {DEV}\n---\n")
    for layout, times in (("diffusers", 0), ("ortpackage", 1)):
        found = cli("plan", "workflows/little.yaml", "--set", f"layout={layout}")
        said = (found.out + found.err).replace("\n", " ")
        assert said.count(f"is under {DEV}: it allows no commercial use") == times, found


def test_each_licence_is_told_once_and_what_is_not_known_is_not_judged():
    rail = License("creativeml-openrail-m", "README.md")
    one, two = Origin("hub", "a/one", license=rail), Origin("file", "two.safetensors", license=rail)
    free = [Origin("file", name, license=License(name, "license")) for name in ("mit", "Mine")]
    none = Origin("file", "three.safetensors")
    (told,) = passing_on([one, two, *free, none], "--sign")
    assert told.startswith("--sign is for others to use, and a/one, two.safetensors are under creativeml-openrail-m: ")
    assert "forbids some uses" in told
    assert unknown_licenses([one, none, none]) == ["three.safetensors"]
    changed = replace(one, license=License("cc-by-nd-4.0", "README.md"))
    (told,) = passing_on([changed], "--sign")
    assert told.endswith("it forbids passing changed weights on")


def test_info_names_the_licence_of_each_part(cli, empty_folder):
    source = replace(Origin("hub", "a/one", license=License("mit", "README.md")), vae=Origin("file", "vae.safetensors"))
    lora = Origin("file", "night.safetensors", license=License("openrail++", "modelspec.license"))
    write_output_record(empty_folder, source=source, loras=(LoraRecord(lora, 1.0),))
    assert json.loads(cli("info", ".", "--json").out)["licences"] == [
        "source: mit (README.md says it)",
        "vae vae: unknown",
        "LoRA night: openrail++ (modelspec.license says it)",
    ]
