"""The compose file's services as processes on loopback, each with a home and folders of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.deploy.recipes import SERVICES, instruction, service_command

KEY = "0123456789abcdef"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Machine:
    """Stands for the containers: what is in them a folder or a port is another one here."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self._folder = folder
        self._ports = {port: free_port() for port in ("8786", "8787", "7860")}
        self._bucket = bucket
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, service: str, name: str) -> None:
        """Start a service that stays."""
        with self._log(name).open("wb") as log:
            self._started.append(
                subprocess.Popen(self._command(service, name), **self._place(service, name), stdout=log, stderr=log)
            )

    def run(self, service: str, name: str) -> str:
        """Run a service that ends, and return what it says."""
        done = subprocess.run(
            self._command(service, name), **self._place(service, name), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def url(self, port: str, path: str) -> str:
        return f"http://127.0.0.1:{self._ports[port]}{path}"

    def wait_for(self, port: str, path: str) -> None:
        """Wait until a service answers well."""
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.url(port, path), timeout=5).close()
                return
            logs = [path.read_text(encoding="utf-8", errors="replace") for path in self._folder.glob("*.log")]
            assert time.monotonic() < end, "\n".join(logs)
            time.sleep(0.2)

    def end(self) -> None:
        """End all that was started, as `docker stop` does."""
        for process in reversed(self._started):
            process.terminate()
            process.wait(30)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _command(self, service: str, name: str) -> list[str]:
        program, *words = [self._here(word, name) for word in service_command(service)]
        if program == "dask":
            words += ["--host", "127.0.0.1"]
        if service == "server":
            words += ["--port", str(self._ports["7860"])]
        return [sys.executable, *([] if program == "python" else ["-m", program]), *words]

    def _here(self, word: str, name: str) -> str:
        word = word.replace("scheduler:8786", f"127.0.0.1:{self._ports['8786']}")
        word = word.replace("0.0.0.0", "127.0.0.1").replace("'olivelike'", repr(self._bucket))
        for port in ("8786", "8787"):
            word = word.replace(port, str(self._ports[port])) if word in (port, f":{port}") else word
        word = word.replace(":8788", ":0")  # Two workers are on one machine here.
        for place, folder in (("/cache", name), ("/models", "models"), ("/gallery", "gallery")):
            word = word.replace(f"={place}", f"={self._folder / folder}")
        return word

    def _place(self, service: str, name: str) -> dict[str, object]:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        given = {"HOME": str(home / "home"), "OLIVELIKE_CACHE_DIR": str(home / "store")}
        for variable, value in SERVICES[service].get("environment", {}).items():
            given[variable] = self._value(variable, value)
        return {"cwd": self._folder, "env": {**_bare(), **given}}

    def _value(self, variable: str, value: str) -> str:
        if variable.startswith("AWS_"):
            return os.environ[variable]
        if variable == "OLIVELIKE_API_KEY":
            return KEY
        return "" if value.startswith("$") else value.replace("//olivelike/", f"//{self._bucket}/")


def _bare() -> Mapping[str, str]:
    """Return the environment without what a container is not given."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "XDG_", "OLIVELIKE_"))}


@pytest.fixture
def machine(bucket, tmp_path: Path) -> Iterator[Machine]:
    # The image has these folders; the workflow is beside them.
    (tmp_path / "models").mkdir()
    workflows = tmp_path / "workflows"
    workflows.symlink_to(Path(__file__).parents[2] / "workflows")
    made = Machine(tmp_path, f"{bucket.name}-team")
    yield made
    made.end()


@pytest.mark.slow
def test_the_services_of_the_compose_file_work_together(machine: Machine, tmp_path: Path):
    """In the order of `depends_on`; moto stands for the object store."""
    assert instruction("ENTRYPOINT")[-1] == "olivelike"
    machine.run("bucket", "bucket")
    machine.run("bucket", "bucket")  # It is there already.
    machine.start("scheduler", "scheduler")
    machine.wait_for("8787", "/health")
    for name in ("worker-1", "worker-2"):
        machine.start("worker", name)
    machine.start("server", "server")
    machine.wait_for("7860", "/healthz")

    assert "given 6 results" in machine.run("run", "run")
    again = machine.run("run", "another")
    assert "fetched 6 results" in again
    assert ".fuse" not in again

    machine.wait_for("7860", "/readyz")
    assert drawn(machine).startswith(b"\x89PNG")
    assert (tmp_path / "gallery").is_dir()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(machine.url("7860", "/api/models"), timeout=10)


def drawn(machine: Machine) -> bytes:
    """Return a picture that the server was asked for."""
    header = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def ask(path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(machine.url("7860", path), data, header), timeout=10) as got:
            return got.read()

    end = time.monotonic() + 120
    job = json.loads(ask("/api/jobs", {"prompt": "a red circle", "steps": 2, "seed": 1}))["id"]
    while (view := json.loads(ask(f"/api/jobs/{job}")))["state"] not in ("done", "failed"):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert view["state"] == "done", view["error"]
    return ask(f"/files/{view['pictures'][0]['id']}.png")
