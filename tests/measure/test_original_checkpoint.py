"""The checkpoint that an optimised folder was made of."""

from __future__ import annotations

import pytest

from olivelike.errors import UsageError
from olivelike.measure.original_checkpoint import OriginalAbsent, recorded_checkpoint
from olivelike.measure.verify.folder_original import spec_of
from olivelike.model.records.origin import Origin
from olivelike.model.records.output import OutputRecord
from tests.fixtures.sample_records import write_output_record


def test_the_original_is_looked_for_near_the_folder(tmp_path):
    folder = tmp_path / "models" / "painter"
    folder.mkdir(parents=True)
    write_output_record(folder, source=Origin("folder", "checkpoint"))
    with pytest.raises(OriginalAbsent, match="made of 'checkpoint', which is neither near it nor here"):
        recorded_checkpoint(folder)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model_index.json").write_text("{}")
    assert recorded_checkpoint(folder).place == str(tmp_path / "checkpoint")
    (folder / "unet").mkdir()
    (folder / "unet" / "config.json").write_text('{"block_out_channels": [320, 640]}')
    with pytest.raises(OriginalAbsent, match="made of 'checkpoint'"):
        recorded_checkpoint(folder)
    write_output_record(folder, source=Origin("hub", "some/painter", commit="abc"))
    found = recorded_checkpoint(folder)
    assert (found.place, found.revision) == ("some/painter", "abc")


def test_what_lies_in_the_project_of_the_output_is_found_from_any_folder(tmp_path, monkeypatch):
    files = {name: tmp_path / "files" / f"{name}.safetensors" for name in ("klein", "qwen3", "vae")}
    folder = tmp_path / "models" / "klein"
    folder.mkdir(parents=True)
    (tmp_path / "files").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for path in files.values():
        path.touch()
    klein, qwen3, vae = (Origin.local("file", path) for path in files.values())
    made_of = Origin("file", klein.name, klein.path, vae=vae, parts={"text_encoder": qwen3})
    write_output_record(folder, source=made_of.published(folder, tmp_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert recorded_checkpoint(folder).place == str(files["klein"])
    spec = spec_of(folder, OutputRecord.require(folder), None, None)
    assert (spec.path, spec.parts, spec.vae.path) == (files["klein"], {"text_encoder": files["qwen3"]}, files["vae"])
    files["qwen3"].unlink()
    with pytest.raises(UsageError, match="place it does not know; name it with --against transformer=FILE,text_enco"):
        spec_of(folder, OutputRecord.require(folder), None, None)


@pytest.mark.parametrize("name", ["/etc/passwd", "../" * 30 + "etc/passwd", "x" * 5_000, ".."])
def test_a_record_does_not_lead_to_files_elsewhere(tmp_path, name):
    write_output_record(tmp_path, source=Origin("file", name))
    with pytest.raises(OriginalAbsent, match="name it with --checkpoint"):
        recorded_checkpoint(tmp_path)
