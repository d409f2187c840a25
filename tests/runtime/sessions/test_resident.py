"""Pages of files that a session has mapped are given back, and no others."""

from __future__ import annotations

import mmap
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from small_networks import ones, zeros

from olivelike.runtime.sessions import resident
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.resident import MappedFiles, give_back_freed, mapped_files
from olivelike.runtime.sessions.session import take_turn
from olivelike.runtime.sessions.session_settings import SessionSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what is mapped")

BYTES = 8 << 20


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(resident, "_LEAST_BYTES", 0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "weights file").write_bytes(b"a" * BYTES)
    return tmp_path


def map_file(folder, access=mmap.ACCESS_COPY):
    with (folder / "weights file").open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def read_all(*maps):
    return sum(one[place] for one in maps for place in range(0, BYTES, 4096))


def in_memory(folder):
    """Return how many KiB of each mapping of a folder's files are in memory, in the order of their addresses."""
    found, here = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            here = str(folder) in line
        elif here and fields[0] == "Rss:":
            found.append(int(fields[1]))
    return found


def test_what_was_mapped_in_between_is_given_back_and_nothing_else(folder):
    earlier = map_file(folder)
    with mapped_files(folder) as mapped:
        ours = map_file(folder)
        python = map_file(folder, mmap.ACCESS_READ)
        written = map_file(folder)
        written[100] = ord("b")
    later = map_file(folder)
    total = read_all(earlier, ours, python, written, later)
    assert sum(in_memory(folder)) == 5 * BYTES >> 10
    mapped.give_back()
    assert sorted(in_memory(folder)) == [0, *4 * [BYTES >> 10]]
    assert read_all(earlier, ours, python, written, later) == total
    assert written[100] == ord("b")
    give_back_freed()


def test_of_two_that_open_at_once_neither_gives_back(folder):
    inside, go_on = threading.Event(), threading.Event()
    other = []

    def open_another():
        with mapped_files(folder) as mapped:
            other.append((mapped, map_file(folder)))
            inside.set()
            assert go_on.wait(30)

    thread = threading.Thread(target=open_another)
    with mapped_files(folder) as mapped:
        ours = map_file(folder)
        thread.start()
        assert inside.wait(30)
    go_on.set()
    thread.join()
    read_all(ours, other[0][1])
    mapped.give_back()
    other[0][0].give_back()
    assert in_memory(folder) == 2 * [BYTES >> 10]


def test_a_folder_that_is_gone_and_an_error_in_between_are_no_matter(folder):
    with mapped_files(folder / "none") as mapped:
        pass
    mapped.give_back()
    MappedFiles().give_back()
    with pytest.raises(ValueError, match="no model"), mapped_files(folder):
        raise ValueError("no model")
    with mapped_files(folder) as mapped:
        ours = map_file(folder)
    read_all(ours)
    mapped.give_back()
    assert in_memory(folder) == [0]


def test_a_network_gives_back_its_pages_when_another_one_runs(tmp_path):
    """Its weights are behind a DequantizeLinear, so that a session reads them from the file in each run."""
    import onnx
    from onnx import TensorProto, helper

    weight = np.random.default_rng(0).integers(-99, 99, (512, 4096), np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"]), helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4096])],
        [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(np.float32(0.01), "s")],
    )  # fmt: skip
    sessions, found = [], []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        path = tmp_path / name / "model.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location="weights.pb", size_threshold=1000)
        sessions.append(open_session(path, SessionSettings(optimization="basic")))
    x, results = ones(2, 512), [zeros(2, 4096) for _ in range(3)]
    for session, result in zip((*sessions, sessions[0]), results, strict=True):
        session.bind({"x": x}, {"y": result}).run()
        found.append([sum(in_memory(tmp_path / name)) for name in ("one", "other")])
    assert [[bool(one) for one in row] for row in found] == [[True, False], [False, True], [True, False]]
    assert np.array_equal(results[0], results[2])
    assert results[0].any()
    take_turn(sessions[1])
