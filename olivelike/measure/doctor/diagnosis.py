"""`diagnose`: look at packages, providers, memory and disks.

Each provider is tried in a child process, since listed does not mean usable.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from olivelike._installed import installed_version, packages_distributions
from olivelike.engine.run_result import host, versions
from olivelike.errors import PluginError
from olivelike.measure.doctor.starts import Start, measure_starts
from olivelike.model.plugin_targets import find_plugin_target, target_names
from olivelike.model.targets import TARGETS
from olivelike.runtime.sessions.providers import find_provider

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from olivelike._untrusted import Json
    from olivelike.model.records.run_record import HostRecord


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do."""

    severity: Literal["broken", "warning"]
    message: str


def check_packages() -> Iterator[Finding]:
    """Yield required packages that are absent, or of an untested version."""
    for requirement in _requirements():
        found = installed_version(requirement.name)
        if found is None:
            # Another wheel of ONNX Runtime may do: that is for the providers to show.
            if not (requirement.name.startswith("onnxruntime") and onnxruntime_wheels()):
                wanted = _plain(requirement)
                yield Finding("broken", f"{requirement.name} is not installed; run: pip install '{wanted}'")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wanted = f"tested are {requirement.specifier}; run: pip install '{_plain(requirement)}'"
            yield Finding("warning", f"{requirement.name} {found} is untested, {wanted}")


def check_wheels(wheels: list[str]) -> Iterator[Finding]:
    """Yield a warning if several wheels of ONNX Runtime are installed, which overwrite each other's files."""
    if len(wheels) < 2:
        return
    wanted = [_plain(r) for r in _requirements() if r.name.startswith("onnxruntime")] or wheels[:1]
    yield Finding(
        "warning",
        f"{' and '.join(wheels)} are installed together and overwrite each other's files; "
        f"run: pip uninstall -y {' '.join(wheels)}; pip install --force-reinstall --no-deps '{wanted[0]}'",
    )


def onnxruntime_wheels() -> list[str]:
    """Return the names of the installed distributions that bring a module `onnxruntime`."""
    return sorted(set(packages_distributions().get("onnxruntime", ())))


def _requirements() -> Iterator[Requirement]:
    """Yield what olivelike requires on this platform, extras left out."""
    from packaging.requirements import Requirement

    for text in requires("olivelike") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


Status = Literal["usable", "unusable", "not tried"]

TIMEOUT_SECONDS = 60.0
"""The first session of a GPU provider may compile kernels."""

_REMOTE = {"AzureExecutionProvider": "sends requests to a server, runs nothing itself"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REASONS = (r"with error: (.+)", r"was false\. (.+)", r"Failed to create \w+\. (.+)")
"""Patterns for the reason in ONNX Runtime's log why a provider can't start, best first."""


@dataclass(frozen=True)
class ProviderCheck:
    """Outcome of a session with one node on an execution provider."""

    name: str
    status: Status
    detail: str


def listed_providers(timeout: float = TIMEOUT_SECONDS) -> list[str] | str:
    """Return the providers that ONNX Runtime lists here, plugins included, or in words why it can't be asked."""
    answer = _ask([], timeout)
    return answer if isinstance(answer, (list, str)) else "it gave no list of providers"


def check_provider(name: str, timeout: float = TIMEOUT_SECONDS) -> ProviderCheck:
    """Run one node on a provider."""
    if name in _REMOTE:
        return ProviderCheck(name, "not tried", _REMOTE[name])
    answer = _ask([name], timeout)
    if isinstance(answer, str):
        return ProviderCheck(name, "unusable", answer)
    return ProviderCheck(answer["name"], answer["status"], answer["detail"])


def _ask(arguments: list[str], timeout: float) -> Any:
    """Return a probe's answer, or in words what went wrong."""
    command = [sys.executable, "-P", "-m", "olivelike.measure.doctor.probe", *arguments]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=timeout, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {timeout:.0f} s"
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode < 0:
        return f"crashed with signal {-done.returncode}"
    return _reason(done.stderr)


def _reason(log: str) -> str:
    """Return why a provider failed, from what its process logged."""
    log = _COLOURS.sub("", log)
    for pattern in _REASONS:
        found = re.search(pattern, log, re.MULTILINE)
        if found:
            return found[1].strip()
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "ended without a word"


_CPU = "CPUExecutionProvider"
_OPENVINO = "OpenVINO"


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
    """Findings on the machine."""

    versions: dict[str, str]
    host: HostRecord
    memory_available_bytes: int
    providers: tuple[ProviderCheck, ...]
    targets: tuple[TargetCheck, ...]
    folders: tuple[Folder, ...]
    findings: tuple[Finding, ...]
    starts: tuple[Start, ...] = ()
    """Starts of an optimised folder, if one was named."""

    @property
    def broken(self) -> bool:
        """Whether something must be repaired before olivelike can work."""
        return any(finding.severity == "broken" for finding in self.findings)

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        return {"broken": self.broken, **asdict(self)}


def diagnose(store: str | Path, timeout: float = TIMEOUT_SECONDS, optimised: str | Path | None = None) -> Diagnosis:
    """Look at this machine.

    Args:
        store: The store's folder, which need not exist.
        timeout: Seconds that one provider may take.
        optimised: An optimised folder, with which each provider that works draws a picture of one step.

    Raises:
        SourceError: if it is no optimised folder.
    """
    store = Path(store)
    import psutil
    from huggingface_hub import constants

    findings = [*check_packages(), *check_wheels(onnxruntime_wheels())]
    listed = listed_providers(timeout)
    if isinstance(listed, str):
        findings.append(Finding("broken", f"onnxruntime can't be imported: {listed}; reinstall it"))
        listed = []
    checks = [check_provider(name, timeout) for name in listed]
    providers = {check.name: check for check in checks}
    if _CPU in providers and providers[_CPU].status != "usable":
        findings.append(Finding("broken", f"onnxruntime can't run on the CPU: {providers[_CPU].detail}"))
    if find_spec("openvino") is not None:
        providers[_OPENVINO] = check_provider(_OPENVINO, timeout)
    targets = [_check_target(target.name, target.provider, providers) for target in TARGETS.values()]
    names: list[str] = []
    try:
        names = [name for name in target_names() if name not in TARGETS]
    except PluginError as error:
        findings.append(Finding("broken", str(error)))
    for name in names:
        try:
            if (offered := find_plugin_target(name)) is not None:
                targets.append(_check_target(name, offered.target.provider, providers, offered.package))
        except PluginError as error:
            findings.append(Finding("broken", str(error)))
    usable = [target.name for target in targets if target.usable]
    return Diagnosis(
        versions=versions(),
        host=host(),
        memory_available_bytes=psutil.virtual_memory().available,
        providers=tuple(providers.values()),
        targets=tuple(targets),
        folders=(
            _folder("store", store),
            _folder("current folder", Path.cwd()),
            _folder("Hugging Face cache", Path(constants.HF_HUB_CACHE)),
        ),
        findings=tuple(findings),
        starts=() if optimised is None else measure_starts(Path(optimised), usable),
    )


def _check_target(name: str, provider: str, providers: dict[str, ProviderCheck], package: str = "") -> TargetCheck:
    check = providers.get(provider)
    if check is not None:
        return TargetCheck(name, check.status == "usable", check.detail)
    brought_by = package or find_provider(provider).package
    return TargetCheck(name, usable=False, detail=f"{provider} is not installed; install {brought_by}")


def _folder(purpose: str, path: Path) -> Folder:
    path = path.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    return Folder(purpose, str(path), path.exists(), shutil.disk_usage(existing).free)
