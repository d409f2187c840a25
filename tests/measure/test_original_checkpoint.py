"""The checkpoint that an optimised folder was made of."""

from __future__ import annotations

import pytest

from olivelike.measure.original_checkpoint import OriginalAbsent, recorded_checkpoint
from olivelike.model.records.origin import Origin
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
