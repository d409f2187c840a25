"""What ONNX Runtime is told, and what OpenVINO refuses to be told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
from small_networks import PASSTHROUGH, noise, ones, weights, write_linear, write_network, zeros

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.sessions.devices import device_memory
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.ort_options import provider_list
from olivelike.runtime.sessions.ort_session import OrtSession
from olivelike.runtime.sessions.providers import find_provider
from olivelike.runtime.sessions.resident import MappedFiles
from olivelike.runtime.sessions.session import DeviceArray, Network, put
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider


def settings(*names, **changes):
    return SessionSettings(tuple(parse_provider(name) for name in names), **changes)


def test_the_cpu_comes_last_unless_it_is_named():
    assert [name for name, _ in provider_list(settings("cuda"), None)] == [
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    assert [name for name, _ in provider_list(settings("cpu", "cuda"), None)] == [
        "CPUExecutionProvider",
        "CUDAExecutionProvider",
    ]


def test_device_and_graph_reach_the_providers_that_know_them():
    asked = settings("tensorrt", "cuda", "cpu", cuda_graph=True)
    assert provider_list(asked, 1) == [
        ("TensorrtExecutionProvider", {"device_id": "1", "trt_cuda_graph_enable": "1"}),
        ("CUDAExecutionProvider", {"device_id": "1", "enable_cuda_graph": "1"}),
        ("CPUExecutionProvider", {}),
    ]
    assert provider_list(settings("directml"), 2)[0] == ("DmlExecutionProvider", {"device_id": "2"})
    assert provider_list(settings("webgpu"), 2)[0] == ("WebGpuExecutionProvider", {})


def test_options_that_were_given_win():
    asked = settings("cuda:device_id=3,cudnn_conv_algo_search=HEURISTIC")
    assert provider_list(asked, None)[0][1] == {"device_id": "3", "cudnn_conv_algo_search": "HEURISTIC"}


def test_an_option_for_another_device_than_the_one_that_is_named_is_refused():
    assert provider_list(settings("tensorrt", "cuda:device_id=1"), 1)[1][1] == {"device_id": "1"}
    with pytest.raises(UsageError, match="cuda: device_id=0 is among its options, but the device is 1"):
        provider_list(settings("tensorrt", "cuda:device_id=0"), 1)


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        (settings("cuda", device="4090"), "4090"),
        (settings("cuda:device_id=1"), 1),
        (settings("tensorrt", "cuda:device_id=1"), 1),
        (settings("tensorrt"), None),
    ],
)
def test_the_device_is_that_which_any_of_the_providers_states(asked, device):
    assert asked.asked_device == device


def test_options_of_the_cpu_provider_are_refused_since_it_ignores_them():
    with pytest.raises(UsageError, match="the CPU provider has no options, but arena is set"):
        provider_list(settings("cpu:arena=1"), None)


def test_a_cuda_graph_needs_cuda():
    with pytest.raises(UsageError, match="need the provider cuda or tensorrt, not cpu"):
        provider_list(settings("cpu", cuda_graph=True), None)


@dataclass
class Binding:
    """Takes down what is bound."""

    log: list = field(default_factory=list)

    def bind_input(self, name, device, number, dtype, shape, address):
        self.log.append(("input", name, device, number))

    def bind_output(self, name, device, number, dtype, shape, address):
        self.log.append(("output", name, device, number))


@dataclass
class Memory:
    name: str


@dataclass
class Gpu:
    """A session whose provider keeps all inputs but the last in memory of its own."""

    inner: OrtSession
    binding: Binding

    def __getattr__(self, name):
        return getattr(self.inner._session, name)

    def get_input_memory_infos(self):
        return [Memory("DML"), Memory("Cpu")]

    def io_binding(self):
        return self.binding

    def run_with_iobinding(self, binding, options):
        self.binding.log.append("run")


@pytest.fixture
def gpu(tmp_path):
    """A session as DirectML's, of `x`, kept by the GPU, and `shift`, kept by the CPU."""
    real = open_session(write_linear(tmp_path / "linear"), SessionSettings())
    return Gpu(real, Binding())


FEEDS = {"x": (2, 3), "shift": (4,)}


def bind(gpu, constant=()):
    session = OrtSession("linear", gpu, SessionSettings(), None, MappedFiles())
    inputs = {name: zeros(*shape) for name, shape in FEEDS.items()}
    return session.bind(inputs, {"y": zeros(2, 4)}, constant)


def test_an_input_that_is_copied_as_it_is_bound_is_bound_before_each_run(gpu):
    call = bind(gpu)
    assert gpu.binding.log == [("input", "shift", "cpu", 0), ("output", "y", "cpu", 0)]
    gpu.binding.log.clear()
    call.run()
    call.run()
    assert gpu.binding.log == [("input", "x", "cpu", 0), "run", ("input", "x", "cpu", 0), "run"]


