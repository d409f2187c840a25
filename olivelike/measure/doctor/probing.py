"""Which execution providers work: each is tried in a child process, since listed does not mean usable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["usable", "unusable", "not tried"]

TIMEOUT_SECONDS = 60.0
"""The first session of a GPU provider may compile kernels."""

_REMOTE = {"AzureExecutionProvider": "sends requests to a server, runs nothing itself"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REASONS = (r"with error: (.+)", r"EP Error (.+?)(?: when using|$)", r"Failed to create \w+\. (.+)")
"""What ONNX Runtime's log says when a provider can't start, best first."""


@dataclass(frozen=True)
class ProviderCheck:
    """What became of a session with one node on an execution provider."""

    name: str
    status: Status
    detail: str


def listed_providers(timeout: float = TIMEOUT_SECONDS) -> list[str] | str:
    """Return the providers that the installed ONNX Runtime lists, or in words why it can't be asked."""
    answer = _ask([], timeout)
    return answer if isinstance(answer, (list, str)) else "it gave no list of providers"


def check_provider(name: str, timeout: float = TIMEOUT_SECONDS) -> ProviderCheck:
    """Run one node on a provider."""
    if name in _REMOTE:
        return ProviderCheck(name, "not tried", _REMOTE[name])
    answer = _ask([name], timeout)
    if isinstance(answer, str):
        return ProviderCheck(name, "unusable", answer)
    return ProviderCheck(name, "usable", answer["detail"])


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
