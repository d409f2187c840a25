"""What is asked of the NVIDIA driver, without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from olivelike.errors import SessionError
from olivelike.measure.contest.memory import GpuState, NvidiaDriver, gpu_of
from olivelike.runtime.sessions.devices import Device
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

CUDA = SessionSettings((parse_provider("cuda"),))


class Library:
    """`pynvml` with one GPU that does not tell its clocks."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, number):  # noqa: N802
        return number

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return "GeForce"

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "610.1"

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        raise self.NVMLError("Not Supported")


def test_what_a_gpu_does_not_tell_is_left_out():
    assert NvidiaDriver(Library()).state(0) == GpuState("GeForce", "610.1", None, None)


def test_a_gpu_that_the_driver_does_not_list_has_no_state():
    assert NvidiaDriver(Library()).state(7) is None


@pytest.mark.parametrize(
    ("sessions", "number"),
    [
        (SessionSettings(), None),
        (CUDA, 0),
        (replace(CUDA, device=1), 1),
        (replace(CUDA, device="4090"), 1),
        (SessionSettings((parse_provider("cuda:device_id=1"),)), 1),
    ],
    ids=["cpu", "default", "number", "name", "option"],
)
def test_the_gpu_is_the_one_that_sessions_run_on(sessions, number, monkeypatch):
    devices = (Device(0, "GeForce 3060"), Device(1, "GeForce 4090"))
    monkeypatch.setattr("olivelike.runtime.sessions.devices.list_devices", lambda _: devices)
    assert gpu_of(sessions) == number
    with pytest.raises(SessionError, match="cuda has no device 7"):
        gpu_of(replace(CUDA, device=7))
