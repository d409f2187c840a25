"""Whether an output folder still holds what its record says."""

from __future__ import annotations

import os

import pytest
from output_folders import OLD, publish_files

from olivelike.engine.output.output_files import is_current, remember
from olivelike.model.records.output import OutputRecord
from olivelike.store import Store


@pytest.fixture
def output(tmp_path):
    publish_files(tmp_path / "out", OLD)
    return tmp_path / "out"


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "cache")


def current(output, store):
    record = OutputRecord.read(output)
    return is_current(output, record, record.files, store)


def test_an_untouched_folder_is_current(output, store):
    assert current(output, store)


def test_a_touched_file_with_its_content_is_current(output, store):
    assert current(output, store)
    os.utime(output / "unet" / "model.onnx", (1, 1))
    assert current(output, store)


def test_a_changed_file_is_not_current_though_its_size_is_the_same(output, store):
    assert current(output, store)
    (output / "unet" / "model.onnx").write_bytes(OLD["unet/model.onnx"].upper())
    assert not current(output, store)


def test_a_file_that_was_swapped_behind_its_times_is_not_current(output, store):
    file = output / "unet" / "model.onnx"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    assert current(output, store)
    file.write_bytes(OLD["unet/model.onnx"].upper())
    os.utime(file, ns=times)
    assert not current(output, store)


def test_a_missing_file_is_not_current(output, store):
    (output / "unet" / "model.onnx").unlink()
    assert not current(output, store)


def test_a_file_known_to_be_right_is_not_read_again(output, store, monkeypatch):
    from olivelike.engine.output import output_files

    for path, facts in OutputRecord.read(output).files.items():
        remember(output / path, store, facts.sha256)
    monkeypatch.delattr(output_files, "digest_file")
    assert current(output, store)
