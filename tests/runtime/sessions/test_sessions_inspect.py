"""`olivelike inspect`: what is installed to run a file, and whether it opens."""

from __future__ import annotations

import json

import pytest
from small_networks import CONTRIB, PASSTHROUGH, write_linear, write_network

from olivelike.cli.app import run_command_line
from olivelike.runtime.sessions.providers import installed_offers, onnxruntime_offer

pytest.importorskip("olivelike.cli.commands.inspect", reason="needs all of olivelike")


@pytest.fixture
def inspect(capsys):
    def run(*arguments):
        status = run_command_line(["inspect", *map(str, arguments)])
        return status, capsys.readouterr()

    return run


def test_what_the_installed_runtimes_read_is_listed(inspect, tmp_path):
    status, output = inspect(write_linear(tmp_path / "linear"))
    lines = output.out.splitlines()
    assert status == 0
    assert lines[lines.index("installed here") + 1 :] == [f"  {offer}" for offer in installed_offers()]
    assert f"ONNX Runtime {onnxruntime_offer().version}: opset up to " in output.out


def test_what_a_runtime_cannot_read_is_said(inspect, tmp_path):
    text = PASSTHROUGH.format(dtype="float").replace("17", "99")
    _, output = inspect(write_network(tmp_path / "net", text))
    assert f"    it asks for opset 99, ONNX Runtime {onnxruntime_offer().version} reads up to" in output.out


@pytest.mark.parametrize("provider", ["cpu", "openvino"])
def test_a_file_is_opened_if_asked(inspect, tmp_path, provider):
    status, output = inspect(write_linear(tmp_path / "linear"), "--open", provider)
    name = {"cpu": "CPUExecutionProvider", "openvino": "OpenVINO"}[provider]
    assert status == 0
    assert f"opens on {name} in " in output.out


def test_a_file_is_opened_with_weights_and_operators_from_elsewhere(inspect, tmp_path):
    path, elsewhere = write_linear(tmp_path / "linear"), tmp_path / "elsewhere"
    (path.parent / "weights.pb").rename(elsewhere)
    status, output = inspect(path, "--open", "cpu", "--weights", elsewhere)
    assert status == 0, output.err
    status, output = inspect(path, "--open", "cpu", "--custom-operators", "absent.so")
    assert status == 3
    assert "absent.so: there is no such library of operators" in output.err
    status, output = inspect(path, "--weights", elsewhere)
    assert status == 2
    assert "say how --open opens the file" in output.err


def test_a_file_that_does_not_open_is_reported_and_then_refused(inspect, tmp_path):
    status, output = inspect(write_network(tmp_path / "net", CONTRIB), "--open", "cpu")
    assert status == 3
    assert "com.microsoft: NhwcConv 1" in output.out
    assert "nothing on cpu runs its operators com.microsoft::NhwcConv (1)" in output.err


def test_the_json_has_it_all(inspect, tmp_path):
    status, output = inspect(write_network(tmp_path / "net", CONTRIB), "--open", "cpu", "--json")
    report = json.loads(output.out)
    assert status == 3
    assert [entry["name"] for entry in report["installed"]] == [offer.name for offer in installed_offers()]
    assert report["installed"][0]["problems"] == []
    assert (report["open"]["provider"], report["open"]["seconds"]) == ("CPUExecutionProvider", None)
    assert "nothing on cpu runs" in report["open"]["error"]


def test_an_unknown_provider_is_refused_with_the_nearest_name(inspect, tmp_path):
    status, output = inspect(write_linear(tmp_path / "linear"), "--open", "openvin")
    assert status == 2
    assert "did you mean 'openvino'" in output.err