def test_a_constant_input_goes_to_the_device_once(gpu):
    call = bind(gpu, constant=("x",))
    assert gpu.binding.log[:2] == [("input", "x", "cpu", 0), ("input", "shift", "cpu", 0)]
    gpu.binding.log.clear()
    call.run()
    assert gpu.binding.log == ["run"]


def test_arrays_go_to_one_place_of_the_memory_of_cuda_alone():
    assert device_memory(find_provider("cuda"), 1) == ("cuda", 1)
    assert device_memory(find_provider("tensorrt"), None) == ("cuda", 0)
    assert device_memory(find_provider("webgpu"), 1) is None


@dataclass
class Resident:
    """A session whose provider keeps `x` in a memory that arrays are put into by name: here, as CUDA's, the CPU's."""

    inner: OrtSession

    def __getattr__(self, name):
        return getattr(self.inner._session, name)

    def get_input_memory_infos(self):
        return [Memory("Cuda"), Memory("Cpu")]


@pytest.fixture
def resident(tmp_path):
    real = open_session(write_linear(tmp_path / "linear"), SessionSettings())
    return OrtSession("linear", Resident(real), SessionSettings(), ("cpu", 0), MappedFiles())


def product(x, shift=0.0):
    return x @ weights()["weight"] * weights()["factor"] + shift


def test_values_go_to_one_place_on_the_device_and_come_back_with_each_run(resident):
    x, y = noise(2, 3), zeros(2, 4)
    call = resident.bind({"x": x, "shift": zeros(4)}, {"y": y})
    for _ in range(2):
        x[...] = noise(2, 3)
        call.run()
        np.testing.assert_allclose(y, product(x), rtol=1e-5, atol=1e-6)


def test_a_constant_value_goes_to_the_device_as_it_is_bound(resident):
    x, y = ones(2, 3), zeros(2, 4)
    call = resident.bind({"x": x, "shift": zeros(4)}, {"y": y}, constant=("x",))
    x.fill(9)
    call.run()
    np.testing.assert_allclose(y, product(ones(2, 3)), rtol=1e-5)


def test_what_one_network_writes_another_reads_on_the_device(resident):
    network = Network("linear", resident)
    call = network.prepare({"x": (2, 3), "shift": (4,)}, {"y": (2, 4)}, shared=["shift"])
    assert isinstance(call.shared["shift"], DeviceArray)
    assert "shift" not in call.inputs
    call.inputs["x"][...] = ones(2, 3)
    put(call.shared["shift"], np.arange(4))
    call.run()
    np.testing.assert_allclose(call.outputs["y"], product(ones(2, 3), np.arange(4)), rtol=1e-5)
    shared = resident.shared_buffer("float32", (2, 4))
    giver = network.prepare({"x": (2, 3), "shift": (4,)}, {"y": (2, 4)}, into={"y": shared})
    assert giver.outputs == {}
    giver.inputs["x"][...], giver.inputs["shift"][...] = ones(2, 3), 1
    giver.run()
    np.testing.assert_allclose(shared.value.numpy(), product(ones(2, 3), 1), rtol=1e-5)
    held = network.hold(giver, ("x",))
    giver.inputs["x"].fill(0)
    giver.inputs["shift"].fill(2)
    held.run()
    np.testing.assert_allclose(shared.value.numpy(), product(ones(2, 3), 2), rtol=1e-5)


def test_weights_can_come_from_another_file(tmp_path):
    path = write_linear(tmp_path / "a")
    elsewhere = tmp_path / "weights of a"
    shutil.move(tmp_path / "a" / "weights.pb", elsewhere)
    session = open_session(path, SessionSettings(weights=elsewhere))
    y = zeros(1, 4)
    session.bind({"x": ones(1, 3), "shift": zeros(4)}, {"y": y}).run()
    np.testing.assert_allclose(y, [[3, 3.75, 4.5, 5.25]])


def test_a_weights_file_that_is_absent_short_or_not_asked_for_is_refused(tmp_path):
    path = write_linear(tmp_path / "a")
    content = (tmp_path / "a" / "weights.pb").read_bytes()
    short, empty = tmp_path / "short", tmp_path / "empty"
    short.write_bytes(content[:-1])
    empty.touch()
    with pytest.raises(SessionError, match="can't be read as weights: .*No such file"):
        open_session(path, SessionSettings(weights=tmp_path / "absent"))
    with pytest.raises(SessionError, match="can't be read as weights: cannot mmap an empty file"):
        open_session(path, SessionSettings(weights=empty))
    with pytest.raises(SessionError, match=f"has {len(content) - 1} bytes, but .* needs {len(content)}"):
        open_session(path, SessionSettings(weights=short))
    alone = write_network(tmp_path / "alone", PASSTHROUGH.format(dtype="float"))
    with pytest.raises(SessionError, match=r"names 0 of its own \(none\)"):
        open_session(alone, SessionSettings(weights=short))


