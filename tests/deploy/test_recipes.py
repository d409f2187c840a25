"""What `deploy/` says is what the code does: commands, options, variables, extras, ports, paths."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
SERVICES: dict[str, Any] = COMPOSE["services"]
THEIRS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"}
"""Variables that other programs read."""


def words(service: dict[str, Any]) -> list[str]:
    """Return what a service of the compose file runs."""
    return [*service.get("entrypoint", ["olivelike"]), *service.get("command", ())]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods of the manifests, by the name of their container."""
    found = {}
    for one in MANIFESTS:
        spec = one.get("spec", {})
        for pod in (
            spec.get("template", {}).get("spec"),
            *(spec.get(x, {}).get("spec") for x in ("worker", "scheduler")),
        ):
            if pod:
                found[pod["containers"][0]["name"]] = pod
    return found


def commands() -> list[list[str]]:
    """Return each command line that the recipes run."""
    composed = [words(service) for name, service in SERVICES.items() if name not in ("store", "bucket")]
    containers = [pod["containers"][0] for pod in pods().values()]
    return composed + [[*one.get("command", ["olivelike"]), *one.get("args", ())] for one in containers]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_each_command_is_one_of_the_program(command, cli_help):
    program, name, *arguments = command
    assert program in ("olivelike", "dask")
    known = cli_help(program, name)
    options = [one.partition("=")[0] for one in arguments if one.startswith("--")]
    assert [one for one in options if one not in known] == []


@pytest.fixture(scope="module")
def cli_help():
    """Return the help of a command of `olivelike` or `dask`."""
    known: dict[tuple[str, str], str] = {}

    def ask(program: str, name: str) -> str:
        if (program, name) not in known:
            module = {"olivelike": "olivelike", "dask": "dask"}[program]
            shown = subprocess.run(
                [sys.executable, "-m", module, name, "--help"],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "COLUMNS": "200", "PYTHONWARNINGS": "ignore"},
            )
            known[program, name] = shown.stdout
        return known[program, name]

    return ask


def test_every_variable_is_read_by_somebody():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "olivelike").rglob("*.py"))
    (config,) = [one["data"] for one in MANIFESTS if one["kind"] == "ConfigMap"]
    named = {*config, *re.findall(r"(OLIVELIKE_\w+)", DOCKERFILE)}
    for service in SERVICES.values():
        named |= set(service.get("environment", {}))
    assert {name for name in named - THEIRS if f'"{name}"' not in code} == set()


def test_extras_and_python_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    (version,) = re.findall(r"BASE=python:(3\.\d+)", DOCKERFILE)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_what_the_image_copies_is_there_and_nothing_else_is_sent():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = {
        path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()
    }
    assert copied == sent
    assert all((ROOT / path).exists() for path in copied)
    assert not any(fnmatch.fnmatch(name, pattern) for pattern in sent for name in (".git", ".venv", "models", "cache"))


def test_nobody_is_root_and_images_are_pinned():
    assert re.search(r"^USER 10001", DOCKERFILE, re.MULTILINE)
    for service in SERVICES.values():
        assert service["image"] == "olivelike" or re.search(r":\d", service["image"])
    for pod in pods().values():
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["limits"]["memory"]


def test_no_secret_lies_in_the_recipes():
    text = "".join(path.read_text(encoding="utf-8") for path in DEPLOY.iterdir())
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OLIVELIKE_API_KEY"):
        values = re.findall(rf"{name}: *([^\s,)]+)", text)
        assert all(value.startswith(f"${{{name}:?") for value in values), values
    assert not any(one["kind"] == "Secret" for one in MANIFESTS)


