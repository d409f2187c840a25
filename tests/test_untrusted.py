"""Files, JSON and text of strangers."""

from __future__ import annotations

import os

import pytest

from olivelike._untrusted import open_file, parse_json, read_bytes, read_settings, terminal_text
from olivelike.errors import SourceError


def test_a_pipe_a_device_a_folder_and_a_long_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "long").write_bytes(bytes(11))
    for name, why in (("pipe", "device, pipe"), ("zero", "device, pipe"), ("long", "11 bytes, and at most 10")):
        with pytest.raises(OSError, match=why):
            read_bytes(tmp_path / name, 10)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(OSError, match="can be no file's"):
        open_file(tmp_path / "a\0b")
    assert read_bytes(tmp_path / "long", 11) == bytes(11)


@pytest.mark.parametrize(
    "text", ["[" * 60 + "]" * 60, "[" * 100_000, "1e999", "NaN", "-Infinity", "9" * 5000, '"\\ud800"', b"\xff", ""]
)
def test_json_is_shallow_finite_and_of_whole_characters(text):
    with pytest.raises(ValueError):
        parse_json(text)
    assert parse_json('"\\ud83c\\udf89"') == "🎉"


def test_a_bound_that_is_none_is_read_where_diffusers_writes_one(tmp_path):
    for text in ("NaN", "Infinity", "[" * 60 + "]" * 60):
        with pytest.raises(ValueError):
            parse_json(text, unbounded=True)
    path = tmp_path / "scheduler_config.json"
    path.write_text('{"lambda_min_clipped": -Infinity}')
    assert read_settings(path, "fetch it", unbounded=True) == {"lambda_min_clipped": float("-inf")}
    with pytest.raises(SourceError, match="-Infinity is no JSON"):
        read_settings(path, "fetch it")


def test_settings_that_are_missing_or_damaged_are_told_with_a_remedy(tmp_path):
    path = tmp_path / "config.json"
    assert read_settings(path, "fetch it", absent={}) == {}
    with pytest.raises(SourceError, match=r"config\.json: no such file.*; fetch it$"):
        read_settings(path, "fetch it")
    for text, why in (("{", "can't be read as JSON: "), ("[]", "it is no JSON object"), ("9" * (9 << 20), "at most")):
        path.write_text(text)
        with pytest.raises(SourceError, match=rf"config\.json: .*{why}.*; fetch it$"):
            read_settings(path, "fetch it", absent={})
    path.write_text('{"one": 1}')
    assert read_settings(path, "fetch it") == {"one": 1}


def test_what_would_steer_a_terminal_is_shown_as_an_escape():
    assert terminal_text("\x1b[31m\x9b\u202e\r\0") == "\\x1b[31m\\x9b\\u202e\\r\\x00"
    assert terminal_text("東京\u3000👩\u200d🚀\n\té") == "東京\u3000👩\u200d🚀\n\té"
