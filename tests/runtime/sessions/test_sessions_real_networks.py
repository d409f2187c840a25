"""Sessions on a real export: the text encoder of the tiny checkpoint, lowered for both engines."""

from __future__ import annotations

import numpy as np
import pytest
from small_networks import zeros

from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

pytest.importorskip("openvino")

PROVIDERS = ("cpu", "openvino:INFERENCE_PRECISION_HINT=f32")


@pytest.fixture(scope="module", params=PROVIDERS)
def encoder(request, tiny, tmp_path_factory):
    """Return the file for a provider, and settings for it."""
    from olivelike.passes.fuse import Fuse

    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model

    settings = SessionSettings((parse_provider(request.param),), intra_threads=1)
    fused = run_pass(Fuse, tiny("text_encoder"), target=settings.provider.target)
    folder = tmp_path_factory.mktemp("text_encoder")
    materialize_model(fused, folder)
    return folder / "model.onnx", settings


def run(path, settings, ids, initializers=None):
    session = open_session(path, settings, initializers)
    dims = session.outputs["last_hidden_state"].dims
    out = zeros(*ids.shape, dims[-1])
    session.bind({"input_ids": ids}, {"last_hidden_state": out}).run()
    return out


def reference(proto, ids):
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["last_hidden_state"], {"input_ids": ids})[0]


def test_a_real_network_computes_what_a_bare_session_does(encoder):
    import onnx

    path, settings = encoder
    ids = np.arange(2 * 77, dtype=np.int32).reshape(2, 77) % 90
    np.testing.assert_allclose(run(path, settings, ids), reference(onnx.load(path), ids), atol=1e-4)


def test_weights_in_bfloat16_can_be_exchanged(tiny, tmp_path):
    import onnx
    from olivelike.passes.float16 import Bfloat16
    from olivelike.passes.fuse import Fuse
    from onnx import numpy_helper

    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model

    fused = run_pass(Fuse, tiny("text_encoder"), target="openvino")
    materialize_model(run_pass(Bfloat16, fused, target="openvino"), tmp_path)
    settings = SessionSettings((parse_provider("openvino"),), intra_threads=1)
    path, ids = tmp_path / "model.onnx", np.arange(77, dtype=np.int32).reshape(1, 77) % 90
    proto = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    same = {name: array for name, array in arrays.items() if array.dtype.name == "bfloat16" and array.ndim}
    assert len(same) > 20
    plain = run(path, settings, ids)
    assert (run(path, settings, ids, same) == plain).all()
    doubled = {name: array * array.dtype.type(2) for name, array in same.items()}
    assert not np.allclose(run(path, settings, ids, doubled), plain, atol=1e-2)


def test_all_weights_of_a_real_network_can_be_exchanged(encoder):
    import onnx
    from onnx import numpy_helper

    path, settings = encoder
    ids = np.arange(77, dtype=np.int32).reshape(1, 77) % 90
    proto = onnx.load(path)
    changed = {}
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim:
            changed[tensor.name] = array * np.float32(1.25)
            tensor.CopyFrom(numpy_helper.from_array(changed[tensor.name], tensor.name))
    assert len(changed) > 20
    found = run(path, settings, ids, changed)
    np.testing.assert_allclose(found, reference(proto, ids), atol=1e-4)
    assert not np.allclose(found, run(path, settings, ids), atol=1e-2)