def test_a_profile_is_written_as_the_session_closes(tmp_path):
    import gc

    path = write_linear(tmp_path / "linear")
    session = open_session(path, SessionSettings(profile=tmp_path / "profiles" / "run"))
    call = session.bind({"x": ones(1, 3), "shift": zeros(4)}, {"y": zeros(1, 4)})
    call.run()
    del session, call
    gc.collect(1)
    (profile,) = (tmp_path / "profiles").iterdir()
    assert profile.name.startswith("run_linear_")
    assert any(event["name"] == "model_run" for event in json.loads(profile.read_text()))


def test_session_options_and_run_options_arrive(tmp_path):
    session = open_session(
        write_linear(tmp_path / "linear"),
        SessionSettings(
            intra_threads=1,
            inter_threads=2,
            optimization="basic",
            written_order=True,
            session_config={"session.set_denormal_as_zero": "1"},
            run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        ),
    )
    options = session._session.get_session_options()
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert "BASIC" in str(options.graph_optimization_level)
    assert "PRIORITY" in str(options.execution_order)
    assert "PARALLEL" in str(options.execution_mode)
    call = session.bind({"x": ones(1, 3), "shift": zeros(4)}, {"y": zeros(1, 4)})
    assert call.run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    call.run()


def test_a_library_of_operators_that_is_not_there_is_refused(tmp_path):
    path = write_linear(tmp_path / "linear")
    for engine in ("cpu", "openvino"):
        with pytest.raises(SessionError, match="absent.so: there is no such library of operators"):
            open_session(path, settings(engine, custom_operators=("absent.so",)))


def test_a_file_that_is_no_library_is_refused(tmp_path):
    path = write_linear(tmp_path / "linear")
    with pytest.raises(SessionError, match="model.onnx: can't be used as a library of operators"):
        open_session(path, settings("cpu", custom_operators=(str(path),)))


def test_a_package_of_operators_is_taken_by_name_or_missed_with_a_hint(tmp_path, monkeypatch):
    from olivelike.runtime.sessions import ort_options

    monkeypatch.setattr(ort_options, "find_spec", lambda name: None)
    with pytest.raises(SessionError, match="pip install onnxruntime-extensions"):
        ort_options.library_path("onnxruntime_extensions")


def test_openvino_refuses_what_onnxruntime_alone_knows(tmp_path):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    asked = settings("openvino", session_config={"a": "1"}, cuda_graph=True, weights=Path("w"))
    with pytest.raises(UsageError, match="^session configuration, CUDA graph, weights file: ONNX Runtime knows this"):
        open_session(path, asked)


def test_openvino_properties_arrive(tmp_path):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    cache = tmp_path / "cache"
    session = open_session(path, settings(f"openvino:CACHE_DIR={cache},INFERENCE_PRECISION_HINT=f32", intra_threads=1))
    assert session._compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert session._compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert any(cache.iterdir())


def test_the_package_openvino_is_needed_for_its_provider(tmp_path, monkeypatch):
    from olivelike.runtime.sessions import providers

    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    with pytest.raises(SessionError, match=r"pip install 'olivelike\[openvino\]'"):
        open_session(path, settings("openvino"))


def test_sessions_on_the_cpu_share_the_memory_of_what_they_compute(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N] x) => (float[1] y) { double = Add(x, x) root = Sqrt(double) y = ReduceSum(root) }"""
    path, x = write_network(tmp_path / "net", text), ones(1 << 24)
    sessions, resident = [], []
    for _ in range(4):
        sessions.append(open_session(path, settings("cpu", intra_threads=1)))
        sessions[-1].bind({"x": x}, {"y": zeros(1)}).run()
        resident.append(psutil.Process().memory_info().rss)
    assert resident[-1] - resident[0] < x.nbytes


def test_an_arena_of_its_own_can_be_asked_for(tmp_path):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    session = open_session(path, settings("cpu", session_config={"session.use_env_allocators": "0"}))
    options = session._session.get_session_options()
    assert options.get_session_config_entry("session.use_env_allocators") == "0"


def test_a_program_may_have_registered_an_allocator_of_its_own(tmp_path):
    """In a process of its own, for the registration is for good."""
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    program = """
import sys
from pathlib import Path
import onnxruntime
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings

kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), None)
print(type(open_session(Path(sys.argv[1]), SessionSettings())).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
