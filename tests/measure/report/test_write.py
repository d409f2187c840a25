from __future__ import annotations

import json

import pytest

from olivelike.measure.report import REPORT_FILE, write_report
from olivelike.measure.report.page import PROFILE_FILE
from olivelike.model.records.run_record import RunRecord
from tests.measure.report.example_run import PROFILE


def test_a_report_lies_beside_the_logs_of_its_run_and_nothing_else_is_left(record, tmp_path):
    path = write_report(RunRecord.from_json(record), tmp_path)
    assert path == tmp_path / REPORT_FILE
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == [REPORT_FILE]


def test_a_profile_beside_it_is_in_the_report_and_a_damaged_one_is_not(record, tmp_path):
    (tmp_path / PROFILE_FILE).write_text(json.dumps({**PROFILE, "runtime": "ORT 9"}))
    assert "ORT 9" in write_report(RunRecord.from_json(record), tmp_path).read_text(encoding="utf-8")
    (tmp_path / PROFILE_FILE).write_text("{")
    assert "Placement" not in write_report(RunRecord.from_json(record), tmp_path).read_text(encoding="utf-8")


def test_a_report_that_can_not_be_written_leaves_the_earlier_one(record, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    with pytest.raises(OSError):
        write_report(RunRecord.from_json(record), tmp_path, taken)
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]
