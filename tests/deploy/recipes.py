"""The recipes of `deploy/` as values, for the tests that look at them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
CUDA = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text(encoding="utf-8"))
DRAW = yaml.safe_load((DEPLOY / "compose.draw.yaml").read_text(encoding="utf-8"))
KUBERNETES = [(DEPLOY / name).read_text(encoding="utf-8") for name in ("kubernetes.yaml", "kubernetes-run.yaml")]
"""What is applied, and a run on it, which is created each time."""
APPLIED, CREATED = (list(yaml.safe_load_all(text)) for text in KUBERNETES)
MANIFESTS = [*APPLIED, *CREATED]
SERVICES: Mapping[str, Any] = COMPOSE["services"]
INIT = ["tini", "--"]
"""What each command of the image is begun by."""


def instruction(name: str) -> Any:
    """Return the words of an instruction of the Dockerfile that is there once."""
    (words,) = re.findall(rf"^{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return yaml.safe_load(words)


def ours() -> dict[str, Any]:
    """Return the services that are olivelike's own image."""
    return {name: one for name, one in SERVICES.items() if one["image"].startswith("olivelike")}


def service_command(name: str) -> list[str]:
    """Return what a service of the compose file runs, behind `tini`."""
    return _begun([*SERVICES[name].get("entrypoint", instruction("ENTRYPOINT")), *SERVICES[name].get("command", ())])


def of_kind(kind: str) -> list[dict[str, Any]]:
    """Return the manifests of a kind."""
    return [one for one in MANIFESTS if one["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods of the manifests, by the name of their container."""
    (cluster,) = of_kind("DaskCluster")
    specs = [cluster["spec"][part]["spec"] for part in ("scheduler", "worker")]
    specs += [one["spec"]["template"]["spec"] for one in (*of_kind("Job"), *of_kind("Deployment"))]
    return {spec["containers"][0]["name"]: spec for spec in specs}


def container(name: str) -> dict[str, Any]:
    """Return the only container of a pod."""
    (found,) = pods()[name]["containers"]
    return found


def container_command(name: str) -> list[str]:
    """Return what a pod runs, behind `tini`."""
    found = container(name)
    return _begun([*found.get("command", instruction("ENTRYPOINT")), *found.get("args", ())])


def _begun(words: list[str]) -> list[str]:
    assert words[:2] == INIT, words
    return words[2:]
