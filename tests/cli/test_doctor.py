from __future__ import annotations

import json
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from olivelike._installed import installed_version
from olivelike.measure.doctor import diagnosis
from olivelike.measure.doctor.diagnosis import (
    TIMEOUT_SECONDS,
    check_packages,
    check_provider,
    check_wheels,
    listed_providers,
)
from tests.fixtures.little_pipeline import little_pipeline


def test_this_environment_runs_a_node_on_the_cpu(cli, empty_folder):
    result = cli("doctor", "--json")
    found = json.loads(result.out)
    assert result.status == (3 if found["broken"] else 0)
    by_name = {check["name"]: check for check in found["providers"]}
    assert by_name["CPUExecutionProvider"]["status"] == "usable"
    targets = {check["name"]: check for check in found["targets"]}
    assert targets["cpu"]["usable"]
    assert not targets["directml"]["usable"] or sys.platform == "win32"
    assert {folder["purpose"] for folder in found["folders"]} == {"store", "current folder", "Hugging Face cache"}
    assert not (empty_folder / "cache").exists()


def test_the_report_for_people_names_providers_targets_and_folders(cli, empty_folder, monkeypatch):
    monkeypatch.setattr("olivelike.measure.doctor.diagnosis.listed_providers", lambda timeout: ["CPUExecutionProvider"])
    out = cli("doctor").out
    for text in ("CPUExecutionProvider  usable", "runs here", f"{empty_folder / 'cache'} (absent)"):
        assert text in out


def test_a_folder_s_first_step_is_measured_on_what_runs_it(cli, empty_folder, monkeypatch):
    only = ["CPUExecutionProvider"]
    monkeypatch.setattr("olivelike.measure.doctor.diagnosis.listed_providers", lambda timeout: only)
    monkeypatch.setattr("olivelike.measure.doctor.diagnosis.find_spec", lambda name: None)
    measured = cache(diagnosis.measure_starts)  # The second command tells in another form what the first one measured.
    monkeypatch.setattr(diagnosis, "measure_starts", lambda folder, targets: measured(folder, tuple(targets)))
    folder = str(little_pipeline("sd"))
    (start,) = json.loads(cli("doctor", folder, "--json").out)["starts"]
    assert (start["provider"], start["problem"]) == ("cpu", "")
    assert 0 < start["load_seconds"] < start["first_step_seconds"]
    assert 50e6 < start["rest_bytes"] <= start["peak_bytes"] * 1.01  # Systems count both in steps.
    assert "first step after" in cli("doctor", folder).out
    refused = cli("doctor", str(empty_folder / "nothing"))
    assert (refused.status, "no such folder" in refused.err) == (3, True)


def test_an_onnxruntime_that_can_not_be_imported_is_broken(cli, empty_folder, monkeypatch):
    broken = empty_folder / "broken"
    (broken / "onnxruntime").mkdir(parents=True)
    (broken / "onnxruntime" / "__init__.py").write_text("raise ImportError('DLL load failed')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    result = cli("doctor")
    assert result.status == 3
    assert "broken: onnxruntime can't be imported: ImportError: DLL load failed" in result.out


def fake_provider(folder: Path, monkeypatch: pytest.MonkeyPatch, when_asked: str) -> None:
    """Put an `onnxruntime` in front whose session does `when_asked`."""
    package = folder / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os, sys, time\n"
        "class SessionOptions:\n"
        "    def add_session_config_entry(self, *entry): pass\n"
        "def InferenceSession(*arguments, **options):\n" + textwrap.indent(when_asked, "    ")
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


@pytest.mark.parametrize(
    ("when_asked", "detail"),
    [
        ("os.abort()\n", "crashed with signal 6"),
        ("time.sleep(60)\n", "did not answer within 1 s"),
        ("raise RuntimeError('no device')\n", "RuntimeError: no device"),
        ("print('x.so with error: libgpu.so.1: absent', file=sys.stderr); sys.exit(1)\n", "libgpu.so.1: absent"),
        ("raise RuntimeError('x.cc:65 Init() status was ' + 'false. No card')\n", "No card"),
        ("sys.exit(1)\n", "ended without a word"),
    ],
)
def test_a_provider_that_fails_in_any_way_is_unusable(empty_folder, monkeypatch, when_asked, detail):
    fake_provider(empty_folder, monkeypatch, when_asked)
    check = check_provider("SomeExecutionProvider", timeout=1 if "sleep" in when_asked else 60)
    assert (check.status, check.detail) == ("unusable", detail)


def test_a_provider_that_sends_requests_is_not_tried():
    assert check_provider("AzureExecutionProvider").status == "not tried"


def test_a_wrong_provider_is_not_taken_for_the_cpu(monkeypatch):
    assert check_provider("NoSuchExecutionProvider").status == "unusable"


def test_every_listed_provider_is_a_name():
    assert "CPUExecutionProvider" in listed_providers(TIMEOUT_SECONDS)


def test_two_wheels_of_onnxruntime_get_a_warning_with_the_repair():
    (finding,) = check_wheels(["onnxruntime", "onnxruntime-gpu"])
    assert finding.severity == "warning"
    assert "onnxruntime and onnxruntime-gpu are installed together" in finding.message
    assert "pip uninstall -y onnxruntime onnxruntime-gpu; pip install --force-reinstall" in finding.message
    assert not list(check_wheels(["onnxruntime"]))


def test_an_absent_package_is_broken_and_an_untested_one_a_warning(monkeypatch):
    versions = {"peft": None, "typer": "99.0"}
    monkeypatch.setattr(diagnosis, "installed_version", lambda name: versions.get(name, installed_version(name)))
    found = list(check_packages())
    (broken,) = [finding.message for finding in found if finding.severity == "broken"]
    assert broken.startswith("peft is not installed; run: pip install 'peft")
    assert any(finding.message.startswith("typer 99.0 is untested") for finding in found)
