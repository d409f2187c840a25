"""`diagnose`: look at packages, providers, memory and disks."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.engine.environment import host, versions
from olivelike.measure.doctor.installed import Finding, check_packages, check_wheels, onnxruntime_wheels
from olivelike.measure.doctor.probing import TIMEOUT_SECONDS, ProviderCheck, check_provider, listed_providers
from olivelike.model.targets import TARGETS

if TYPE_CHECKING:
    from olivelike.model.records.run_record import HostRecord

_CPU = "CPUExecutionProvider"
_OPENVINO = "OpenVINO"
_WHEELS = {
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "DmlExecutionProvider": "onnxruntime-directml, on Windows",
    _OPENVINO: "openvino",
}
"""The distribution that brings a provider."""


@dataclass(frozen=True)
class TargetCheck:
    """Whether a target's result can be run here; it can be made anywhere."""

    name: str
    usable: bool
    detail: str


@dataclass(frozen=True)
class Folder:
    """A place that needs room."""

    purpose: str
    path: str
    exists: bool
    free_bytes: int


@dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    versions: dict[str, str]
    host: HostRecord
    memory_available_bytes: int
    providers: tuple[ProviderCheck, ...]
    targets: tuple[TargetCheck, ...]
    folders: tuple[Folder, ...]
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> bool:
        """Whether something must be repaired before olivelike can work."""
        return any(finding.severity == "broken" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"broken": self.broken, **asdict(self)}


def diagnose(store: Path, timeout: float = TIMEOUT_SECONDS) -> Diagnosis:
    """Look at this machine.

    Args:
        store: The store's folder, which need not exist.
        timeout: Seconds that one provider may take.
    """
    import psutil

    findings = [*check_packages(), *check_wheels(onnxruntime_wheels())]
    listed = listed_providers(timeout)
    if isinstance(listed, str):
        findings.append(Finding("broken", f"onnxruntime can't be imported: {listed}; reinstall it"))
        listed = []
    providers = {name: check_provider(name, timeout) for name in listed}
    if _CPU in providers and providers[_CPU].status != "usable":
        findings.append(Finding("broken", f"onnxruntime can't run on the CPU: {providers[_CPU].detail}"))
    if _has_openvino():
        providers[_OPENVINO] = check_provider(_OPENVINO, timeout)
    return Diagnosis(
        versions=versions(),
        host=host(),
        memory_available_bytes=psutil.virtual_memory().available,
        providers=tuple(providers.values()),
        targets=tuple(_check_target(target.name, target.provider, providers) for target in TARGETS.values()),
        folders=(
            _folder("store", store),
            _folder("current folder", Path.cwd()),
            _folder("Hugging Face cache", _hub_cache()),
        ),
        findings=tuple(findings),
    )


def _check_target(name: str, provider: str, providers: dict[str, ProviderCheck]) -> TargetCheck:
    check = providers.get(provider)
    if check is not None:
        return TargetCheck(name, check.status == "usable", check.detail)
    remedy = f"; install {_WHEELS[provider]}" if provider in _WHEELS else ""
    return TargetCheck(name, usable=False, detail=f"{provider} is not installed{remedy}")


def _folder(purpose: str, path: Path) -> Folder:
    path = path.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    return Folder(purpose, str(path), path.exists(), shutil.disk_usage(existing).free)


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _has_openvino() -> bool:
    from importlib.util import find_spec

    return find_spec("openvino") is not None
