"""A real server on a loopback port, with the little pipeline; one for all tests that change none of its settings."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from olivelike import _json_child as json_child
from olivelike.serve import ServeSettings, create_app
from olivelike.serve.listen import listening, make_server
from olivelike.serve.service import Service
from tests.fixtures.forked_children import Forks
from tests.fixtures.little_pipeline import little_pipeline
from tests.fixtures.wait_until import wait_until  # noqa: F401  (tests take it from here)

SMALL = {"prompt": "a red circle", "steps": 3, "seed": 7}
"""An order that takes milliseconds."""
LONG = {"prompt": "long", "steps": 500, "width": 192, "height": 192}
"""One that is drawn until somebody ends it, by the names of both our API and A1111's."""


@dataclass
class Running:
    """A server in a thread of this process; its pictures are drawn by a child of its own."""

    url: str
    app: Any
    settings: ServeSettings
    loop: asyncio.AbstractEventLoop

    @property
    def service(self) -> Service:
        return self.app.state.service

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout: float = 120) -> Any:
        """Run something of the service in its loop, and return what it gives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def client(self, **options: Any) -> httpx.Client:
        # `verify` would read the certificates of all authorities, for each client anew.
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)

    def draw(self, **order: Any) -> dict[str, Any]:
        """Submit an order and return the job when it has ended."""
        with self.client() as client:
            answer = client.post("/api/jobs", json={**SMALL, **order})
            assert answer.status_code == 202, answer.text
            return self.wait(answer.json()["id"])

    def wait(self, job: str) -> dict[str, Any]:
        """Return a job when it has ended."""

        async def ended() -> dict[str, Any]:
            return [event async for event in self.service.events(job)][-1]["view"]

        return self.call(ended())


@contextmanager
def running(settings: ServeSettings) -> Iterator[Running]:
    """Run a server; at the end it is shut down as by Ctrl-C."""
    app, loops, ready = create_app(settings), [], threading.Event()
    listener = listening(settings)
    server = make_server(app, ready.set)

    def run() -> None:
        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve(sockets=[listener])

        asyncio.run(serve())
        ready.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        assert ready.wait(60)
        assert server.started, "the server did not start"
        yield Running("http://127.0.0.1:%d" % listener.getsockname()[1], app, settings, loops[0])  # noqa: UP031
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process that children are forked from."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="module", autouse=True)
def _forked_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the children of the servers in this process; servers that are processes start their own."""
    with pytest.MonkeyPatch.context() as patched:
        if sys.platform == "linux":
            patched.setattr(json_child, "subprocess", request.getfixturevalue("forks"))
        yield


@pytest.fixture(scope="session")
def little() -> Path:
    """The optimised folder of the little pipeline, 32x32 pixels; not to be changed."""
    return little_pipeline()


@pytest.fixture(scope="session")
def base_settings(little: Path) -> ServeSettings:
    """What all servers of the tests have in common; each gets a gallery of its own."""
    return ServeSettings(folders=(little,), port=0, threads=1)


@pytest.fixture(scope="session")
def server(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The server for all tests; its queue is empty between them."""
    with running(replace(base_settings, gallery=tmp_path_factory.mktemp("serve") / "gallery")) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    """A client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def service(server: Running) -> Service:
    """The service of that server; what is `async` in it goes through `server.call`."""
    return server.service


@pytest.fixture
def serve(base_settings: ServeSettings, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a server with settings of one's own: two seconds, so most tests share `server`."""
    with ExitStack() as stack:

        def serve(**settings: Any) -> Running:
            settings = {"gallery": tmp_path / "gallery", **settings}
            return stack.enter_context(running(replace(base_settings, **settings)))

        yield serve
