"""What a network in OpenVINO holds in memory: its own copy of weights, and values inside the network that ran last."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_networks import noise, zeros

from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.openvino_session import OpenVinoSession
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

openvino = pytest.importorskip("openvino", reason="install olivelike[openvino] to test its memory")

SIZE = 1024
FLOAT32 = SessionSettings((parse_provider("openvino:INFERENCE_PRECISION_HINT=f32"),), intra_threads=1)
TYPES = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}


def write_product(folder: Path, dtype: str) -> Path:
    """Write a product of float32 rows and weights of 4 MB or 2, which lie in a data file."""
    folder.mkdir()
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32) / 32
    helper = onnx.helper
    raw = weight.astype(helper.tensor_dtype_to_np_dtype(TYPES[dtype])).tobytes()
    tensor = helper.make_tensor("weight", TYPES[dtype], weight.shape, raw, raw=True)
    nodes = [helper.make_node("Cast", ["weight"], ["wide"], to=1), helper.make_node("MatMul", ["x", "wide"], ["y"])]
    if dtype == "float32":
        nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, ["rows", SIZE]) for name in "xy"]
    graph = helper.make_graph(nodes, "product", values[:1], values[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.pb", size_threshold=0)
    return folder / "model.onnx"


def bound(session, rows=2):
    given, found = noise(rows, SIZE), zeros(rows, SIZE)
    return session.bind({"x": given}, {"y": found}), given, found


def resident_kilobytes(path: Path) -> list[int]:
    """Return how much of each mapping of a file is in this process's memory."""
    lines, found = Path("/proc/self/smaps").read_text().splitlines(), []
    for number, line in enumerate(lines):
        if line.endswith(str(path)):
            sizes = (other for other in lines[number:] if other.startswith("Rss:"))
            found.append(int(next(sizes).split()[1]))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", TYPES)
def test_pages_of_weights_are_given_back_after_the_first_run(tmp_path, dtype):
    path = write_product(tmp_path / "net", dtype)
    session = open_session(path, FLOAT32)
    call, _, _ = bound(session)
    call.run()
    resident = resident_kilobytes(path.with_name("weights.pb"))
    assert resident
    assert set(resident) == {0}


@pytest.mark.parametrize("dtype", TYPES)
def test_mapped_weights_give_the_bits_that_openvino_gives_by_itself(tmp_path, dtype):
    path = write_product(tmp_path / "net", dtype)
    session = open_session(path, FLOAT32)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    core = openvino.Core()
    alone = core.compile_model(core.read_model(path), "CPU", properties)
    for rows in (2, 3, 300):  # A new size reads the pages again.
        call, given, found = bound(session, rows)
        call.run()
        assert np.array_equal(found, alone(given)[0])


def test_weights_in_other_folders_are_left_to_openvino(tmp_path):
    path = write_product(tmp_path / "net", "float32")
    model = onnx.load(path, load_external_data=False)
    (tmp_path / "net" / "inner").mkdir()
    path.with_name("weights.pb").rename(tmp_path / "net" / "inner" / "weights.pb")
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "inner/weights.pb"
    onnx.save(model, path)
    session = open_session(path, FLOAT32)
    call, _, found = bound(session)
    call.run()
    assert session.weights._files == {}
    assert found.any()


def test_a_network_frees_its_values_when_another_one_runs(tmp_path, monkeypatch):
    sessions = [open_session(write_product(tmp_path / name, "float32"), FLOAT32) for name in "ab"]
    freed = []
    release = OpenVinoSession.release
    monkeypatch.setattr(OpenVinoSession, "release", lambda self: freed.append(self.network) or release(self))
    calls = [bound(session) for session in sessions]
    answers = [[], []]
    for network in (0, 0, 1, 0, 1):
        call, _, found = calls[network]
        found.fill(0)
        call.run()
        answers[network].append(found.copy())
    assert freed[-3:] == ["a", "b", "a"]
    assert freed.count("a") == 2
    assert all(np.array_equal(answer, same[0]) and answer.any() for same in answers for answer in same)


def test_a_network_that_another_thread_runs_keeps_its_values(tmp_path):
    class Busy:
        def release_memory(self):
            raise RuntimeError("a compiled model in a busy state")

    session = open_session(write_product(tmp_path / "net", "float32"), FLOAT32)
    session._compiled = Busy()
    session.release()


@pytest.mark.parametrize("name", ["sample", "attention_mask"])
def test_a_network_with_a_mask_keeps_its_values_which_openvino_would_free_and_write_to(tmp_path, name):
    freed = []

    class Compiled:
        def release_memory(self):
            freed.append(name)

    session = open_session(write_product(tmp_path / "net", "float32"), FLOAT32)
    session._compiled, session.inputs = Compiled(), {name: None}
    session.release()
    assert freed == [one for one in [name] if one != "attention_mask"]
