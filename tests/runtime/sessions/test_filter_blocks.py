"""Filters that we put into blocks are those that ONNX Runtime puts there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from olivelike.errors import SessionError
from olivelike.runtime.sessions import filter_blocks, ort_options
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings


@dataclass(frozen=True)
class Layer:
    """A convolution; `add` names the value that is added to what it gives."""

    inputs: int
    outputs: int
    kernel: int = 3
    group: int = 1
    add: str = ""
    stride: int = 1
    filters: str = ""
    """The name of the filters, if another layer has them too."""


NETWORKS = {
    "unet": [Layer(4, 64), Layer(64, 64, add="h0"), Layer(64, 128, 1), Layer(128, 128, stride=2), Layer(128, 4)],
    "odd channels": [Layer(3, 24), Layer(24, 40), Layer(40, 48), Layer(48, 16), Layer(16, 80, 1), Layer(80, 3)],
    "many channels": [Layer(9, 320), Layer(320, 96, 1), Layer(96, 64), Layer(64, 4, 1)],
    "depthwise": [Layer(3, 32), Layer(32, 32, group=32), Layer(32, 64, 1), Layer(64, 64, group=64, add="h2")],
    "groups": [Layer(4, 64), Layer(64, 64, group=2), Layer(64, 96, group=4), Layer(96, 32, 1)],
    "shared": [Layer(4, 64), Layer(64, 64, filters="f"), Layer(64, 64, filters="f"), Layer(64, 4)],
    "large kernels": [Layer(3, 64, 5), Layer(64, 32, 7), Layer(32, 32, 5)],
}


def filters_of(layers: list[Layer]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(layers))
    shapes = {
        layer.filters or f"f{number}": (layer.outputs, layer.inputs // layer.group, layer.kernel, layer.kernel)
        for number, layer in enumerate(layers)
    }
    return {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}


def write(folder: Path, layers: list[Layer]) -> Path:
    """Write a network whose filters are in a data file."""
    nodes, last = [], "x"
    tensors = [numpy_helper.from_array(array, name) for name, array in filters_of(layers).items()]
    for number, layer in enumerate(layers):
        bias = np.random.default_rng(number).standard_normal(layer.outputs).astype(np.float32)
        tensors.append(numpy_helper.from_array(bias, f"b{number}"))
        made = f"c{number}" if layer.add else f"h{number}"
        reads = [last, layer.filters or f"f{number}", f"b{number}"]
        pads, sizes = [layer.kernel // 2] * 4, [layer.kernel] * 2
        nodes.append(
            helper.make_node(
                "Conv", reads, [made], pads=pads, kernel_shape=sizes, group=layer.group, strides=[layer.stride] * 2
            )
        )
        if layer.add:
            nodes.append(helper.make_node("Add", [made, layer.add], [f"h{number}"]))
        last = f"h{number}"
        if number % 2:
            nodes.append(helper.make_node("Sigmoid", [last], [f"s{number}"]))
            last = f"s{number}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "network",
        [value("x", 1, ["batch", layers[0].inputs, "height", "width"])],
        [value(last, 1, ["batch", layers[-1].outputs, "rows", "columns"])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.pb", size_threshold=2048)
    return folder / "model.onnx"


def drawn(path: Path, arrays: dict[str, np.ndarray] | None = None, **settings: object) -> list[np.ndarray]:
    """Return what a network makes of pictures of two sizes."""
    session = open_session(path, SessionSettings(intra_threads=1, **settings), arrays)
    spec = next(iter(session.inputs.values()))
    rng = np.random.default_rng(5)
    given = [rng.standard_normal((2, spec.dims[1], *size)).astype(np.float32) for size in ((16, 24), (9, 13))]
    return [session.inference_session.run(None, {"x": one})[0] for one in given]


@pytest.fixture
def rewritten(monkeypatch):
    """Have small filters reordered too; what was rewritten is listed."""
    found: list[filter_blocks.RewrittenModel | None] = []
    real = filter_blocks.rewrite

    def noted(*args):
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(filter_blocks, "_LEAST", 0)
    monkeypatch.setattr(ort_options, "rewrite", noted)
    return found


@pytest.fixture
def by_onnxruntime(monkeypatch):
    def draw(path, arrays=None, **settings):
        with monkeypatch.context() as patch:
            patch.setattr(ort_options, "rewrite", lambda *_: None)
            return drawn(path, arrays, **settings)

    return draw


@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_network_computes_is_the_same_to_the_bit(name, tmp_path, rewritten, by_onnxruntime):
    path = write(tmp_path / "network", NETWORKS[name])
    for ours, theirs in zip(drawn(path), by_onnxruntime(path), strict=True):
        assert np.array_equal(ours, theirs)
    assert rewritten[0].filters
    blocks = {order.block for _, order in rewritten[0].filters.values()}
    assert blocks in ({8}, {16})


def test_sizes_that_are_set_are_set_before_it_is_rewritten(tmp_path, rewritten, by_onnxruntime):
    path = write(tmp_path / "network", NETWORKS["unet"])
    session = open_session(path, SessionSettings(dimensions={"batch": 2}))
    assert session.inputs["x"].dims[0] == 2
    assert rewritten[0].filters
    for ours, theirs in zip(
        drawn(path, dimensions={"batch": 2}), by_onnxruntime(path, dimensions={"batch": 2}), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_arrays_in_place_of_filters_and_biases_are_taken(tmp_path, rewritten, by_onnxruntime):
    layers = NETWORKS["many channels"]
    path = write(tmp_path / "network", layers)
    before = drawn(path)
    other = {name: array * 2 for name, array in filters_of(layers).items() if name != "f1"}
    arrays = {**other, "b0": np.ones(320, np.float32)}
    ours, theirs = drawn(path, arrays), by_onnxruntime(path, arrays)
    assert rewritten[-1].filters
    for one, two, plain in zip(ours, theirs, before, strict=True):
        assert np.array_equal(one, two)
        assert not np.array_equal(one, plain)


def test_a_data_file_that_is_cut_is_named(tmp_path, rewritten):
    path = write(tmp_path / "network", NETWORKS["unet"])
    data = path.with_name("weights.pb")
    data.write_bytes(data.read_bytes()[:-40_000])
    with pytest.raises(SessionError, match=r"weights\.pb: is cut short in f3"):
        open_session(path, SessionSettings())
    data.unlink()
    with pytest.raises(SessionError, match=r"weights\.pb is missing"):
        open_session(path, SessionSettings())


@pytest.mark.parametrize("level", ["none", "basic", "extended"])
def test_levels_that_reorder_nothing_open_the_model_itself(level, tmp_path, rewritten):
    open_session(write(tmp_path / "network", NETWORKS["unet"]), SessionSettings(optimization=level))
    assert rewritten == []


def test_filters_outside_the_folder_are_left_to_onnxruntime(tmp_path, rewritten):
    path = write(tmp_path / "network", NETWORKS["unet"])
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.pb"
    path.with_name("weights.pb").rename(tmp_path / "weights.pb")
    onnx.save(model, path)
    with pytest.raises(SessionError):
        open_session(path, SessionSettings())
    assert rewritten == [None]


def test_what_is_made_of_a_filter_is_left_to_onnxruntime(tmp_path, rewritten, by_onnxruntime):
    path = write(tmp_path / "network", NETWORKS["unet"])
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "Conv" and node.input[1] == "f1")
    node.input[1] = "scaled"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(3), "three"))
    model.graph.node.insert(0, helper.make_node("Mul", ["f1", "three"], ["scaled"]))
    onnx.save(model, path, save_as_external_data=True, location="others.pb", size_threshold=2048)
    for ours, theirs in zip(drawn(path), by_onnxruntime(path), strict=True):
        assert np.array_equal(ours, theirs)
    assert "f1" not in {one.tensor.name for one, _ in rewritten[0].filters.values()}
