"""What sessions of both engines do alike."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_networks import OUTER, PASSTHROUGH, noise, ones, weights, write_linear, write_network, zeros

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import ValueSpec, check_dimensions
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

ENGINES = {
    "onnxruntime": SessionSettings(intra_threads=1),
    "openvino": SessionSettings((parse_provider("openvino:INFERENCE_PRECISION_HINT=f32"),), intra_threads=1),
}


@pytest.fixture(params=ENGINES)
def settings(request):
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def linear_path(tmp_path_factory):
    return write_linear(tmp_path_factory.mktemp("sessions") / "linear")


@pytest.fixture(scope="module")
def linear_sessions(linear_path):
    return {name: open_session(linear_path, settings) for name, settings in ENGINES.items()}


@pytest.fixture(params=ENGINES)
def linear(request, linear_sessions):
    return linear_sessions[request.param]


def feeds(rows=2):
    return {"x": noise(rows, 3), "shift": noise(4)}


def expected(given, arrays=None):
    arrays = {**weights(), **(arrays or {})}
    return given["x"] @ arrays["weight"] * arrays["factor"] + given["shift"]


def test_inputs_and_outputs_are_described_as_in_the_file(linear):
    assert list(linear.inputs.values()) == [ValueSpec("x", "float32", ("rows", 3)), ValueSpec("shift", "float32", (4,))]
    assert list(linear.outputs) == ["y", "twice"]
    assert linear.provider in {"CPUExecutionProvider", "OpenVINO CPU"}


def test_a_bound_call_reads_and_writes_in_place_each_time(linear):
    given, y = feeds(), zeros(2, 4)
    call = linear.bind(given, {"y": y}, constant=("shift",))
    call.run()
    np.testing.assert_allclose(y, expected(given), rtol=1e-5, atol=1e-6)
    given["x"][...] = noise(2, 3)
    call.run()
    np.testing.assert_allclose(y, expected(given), rtol=1e-5, atol=1e-6)


def test_buffers_live_as_long_as_the_call(linear):
    y = zeros(2, 4)
    call = linear.bind({"x": ones(2, 3), "shift": ones(4)}, {"y": y})
    _ = [np.full((2, 3), 9.0) for _ in range(50)]
    call.run()
    np.testing.assert_allclose(y, expected({"x": ones(2, 3), "shift": ones(4)}), rtol=1e-5)


def test_calls_of_several_shapes_do_not_disturb_each_other(linear):
    small, large = feeds(1), feeds(5)
    small_y, large_y = zeros(1, 4), zeros(5, 4)
    calls = [linear.bind(small, {"y": small_y}), linear.bind(large, {"y": large_y})]
    for call in (*calls, *calls):
        call.run()
    np.testing.assert_allclose(small_y, expected(small), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(large_y, expected(large), rtol=1e-5, atol=1e-6)


def test_several_outputs_can_be_bound(linear):
    given, y, twice = feeds(), zeros(2, 4), zeros(2, 4)
    linear.bind(given, {"twice": twice, "y": y}).run()
    np.testing.assert_allclose(twice, 2 * y, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("float16", [0.5, -2.0]), ("float", [0.5, -2.0]), ("int32", [3, -4]), ("int64", [3, -4]), ("bool", [True, False])],
)
def test_arrays_of_every_dtype_of_a_pipeline_pass(tmp_path, settings, dtype, values):
    name = {"float": "float32"}.get(dtype, dtype)
    session = open_session(write_network(tmp_path / "net", PASSTHROUGH.format(dtype=dtype)), settings)
    assert session.inputs["x"].dtype == session.outputs["y"].dtype == name
    x = np.array(values, name)
    y = np.zeros_like(x)
    session.bind({"x": x}, {"y": y}).run()
    assert np.array_equal(x, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "input 'x' is not bound; inputs: x, shift"),
        ({"z": zeros(1)}, "has no input 'z'; inputs: x, shift"),
        ({"x": np.zeros((2, 3), np.float16)}, "input 'x' is float32, the array is float16"),
        ({"x": zeros(2, 5)}, r"input 'x' has the shape \(rows, 3\), the array \(2, 5\)"),
        ({"x": zeros(3)}, r"input 'x' has the shape \(rows, 3\), the array \(3,\)"),
        ({"x": zeros(0, 3)}, "is empty"),
        ({"x": zeros(3, 2).T}, "is not contiguous"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(linear, change, message):
    given = {name: tensor for name, tensor in {**feeds(), **change}.items() if tensor is not None}
    with pytest.raises(SessionError, match=f"linear: .*{message}"):
        linear.bind(given, {"y": zeros(2, 4)})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "no output is bound; outputs: y, twice"),
        ({"z": zeros(2, 4)}, "has no output 'z'; outputs: y, twice"),
        ({"y": np.zeros((2, 4))}, "output 'y' is float32, the array is float64"),
        ({"y": zeros(2, 5)}, r"output 'y' has the shape \(rows, 4\)"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(linear, outputs, message):
    with pytest.raises(SessionError, match=message):
        linear.bind(feeds(), outputs)


def test_a_constant_that_is_no_input_is_refused(linear):
    with pytest.raises(SessionError, match="constant input 'z' is not bound"):
        linear.bind(feeds(), {"y": zeros(2, 4)}, constant=("z",))


def test_an_output_of_a_wrong_dynamic_size_is_an_error_as_it_runs(linear):
    call = linear.bind(feeds(2), {"y": zeros(3, 4)})
    with pytest.raises(SessionError, match="linear: .*shape"):
        call.run()


@pytest.mark.parametrize("names", [("weight",), ("factor",), ("weight", "factor")])
def test_initializers_in_data_file_and_model_can_be_exchanged(linear_path, settings, names):
    import onnx

    inside = onnx.load(linear_path, load_external_data=False).graph.initializer
    assert {tensor.name: bool(tensor.external_data) for tensor in inside} == {"weight": True, "factor": False}
    arrays = {name: weights()[name] * -3 for name in names}
    session = open_session(linear_path, settings, arrays)
    given, y = feeds(), zeros(2, 4)
    session.bind(given, {"y": y}).run()
    np.testing.assert_allclose(y, expected(given, arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"wieght": zeros(3, 4)}, "has no initializer 'wieght'; did you mean 'weight'"),
        ({"weight": zeros(4, 3)}, r"is float32 \(3, 4\), the array given for it float32 \(4, 3\)"),
        ({"weight": np.zeros((3, 4), np.float16)}, r"is float32 \(3, 4\), the array given for it float16"),
    ],
)
def test_an_array_that_fits_no_initializer_is_refused(linear_path, settings, arrays, message):
    with pytest.raises(SessionError, match=message):
        open_session(linear_path, settings, arrays)


def test_dimensions_are_fixed_by_name_and_foreign_names_passed_over(linear_path, settings):
    session = open_session(linear_path, replace(settings, dimensions={"rows": 2, "columns": 7}))
    assert session.inputs["x"].dims == (2, 3)
    assert session.outputs["y"].dims == (2, 4)
    given, y = feeds(2), zeros(2, 4)
    session.bind(given, {"y": y}).run()
    np.testing.assert_allclose(y, expected(given), rtol=1e-5, atol=1e-6)
    with pytest.raises(SessionError, match=r"\(2, 3\), the array \(4, 3\)"):
        session.bind(feeds(4), {"y": y})


def test_a_dimension_that_no_network_has_is_refused_with_the_nearest(linear_path):
    check_dimensions({"rows": 2}, [linear_path])
    check_dimensions({}, [Path("nothing is read")])
    with pytest.raises(UsageError, match="no network has a dynamic dimension 'row'; did you mean 'rows'"):
        check_dimensions({"row": 2}, [linear_path])


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_out_of_memory_names_the_shapes(tmp_path, settings):
    import resource

    session = open_session(write_network(tmp_path / "outer", OUTER), settings)
    small = session.bind({"x": ones(10, 1)}, {"y": zeros(10)})
    small.run()
    large = session.bind({"x": ones(30_000, 1)}, {"y": zeros(30_000)})
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), hard))
    try:
        with pytest.raises(SessionError, match=r"outer: out of memory on .* with x \(30000, 1\); ask for a smaller"):
            large.run()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if session.provider == "CPUExecutionProvider":
        small.run()
    else:  # Its calls share memory, which a failure leaves in disorder.
        with pytest.raises(SessionError, match="failed in an earlier run; open the network again"):
            small.run()