def test_ports_volumes_and_selectors_fit_together():
    assert SERVICES["server"]["ports"] == ["127.0.0.1:7860:7860"]
    assert "EXPOSE 7860" in DOCKERFILE
    declared = {claim for service in SERVICES.values() for claim in service.get("volumes", ())}
    named = {claim.partition(":")[0] for claim in declared} - {"../workflows"}
    assert named == COMPOSE["volumes"].keys()
    by_kind = {one["kind"]: one for one in MANIFESTS if one["kind"] in ("Deployment", "Service")}
    labels = by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert by_kind["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    claims = {one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "PersistentVolumeClaim"}
    volumes = [volume for pod in pods().values() for volume in pod.get("volumes", ())]
    used = {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}
    assert used == claims
    for pod in pods().values():
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container.get("volumeMounts", ())} == {
            v["name"] for v in pod.get("volumes", ())
        }


def test_probes_ask_for_routes_that_are_there():
    routes = re.findall(r'@router\.get\("(/\w+)"', (ROOT / "olivelike/serve/api/health.py").read_text(encoding="utf-8"))
    (server,) = pods()["server"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        asked = server[probe]["httpGet"]
        assert asked["path"] in routes
        # Whoever asks by an address is refused, so that pages of strangers can't.
        (header,) = asked["httpHeaders"]
        assert header["value"] in server["args"]
    assert any("/healthz" in word for word in SERVICES["server"]["healthcheck"]["test"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """Yields what starts commands; they are ended at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], folder: Path, **environment: str) -> None:
        program, *rest = command
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("wb") as log:
            whole = [sys.executable, "-m", program, *rest]
            started.append(
                subprocess.Popen(whole, cwd=folder, env={**os.environ, **environment}, stdout=log, stderr=log)
            )

    try:
        yield start
    finally:
        for one in reversed(started):
            one.terminate()
            one.wait(30)


@pytest.mark.slow
def test_the_services_of_the_compose_file_work_together(bucket, tmp_path):
    """As processes on loopback, each with a home and folders of its own; moto stands for the object store."""
    scheduler, dashboard, port = free_port(), free_port(), free_port()
    models = tmp_path / "models"
    models.mkdir()
    places = {
        "tcp://scheduler:8786": f"tcp://127.0.0.1:{scheduler}", "8786": str(scheduler), ":8787": f":{dashboard}",
        "/models": str(models), "/gallery": str(tmp_path / "gallery"),
        "0.0.0.0": "127.0.0.1",
    }  # fmt: skip
    shared = f"s3://{bucket.name}/store"

    def here(name: str) -> list[str]:
        return [places.get(word, word) for word in words(SERVICES[name])]

    with processes() as start:
        start([*here("scheduler"), "--host", "127.0.0.1"], tmp_path / "scheduler")
        for number in ("1", "2"):
            home = tmp_path / f"worker{number}"
            command = [str(home) if word == "/cache/worker" else word for word in here("worker")]
            start([*command, "--host", "127.0.0.1"], home, OLIVELIKE_CACHE_DIR=str(home / "cache"), HOME=str(home))
        made = subprocess.run(
            [sys.executable, "-m", *here("run")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OLIVELIKE_CACHE_DIR": str(tmp_path / "cache"), "OLIVELIKE_SHARED_CACHE": shared},
        )
        assert made.returncode == 0, made.stderr
        assert f"{shared}: given " in made.stdout
        start([*here("server"), "--port", str(port)], tmp_path / "server", OLIVELIKE_API_KEY="key")
        picture = drawn(f"http://127.0.0.1:{port}")
        assert picture.startswith(b"\x89PNG")


def drawn(url: str) -> bytes:
    """Return a picture that a server was asked for."""
    header = {"Authorization": "Bearer key", "Content-Type": "application/json"}

    def ask(path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url + path, data, header), timeout=10) as answer:
            return answer.read()

    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            ask("/readyz")
            break
        assert time.monotonic() < end
        time.sleep(0.5)
    job = json.loads(ask("/api/jobs", {"prompt": "a red circle", "steps": 2, "seed": 1}))["id"]
    while (view := json.loads(ask(f"/api/jobs/{job}")))["state"] not in ("done", "failed"):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert view["state"] == "done", view["error"]
    return ask(f"/files/{view['pictures'][0]['id']}.png")
