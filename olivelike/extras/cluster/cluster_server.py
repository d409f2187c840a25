"""A server of one command's own, whose pictures the workers of a cluster draw; it goes away with the command."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from olivelike.engine.output.swap import LiveLora
from olivelike.errors import MissingError, SessionError, UsageError
from olivelike.serve.remote.client import Server
from olivelike.serve.settings import ServeSettings

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 20.0
_MANY: Final = 1_000_000


@contextlib.contextmanager
def cluster_server(settings: ServeSettings, loras: Sequence[LiveLora]) -> Iterator[tuple[Server, tuple[str, ...]]]:
    """Yield a server on loopback that nobody else can use, without bounds on what is asked, and its names of LoRAs.

    Raises `UsageError` if two files have one name, `MissingError` if a server's packages are not installed, or the
    cluster can't be reached, and `SessionError` if no worker fits, or the server does not start.

    Args:
        settings: With the cluster, and what draws; the rest is filled in.
        loras: Files that are asked for; the server finds them by name.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingError(
            f"drawing on a cluster takes {error.name}; run `pip install 'olivelike[serve,cluster]'`"
        ) from None
    from olivelike.serve.application import create_app
    from olivelike.serve.listen import listening, make_server

    folders, texts = _named(loras)
    key, started = secrets.token_hex(16), threading.Event()
    with tempfile.TemporaryDirectory(prefix="olivelike-drawing-") as folder:
        settings = replace(
            settings, lora_dirs=tuple(dict.fromkeys((*folders, *settings.lora_dirs))),
            gallery=Path(folder, "gallery"), host="127.0.0.1", port=0, api_keys={"command": key},
            max_queue=_MANY, max_images=_MANY, max_side=_MANY, max_steps=_MANY, time_limit=float(_MANY),
        )  # fmt: skip
        app = create_app(settings)
        with listening(settings) as listener:
            uvicorn_server = make_server(app, started.set)
            thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            try:
                if not started.wait(_START_SECONDS):
                    raise SessionError("the server that gives pictures to the cluster did not start; run again")
                yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", key), texts
            finally:
                uvicorn_server.should_exit = True
                thread.join(_END_SECONDS)


def _named(loras: Sequence[LiveLora]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the folders of files, and their names with weights; raises `UsageError` if two have one name."""
    by_name = {lora.path.stem: lora.path for lora in loras}
    for lora in loras:
        if by_name[lora.path.stem] != lora.path:
            raise UsageError(f"{lora.path} and {by_name[lora.path.stem]} have one name; rename one of them")
    return (
        tuple(path.parent.absolute() for path in by_name.values()),
        tuple(f"{lora.path.stem}:{lora.unet_weight!r}" for lora in loras),
    )
