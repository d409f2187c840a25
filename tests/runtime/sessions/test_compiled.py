"""What engines compile is kept whole, found again, and never trusted further than its list of files."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_networks import noise, write_linear, zeros

from olivelike.runtime.sessions import compiled
from olivelike.runtime.sessions.compiled import clear_compiled, folder_options, open_keeping, size_of_compiled
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

pytest.importorskip("openvino", reason="install olivelike[openvino] to test what it keeps")


@pytest.fixture
def network(tmp_path):
    path = write_linear(tmp_path / "linear")
    old = time.time() - 60
    for file in path.parent.iterdir():
        os.utime(file, (old, old))
    return path


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """Settings that keep what OpenVINO's CPU compiles, as is done for its GPU and NPU."""
    monkeypatch.setattr(compiled, "_device_that_keeps", lambda _: ["a device"])
    monkeypatch.setattr(compiled, "is_kept_by_sessions", lambda _: False)
    monkeypatch.setattr(compiled, "_SETTLED_NS", 0)
    choice = parse_provider("openvino:INFERENCE_PRECISION_HINT=f32")
    return SessionSettings((choice,), intra_threads=1, compiled=tmp_path / "compiled")


def is_right(session):
    given = {"x": noise(2, 3), "shift": noise(4)}
    found = {name: zeros(2, 4) for name in ("y",)}
    session.bind(given, found).run()
    plain = {"y": zeros(2, 4)}
    open_session(session.opened.path, replace(session.opened.settings, compiled=None)).bind(given, plain).run()
    return np.array_equal(found["y"], plain["y"]) and bool(found["y"].any())


def from_cache(session):
    return session._compiled.get_property("LOADED_FROM_CACHE")


def blob(root):
    (found,) = (path for path in root.glob("*/*.blob") if path.parent.name != "tmp")
    return found


def work(root):
    return sorted(path.name for path in (root / "tmp").iterdir())


def test_a_network_is_compiled_once(network, keeping):
    first = open_session(network, keeping)
    assert (from_cache(first), is_right(first)) == (False, True)
    second = open_session(network, keeping)
    assert (from_cache(second), is_right(second)) == (True, True)
    assert blob(keeping.compiled).parent.joinpath("whole.json").is_file()
    del first, second
    gc.collect(1)
    assert work(keeping.compiled) == []


@pytest.mark.parametrize("bytes_left", [0, 100, -1])
def test_a_cut_file_is_compiled_anew(network, keeping, bytes_left, caplog):
    open_session(network, keeping)
    gc.collect(1)
    cut = blob(keeping.compiled)
    content = cut.read_bytes()
    cut.chmod(0o600)
    cut.write_bytes(content[:bytes_left])
    again = open_session(network, keeping)
    assert (from_cache(again), is_right(again)) == (False, True)
    assert from_cache(open_session(network, keeping))
    assert caplog.records == []


def test_another_file_version_or_option_is_another_network(network, keeping, monkeypatch):
    open_session(network, keeping)
    fixed = replace(keeping, dimensions={"rows": 2})
    assert not from_cache(open_session(network, fixed))
    monkeypatch.setattr(compiled, "version", lambda _: "2031.1")
    assert not from_cache(open_session(network, keeping))
    assert len(list(keeping.compiled.glob("*/*.blob"))) == 3
    network.write_bytes(network.read_bytes())
    assert not from_cache(open_session(network, keeping))
    assert len(list(keeping.compiled.glob("*/*.blob"))) == 1  # Those of the former file are gone.


def test_a_network_that_was_just_written_is_not_kept(network, keeping, monkeypatch):
    monkeypatch.setattr(compiled, "_SETTLED_NS", 10**12)
    assert is_right(open_session(network, keeping))
    assert not keeping.compiled.exists()


def test_a_folder_that_cannot_be_written_costs_a_warning(network, keeping, caplog):
    keeping.compiled.write_text("a file")
    assert is_right(open_session(network, keeping))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_can_not_be_used_is_dropped_with_a_warning(network, keeping, caplog):
    from olivelike.errors import SessionError

    open_session(network, keeping)
    gc.collect(1)

    def refusing(settings):
        if "CACHE_DIR" in settings.options:
            raise SessionError("an engine of another version")
        return open_session(network, replace(settings, compiled=None))

    assert is_right(open_keeping(network, keeping, refusing))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert list(keeping.compiled.glob("*/*.blob")) == []


def test_an_engine_that_fills_the_disk_still_opens(network, keeping, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiled, "_link", full)
    session = open_session(network, keeping)
    assert is_right(session)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_processes_that_write_at_once_leave_one_whole_network(network, keeping):
    program = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from olivelike.runtime.sessions import compiled\n"
        "from olivelike.runtime.sessions.open_session import open_session\n"
        "from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider\n"
        "compiled._device_that_keeps = lambda _: ['a device']\n"
        "compiled.is_kept_by_sessions = lambda _: False\n"
        "compiled._SETTLED_NS = 0\n"
        "choice = parse_provider('openvino:INFERENCE_PRECISION_HINT=f32')\n"
        "open_session(Path(sys.argv[1]), SessionSettings((choice,), intra_threads=1, compiled=Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, str(network), str(keeping.compiled)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 2
    assert work(keeping.compiled) == []
    assert from_cache(open_session(network, keeping))


def test_what_a_killed_process_left_is_removed(network, keeping):
    left = keeping.compiled / "tmp" / "1-dead"
    left.mkdir(parents=True)
    left.with_suffix(".lock").touch()
    (left / "half.blob").write_bytes(b"half")
    session = open_session(network, keeping)
    assert is_right(session)
    assert not left.exists()


def test_clearing_leaves_what_a_live_session_uses(network, keeping):
    session = open_session(network, keeping)
    bytes_kept, files = size_of_compiled(keeping.compiled)
    assert bytes_kept > 0
    assert files == 3  # The blob, which two folders have, the list of files, and a lock.
    clear_compiled(keeping.compiled)
    assert is_right(session)
    assert list(keeping.compiled.glob("*/*.blob")) == []
    assert len(list(keeping.compiled.glob("tmp/*/*.blob"))) == 1
    del session
    gc.collect(1)
    assert work(keeping.compiled) == []


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("openvino", {"CACHE_DIR": "kept"}),
        ("openvino_ep", {"cache_dir": "kept"}),
        (
            "tensorrt",
            {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": "kept",
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": "kept",
            },
        ),
        ("tensorrt_rtx", {"nv_runtime_cache_path": "kept"}),
        ("CoreMLExecutionProvider", {"ModelCacheDirectory": "kept"}),
        ("webgpu", {}),
        ("cpu", {}),
    ],
)
def test_each_provider_is_told_of_the_folder_in_its_own_words(provider, options):
    assert folder_options(parse_provider(provider).provider.name, Path("kept")) == options


@pytest.mark.parametrize("asked", ["openvino", "openvino:CACHE_DIR=mine", "cpu"])
def test_nothing_is_kept_on_the_cpu_or_where_the_user_names_a_folder(asked, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = SessionSettings((parse_provider(asked),), intra_threads=1, compiled=tmp_path / "compiled")
    assert is_right(open_session(network, settings))
    assert not (tmp_path / "compiled").exists()
    assert (tmp_path / "mine").is_dir() == ("mine" in asked)
