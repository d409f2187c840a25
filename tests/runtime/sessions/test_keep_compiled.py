"""Networks as they are compiled for the CPU are kept where that is asked for, and are the same to the bit."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_networks import noise, ones, write_linear, zeros

from olivelike.families.networks import interface_of
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.sessions import compiled
from olivelike.runtime.sessions.compiled import clear_compiled, size_of_compiled
from olivelike.runtime.sessions.devices import processor
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.ort_session import OrtSession
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider
from olivelike.serve.drawing.warm import SessionChoice
from tests.fixtures.fusion_networks import short_unet
from tests.fixtures.little_pipeline import little_pipeline


@pytest.fixture
def network(tmp_path):
    return write_linear(tmp_path / "linear")


@pytest.fixture(params=["cpu", "openvino:INFERENCE_PRECISION_HINT=f32"])
def plain(request):
    """Settings that keep nothing."""
    if request.param != "cpu":
        pytest.importorskip("openvino", reason="install olivelike[openvino] to test what is kept of its networks")
    return SessionSettings((parse_provider(request.param),), intra_threads=1)


# Pictures, damage and all else are tested with both.
openvino_is_slow = pytest.mark.parametrize(
    "plain", ["cpu", pytest.param("openvino:INFERENCE_PRECISION_HINT=f32", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def keeping(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_SETTLED_NS", 0)
    return replace(plain, compiled=tmp_path / "compiled", keep_compiled=True)


@pytest.fixture
def is_from_there(monkeypatch):
    """Return what says whether a session reads what was kept."""
    imported = []
    if find_spec("openvino"):
        import openvino

        real = openvino.Core.import_model
        monkeypatch.setattr(openvino.Core, "import_model", lambda *given: imported.append(real(*given)) or imported[-1])

    def ask(session):
        if isinstance(session, OrtSession):
            return "compiled" in session.inference_session._model_path
        return any(session._compiled is one for one in imported)

    return ask


def is_right(session):
    x, found = noise(2, 3), zeros(2, 4)
    session.bind({"x": x, "shift": zeros(4)}, {"y": found}).run()
    plain = zeros(2, 4)
    anew = open_session(session.opened.path, replace(session.opened.settings, keep_compiled=False, compiled=None))
    anew.bind({"x": x, "shift": zeros(4)}, {"y": plain}).run()
    return np.array_equal(found, plain) and bool(found.any())


def network_file(keeping):
    return "model.onnx" if keeping.is_cpu_alone else "network.blob"


def kept(keeping):
    return sorted(path for path in keeping.compiled.iterdir() if path.name != "tmp")


@pytest.mark.parametrize(
    ("kind", "half"), [("sd", False), ("sd", True), pytest.param("xl", False, marks=pytest.mark.slow)]
)
def test_a_picture_is_the_same_to_the_bit(kind, half, plain, keeping, is_from_there, one_torch_thread):
    folder = little_pipeline(kind, half=half)
    asked = Request(("a red circle",), steps=2, seed=3)
    if half and not plain.is_cpu_alone:
        pytest.skip("OpenVINO reads no QuickGelu of float16")
    as_ever = open_pipeline(folder, plain).generate(asked).pictures[0].image.tobytes()
    for _ in range(2):
        pipeline = open_pipeline(folder, keeping)
        assert pipeline.generate(asked).pictures[0].image.tobytes() == as_ever
    assert all(is_from_there(pipeline._networks.get(name).session) for name in pipeline._networks)
    assert len(kept(keeping)) == len(list(pipeline._networks))


@openvino_is_slow
def test_weights_in_blocks_are_the_same_to_the_bit(one_torch_thread, plain, keeping, is_from_there, tmp_path):
    from olivelike.passes.block_weights import Weights8
    from olivelike.passes.fuse import Fuse

    from olivelike.measure.network_sizes import Case, random_inputs
    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model

    original = short_unet()
    short = run_pass(Weights8, run_pass(Fuse, original, target="cpu"), target="cpu", block_size=32)
    (tmp_path / "unet").mkdir()
    materialize_model(short, tmp_path / "unet")
    model = tmp_path / "unet" / "model.onnx"
    config = original.architecture.config
    inputs = random_inputs(interface_of(original.architecture).inputs, Case(1, 8, 12, 9), config, 0)

    def run(session):
        found = zeros(*inputs["sample"].shape)
        session.bind(inputs, {"out_sample": found}).run()
        return found

    as_ever = run(open_session(model, plain))
    assert np.array_equal(run(open_session(model, keeping)), as_ever)
    again = open_session(model, keeping)
    assert is_from_there(again)
    assert np.array_equal(run(again), as_ever)


def test_it_is_kept_where_it_is_asked_for_alone(network, keeping, is_from_there):
    assert not is_from_there(open_session(network, replace(keeping, keep_compiled=False)))
    assert not keeping.compiled.exists()
    assert not is_from_there(open_session(network, keeping))
    again = open_session(network, keeping)
    assert is_from_there(again)
    assert is_right(again)
    assert SessionChoice(keep_compiled=True).settings(None).keep_compiled


def test_swapped_weights_open_the_file(network, keeping, is_from_there):
    open_session(network, keeping)
    assert not is_from_there(open_session(network, keeping, {"weight": ones(3, 4)}))


def test_another_processor_or_version_compiles_anew(network, keeping, monkeypatch, is_from_there):
    open_session(network, keeping)
    monkeypatch.setattr("olivelike.runtime.sessions.devices.processor", lambda: ["of another kind"])
    assert not is_from_there(open_session(network, keeping))
    monkeypatch.setattr("onnxruntime.__version__", "2031.1")
    monkeypatch.setattr(compiled, "version", lambda _: "2031.1")
    assert not is_from_there(open_session(network, keeping))
    assert len(kept(keeping)) == 3


def test_the_processor_is_known_by_what_it_can_do():
    found = processor()
    assert len(found) > 2 or sys.platform != "linux"
    assert found == processor()


def test_what_a_new_file_replaces_is_removed_and_what_is_gone(network, keeping, tmp_path, is_from_there):
    other = tmp_path / "other"
    shutil.copytree(network.parent, other)
    open_session(network, keeping)
    open_session(other / network.name, keeping)
    first = kept(keeping)
    network.write_bytes(network.read_bytes())
    shutil.rmtree(other)
    assert not is_from_there(open_session(network, keeping))
    assert len(kept(keeping)) == 1
    assert not set(kept(keeping)) & set(first)


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_what_is_damaged_is_compiled_anew(damage, network, keeping, caplog, is_from_there):
    open_session(network, keeping)
    gc.collect(1)
    (place,) = kept(keeping)
    file = place / network_file(keeping)
    status, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:100] if damage == "cut" else b"?" * len(content))
    if damage == "garbage":  # As a disk does it: size and times say nothing.
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert is_right(open_session(network, keeping))
    assert is_right(open_session(network, keeping))
    assert is_from_there(open_session(network, keeping))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (damage == "garbage")


def test_a_disk_without_room_is_told_before_anything_is_written(network, keeping, monkeypatch, caplog):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50))
    assert is_right(open_session(network, keeping))
    assert "linear may take" in caplog.text
    assert "50 B are free" in caplog.text
    assert kept(keeping) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_while_it_is_written_costs_a_warning(network, keeping, monkeypatch, caplog):
    real = compiled._Kept.__init__

    def full(self, *arguments):
        real(self, *arguments)
        (self.folder / network_file(keeping)).symlink_to("/dev/full")

    monkeypatch.setattr(compiled._Kept, "__init__", full)
    assert is_right(open_session(network, keeping))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"can't keep {network} there" in caplog.text
    assert kept(keeping) == []


@openvino_is_slow  # What keeps OpenVINO's own cache whole is tested in `test_compiled.py`.
def test_processes_that_compile_at_once_leave_one_whole_network(network, keeping, is_from_there):
    program = (
        "import sys; from pathlib import Path\n"
        "from olivelike.runtime.sessions import compiled\n"
        "from olivelike.runtime.sessions.open_session import open_session\n"
        "from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider\n"
        "compiled._SETTLED_NS = 0\n"
        "choice = (parse_provider(sys.argv[3]),)\n"
        "settings = SessionSettings(choice, intra_threads=1, compiled=Path(sys.argv[2]), keep_compiled=True)\n"
        "open_session(Path(sys.argv[1]), settings)\n"
    )
    asked = "cpu" if keeping.is_cpu_alone else "openvino:INFERENCE_PRECISION_HINT=f32"
    command = [sys.executable, "-c", program, str(network), str(keeping.compiled), asked]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 2
    assert len(kept(keeping)) == 1
    assert is_from_there(open_session(network, keeping))


def test_clearing_leaves_what_a_live_session_reads(network, keeping):
    open_session(network, keeping)
    session = open_session(network, keeping)
    assert size_of_compiled(keeping.compiled)[0] > 0
    clear_compiled(keeping.compiled)
    assert kept(keeping) == []
    assert is_right(session)


def test_a_network_that_was_just_written_is_not_kept(network, keeping, monkeypatch):
    monkeypatch.setattr(compiled, "_SETTLED_NS", 10**12)
    assert is_right(open_session(network, keeping))
    assert not keeping.compiled.exists()
