from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from small_networks import PASSTHROUGH, write_network

from olivelike.errors import SessionError
from olivelike.runtime.sessions import devices
from olivelike.runtime.sessions.devices import Device, find_device, list_devices
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import available_providers, find_provider
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

GPUS = (Device(0, "NVIDIA GeForce RTX 4090"), Device(1, "NVIDIA H100 80GB HBM3"), Device(2, "NVIDIA H100"))
CUDA = find_provider("cuda")


@pytest.mark.parametrize(
    ("asked", "number"), [(None, None), (0, 0), (2, 2), ("4090", 0), ("hbm3", 1), ("nvidia h100", 2)]
)
def test_a_device_is_found_by_number_or_part_of_its_name(asked, number):
    assert find_device(asked, CUDA, GPUS) == number


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (3, "cuda has no device 3; devices: 0 (NVIDIA GeForce RTX 4090), 1 (NVIDIA H100 80GB HBM3), 2 (NVIDIA H100)"),
        ("radeon", "cuda has no device of the name 'radeon'; devices: 0 (NVIDIA GeForce RTX 4090), 1"),
        ("nvidia", "cuda has several devices of the name 'nvidia'; devices: 0"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_a_list(asked, message):
    with pytest.raises(SessionError) as caught:
        find_device(asked, CUDA, GPUS)
    assert message in str(caught.value)


def test_where_devices_cannot_be_listed_a_number_is_taken_and_a_name_refused():
    provider = find_provider("migraphx")
    assert list_devices(provider) == ()
    assert find_device(5, provider) == 5
    with pytest.raises(SessionError, match="can't be listed by name here; give the number"):
        find_device("radeon", provider)


def test_the_cpu_is_one_device(tmp_path):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    assert list_devices(find_provider("cpu")) == (Device(0, "CPU"),)
    open_session(path, SessionSettings(device=0))
    with pytest.raises(SessionError, match=r"cpu has no device 1; devices: 0 \(CPU\)"):
        open_session(path, SessionSettings(device=1))


def openvino(device):
    return SessionSettings((parse_provider("openvino"),), device=device)


@pytest.mark.parametrize("device", [None, 0, "CPU", "AUTO", "AUTO:CPU"])
def test_openvino_takes_its_own_names_of_devices(tmp_path, device):
    session = open_session(write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float")), openvino(device))
    assert session.provider == ("OpenVINO CPU" if device in {None, 0} else f"OpenVINO {device}")


@pytest.mark.parametrize(("device", "message"), [(9, "no device 9"), ("NPU.7", "no device of the name 'NPU.7'")])
def test_a_device_that_openvino_lacks_is_refused_with_a_list(tmp_path, device, message):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    with pytest.raises(SessionError, match=rf"openvino has {message}; devices: 0 \(CPU: "):
        open_session(path, openvino(device))


def test_a_library_that_cuda_lacks_is_named(monkeypatch, capfd):
    monkeypatch.setattr(devices, "list_devices", lambda provider: GPUS)
    if CUDA.name not in available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA")
    try:
        devices.require_nvidia(CUDA)
    except SessionError as error:
        assert "cuda: a library that it needs can't be loaded: lib" in str(error)
    assert capfd.readouterr() == ("", "")


class Driver:
    """What the functions of NVIDIA's driver answer, for one device of 24 GiB."""

    def cuInit(self, flags):  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, handle, number):  # noqa: N802
        return 0 if number == 0 else 101

    def cuDeviceGetName(self, name, size, handle):  # noqa: N802
        name.value = b"A GPU"
        return 0

    def cuDeviceTotalMem_v2(self, found, handle):  # noqa: N802
        found._obj.value = 24 << 30
        return 0


def test_the_memory_of_a_gpu_is_what_its_driver_says(monkeypatch):
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: Driver())
    assert devices.list_devices(CUDA) == (devices.Device(0, "A GPU"),)
    assert devices.total_memory(CUDA, None) == devices.total_memory(CUDA, "a gpu") == 24 << 30
    assert devices.total_memory(find_provider("cpu"), None) is None


@pytest.mark.parametrize(
    ("told", "exactly"),
    [
        (["x86_64", "sse2", "avx2"], False),
        (["x86_64", "sse2", "avx2", "avx_vnni"], True),
        (["AMD64", "Intel64 Family 6"], True),
        (["aarch64", "asimddp"], True),
    ],
)
def test_products_by_rows_are_opened_where_the_processor_adds_them_right(tmp_path, monkeypatch, told, exactly):
    monkeypatch.setattr(devices, "processor", lambda: told)
    assert devices.adds_bytes_exactly() is exactly
    plain = PASSTHROUGH.format(dtype="float")
    open_session(write_network(tmp_path / "plain", plain), SessionSettings())
    path = write_network(tmp_path / "rows", plain.replace("Identity", "com.microsoft.MatMulIntegerToFloat"))
    with pytest.raises(SessionError, match="can't be opened" if exactly else "without VNNI.*int8_rows"):
        open_session(path, SessionSettings())


def test_cuda_without_a_gpu_is_refused_and_not_passed_over(tmp_path):
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    code = (
        "import sys; from pathlib import Path\n"
        "from olivelike.errors import SessionError\n"
        "from olivelike.runtime.sessions.open_session import open_session\n"
        "from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider\n"
        "try: open_session(Path(sys.argv[1]), SessionSettings((parse_provider('cuda'),)))\n"
        "except SessionError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    if "CUDAExecutionProvider is not installed" in result.stdout:
        pytest.skip("this build of ONNX Runtime has no CUDA")
    assert result.stdout.startswith("cuda: no NVIDIA GPU is found")
    assert result.stderr == ""


def test_threads_that_load_the_libraries_of_nvidia_leave_the_output_where_it_was(monkeypatch, capsys):
    """Each in its turn would put back what the other had in its place, and all that is told later be lost."""
    loaded, both = [], threading.Barrier(2)

    def preload():
        loaded.append(threading.current_thread())
        sys.stdout.write("cudnn is not there")
        time.sleep(0.02)

    def load():
        both.wait(10)
        devices.load_nvidia_libraries()

    monkeypatch.setattr("onnxruntime.preload_dlls", preload)
    devices._load_once.cache_clear()
    threads = [threading.Thread(target=load) for _ in range(2)]
    before = sys.stdout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sys.stdout is before
    assert len(loaded) == 1
    assert not capsys.readouterr().out
    devices._load_once.cache_clear()
