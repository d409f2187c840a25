"""An HTTP store that leads elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from olivelike.errors import UnreachableError
from olivelike.extras.shared_store.address import parse_address
from olivelike.extras.shared_store.remote_folder import RemoteFolder


@contextmanager
def web(location: str) -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    """Yield the port of a server that leads `/led/` to a location, and the path and password of each request."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(302 if self.path.startswith("/led/") else 200)
            if self.path.startswith("/led/"):
                self.send_header("Location", location)
            self.send_header("Content-Length", "0" if self.path.startswith("/led/") else "4")
            self.end_headers()
            if not self.path.startswith("/led/"):
                self.wfile.write(b"data")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def folder(port: int, path: str) -> RemoteFolder:
    return RemoteFolder(parse_address(f"http://user:secret@127.0.0.1:{port}/{path}?timeout=60", "here"))


def test_a_store_leads_nobody_to_another_place_and_tells_none_the_password() -> None:
    with web("/") as (other, elsewhere):
        for scheme, host in (("http", "127.0.0.1"), ("http", "localhost"), ("https", "127.0.0.1")):
            with web(f"{scheme}://{host}:{other}/x") as (port, asked):
                with pytest.raises(UnreachableError, match=rf"leads to {scheme}://{host}:{other}, and only") as error:
                    folder(port, "led").read("file")
                assert "secret" not in str(error.value)
                assert len(asked) == 1
        assert elsewhere == []


def test_a_store_may_lead_to_another_path_of_its_own() -> None:
    with web("/there/file") as (port, asked):
        assert folder(port, "led").read("file") == b"data"
        assert [path for path, _ in asked] == ["/led/file", "/there/file"]
