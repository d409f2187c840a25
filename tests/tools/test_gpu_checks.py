from __future__ import annotations

import json

import pytest

from tools import gpu_checks


@pytest.mark.parametrize("case", gpu_checks.CASES)
def test_each_case_asks_for_something_else(case):
    for source in gpu_checks.CASES[case]:
        asked = gpu_checks.request_of(source, case)
        assert (asked == gpu_checks.request_of(source, "plain")) == (case in {"plain", "previews", "lora"})


def test_a_check_that_fails_is_told_and_ends_no_other(tmp_path, capsys):
    (tmp_path / "sd-fp16").mkdir()
    checks = gpu_checks.Checks(tmp_path, tmp_path / "out", "cpu", 60, quick=True)
    assert checks.run(["sd", "machine"]) == 1
    found = {row["check"]: row for row in json.loads((tmp_path / "out" / "gpu_checks.json").read_text())}
    assert found["machine"]["ok"]
    assert not found["sd fp16 plain"]["ok"]
    assert "Error: " in found["sd fp16 plain"]["found"]
    assert "| sd fp16 plain | **" in capsys.readouterr().out


def test_the_same_picture_is_as_near_as_can_be(tmp_path):
    from PIL import Image

    white, black = (Image.new("RGB", (4, 4), colour) for colour in ("white", "black"))
    assert (gpu_checks.psnr(white, white), gpu_checks.psnr(white, black)) == (99, 0)
    with pytest.raises(ValueError, match="a picture of"):
        gpu_checks.psnr(white, Image.new("RGB", (2, 2)))
