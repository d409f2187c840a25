"""Weights of 12 bits that we widen are those that ONNX Runtime makes of their operators."""

from __future__ import annotations

import re
import shutil

import numpy as np
import onnxruntime
import pytest

from olivelike.errors import SessionError
from olivelike.families.networks import interface_of
from olivelike.runtime.sessions import folded_weights
from olivelike.runtime.sessions.folded_weights import fold
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings
from tests.fixtures.fusion_networks import short_unet


@pytest.fixture(scope="module", params=[False, True], ids=["float32", "float16"])
def made(request, one_torch_thread, tmp_path_factory):
    """Return the folder of a UNet in 8 and 12 bits, and inputs for it."""
    from olivelike.passes.block_weights import Weights8
    from olivelike.passes.float16 import Float16
    from olivelike.passes.fuse import Fuse

    from olivelike.measure.network_sizes import Case, random_inputs
    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model

    original = short_unet()
    model = run_pass(Fuse, original, target="cpu")
    if request.param:
        model = run_pass(Float16, model, target="cpu")
    short = run_pass(Weights8, model, target="cpu", block_size=32, fine_blocks=["down_blocks", "mid_block"])
    folder = tmp_path_factory.mktemp("made")
    materialize_model(short, folder)
    config = original.architecture.config
    return folder, random_inputs(interface_of(original.architecture).inputs, Case(1, 8, 12, 9), config, 0)


@pytest.fixture
def network(made, tmp_path):
    """Return the model in a folder of the test's own, and inputs for it."""
    folder, inputs = made
    return shutil.copytree(folder, tmp_path / "unet") / "model.onnx", inputs


def plain(path, inputs, given=None):
    """Return what ONNX Runtime computes by itself; `given` are arrays in place of initializers of data files."""
    options = onnxruntime.SessionOptions()
    if given:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in given.values()]
        options.add_external_initializers(list(given), values)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {one.name: np.float16 if "float16" in one.type else None for one in session.get_inputs()}
    feeds = {name: array.astype(kinds[name] or array.dtype) for name, array in inputs.items()}
    return session.run(None, feeds)[0]


def ours(path, inputs, given=None):
    session = open_session(path, SessionSettings(), given)
    tensors = {name: array.astype(session.inputs[name].dtype) for name, array in inputs.items()}
    name = next(iter(session.outputs))
    found = np.zeros(inputs["sample"].shape, session.outputs[name].dtype)
    session.bind(tensors, {name: found}).run()
    return found


def test_outputs_are_the_same_to_the_bit(network):
    import onnx

    path, inputs = network
    folded = fold(path, {})
    floors = sum(node.op_type == "Floor" for node in onnx.load(path, load_external_data=False).graph.node)
    assert len(folded.arrays) == floors > 5
    assert not any(node.op_type == "Floor" for node in onnx.load_from_string(folded.content).graph.node)
    assert np.array_equal(ours(path, inputs), plain(path, inputs))


def test_exchanged_parts_and_others_are_used(network):
    import onnx

    path, inputs = network
    parts = fold(path, {}).parts
    model = onnx.load(path)
    large = {
        one.name for one in onnx.load(path, load_external_data=False).graph.initializer if one.data_location == 1
    }  # fmt: skip
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.name in large}
    lower = next(name for name in parts if name.endswith(".lower"))
    other = next(name for name, array in arrays.items() if name not in parts and array.dtype == np.uint8)
    given = {lower: arrays[lower] ^ 0x5A, other: arrays[other][::-1].copy()}
    found = ours(path, inputs, given)
    assert np.array_equal(found, plain(path, inputs, given))
    assert not np.array_equal(found, ours(path, inputs))


def test_a_small_initializer_is_exchanged_too(network):
    import onnx

    path, inputs = network
    model = onnx.load(path)
    inside = next(
        one for one in onnx.load(path, load_external_data=False).graph.initializer
        if one.name.endswith("conv_out.bias")
    )  # fmt: skip
    array = onnx.numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == inside.name))
    assert not np.array_equal(ours(path, inputs, {inside.name: array + 1}), ours(path, inputs))


@pytest.mark.parametrize("change", ["another number", "read elsewhere", "another type"])
def test_other_operators_are_left_to_onnx_runtime(change, network):
    import onnx

    path, inputs = network
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    floor = next(node for node in graph.node if node.op_type == "Floor")
    if change == "another number":
        unit = next(one for one in graph.initializer if one.data_type == 1 and not one.dims and _number(one) == 1 / 16)
        unit.CopyFrom(onnx.numpy_helper.from_array(np.float32(1 / 8), unit.name))
    elif change == "read elsewhere":
        graph.output.add(name=floor.output[0])
    else:
        lower = next(one for one in graph.initializer if one.name.endswith(".lower"))
        lower.data_type = onnx.TensorProto.INT8
    path.write_bytes(model.SerializeToString())
    before = len(_floors(graph))
    folded = fold(path, {})
    left = before if folded is None else len(_floors(onnx.load_from_string(folded.content).graph))
    assert left == (before if change == "another number" else 1)
    if change == "another type":
        return
    assert np.array_equal(ours(path, inputs), plain(path, inputs))


def _floors(graph):
    return [node for node in graph.node if node.op_type == "Floor"]


def _number(tensor):
    import onnx

    return float(onnx.numpy_helper.to_array(tensor))


def test_a_data_file_that_is_cut_is_named(network):
    path, _ = network
    data = path.with_name("weights.pb")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 8])
    with pytest.raises(SessionError, match=re.escape(f"{data}: is cut short in")):
        open_session(path, SessionSettings())


@pytest.mark.parametrize("rows", [2**62, 2**20, 0, -2])
def test_a_weight_whose_size_is_a_lie_takes_no_memory(rows, network):
    import onnx

    path, _ = network
    model = onnx.load(path, load_external_data=False)
    found = next(folded_weights._weights(model.graph))
    upper, lower, scales = found.upper, found.lower, found.scales
    lower.dims[0], upper.dims[0] = rows // 2, rows
    scales.dims[0] = 1
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SessionError):
        open_session(path, SessionSettings())


def test_a_data_file_that_is_gone_is_named(network):
    path, _ = network
    path.with_name("weights.pb").unlink()
    with pytest.raises(SessionError, match=re.escape(f"{path.with_name('weights.pb')}: can't be read: No such file")):
        open_session(path, SessionSettings())


def test_pieces_of_any_size_are_the_same(network, monkeypatch):
    path, _ = network
    whole = fold(path, {}).arrays
    monkeypatch.setattr(folded_weights, "_PIECE_VALUES", 100)
    assert all(np.array_equal(array, whole[name]) for name, array in fold(path, {}).arrays.items())


@pytest.mark.parametrize("content", [b"", b"no model", b"no model either, with .lower in it"])
def test_what_is_no_model_is_left_to_onnx_runtime(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    assert fold(tmp_path / "model.onnx", {}) is None
    assert fold(tmp_path / "none.onnx", {}) is None
