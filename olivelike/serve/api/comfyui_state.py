"""State of ComfyUI's API: prompts by their ids, files that were sent by name, and the sockets that are told.

Message types and the head of binary messages are those of ComfyUI's `server.py` and `execution.py`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import struct
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.websockets import WebSocketDisconnect

from olivelike._untrusted import Json
from olivelike.errors import OlivelikeError
from olivelike.serve.api.images import in_turn, require_side, upright
from olivelike.serve.api.refusals import RequestRefusedError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from olivelike.serve.api.comfyui_graph import Drawing
    from olivelike.serve.service import Service
    from olivelike.serve.views import Event, JobView, PictureView

MOST_PROMPTS: Final = 1000
_MOST_FILES: Final = 1000
_PREVIEW: Final = 1
"""Kind of a binary message: a picture, its format behind it."""
_JPEG, _PNG = 1, 2
_SWARM_PICTURE: Final = 12345
"""Length of progress that tells SwarmUI that the next binary message is a finished picture."""
_BY_SOCKET: Final = ("SaveImageWebsocket", "ETN_SendImageWebSocket", "SwarmSaveImageWS")
_GONE: Final = (WebSocketDisconnect, RuntimeError, OSError)
Key = TypeVar("Key")
Visitor = tuple[str, str]
"""Who asks, by key or address, and the id that its program gave itself."""


@dataclass(frozen=True)
class Prompt:
    """A graph that is drawn."""

    id: str
    number: int
    job: str
    drawing: Drawing
    visitor: Visitor
    graph: bytes = b"{}"
    """As JSON, of one that is not large."""


class ComfyUI:
    """What is known of prompts and files, and who listens."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sockets: dict[Visitor, WebSocket] = {}
        self._files: dict[tuple[str, str], str] = {}
        """Uploads by client and name, the latest last."""
        self._coming: set[str] = set()
        """Ids of prompts that are planned."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.prompts: dict[str, Prompt] = {}
        """By id, the oldest first."""
        self.number = 0

    def keep_file(self, client: str, name: str, upload: str) -> None:
        """Let a client call an upload by a name."""
        self._files.pop((client, name), None)
        self._files[client, name] = upload
        if len(self._files) > _MOST_FILES:
            del self._files[_oldest_of_most(self._files, [one for one, _ in self._files])]

    def file(self, client: str, name: str) -> str | None:
        """Return the upload that a client calls so."""
        return self._files.get((client, name))

    def tells(self, visitor: Visitor) -> bool:
        """Say whether a program listens."""
        return visitor in self._sockets

    def knows(self, prompt: str) -> bool:
        """Tell whether there is a prompt of an id, or one is coming."""
        return prompt in self.prompts or prompt in self._coming

    @contextlib.contextmanager
    def coming(self, prompt: str) -> Iterator[None]:
        """Let no other prompt have an id meanwhile."""
        self._coming.add(prompt)
        try:
            yield
        finally:
            self._coming.discard(prompt)

    def begin(self, prompt: Prompt, events: AsyncGenerator[Event, None]) -> None:
        """Keep a prompt, and tell its program what becomes of it, by the events of its job."""
        self.prompts[prompt.id] = prompt
        while len(self.prompts) > MOST_PROMPTS:
            del self.prompts[_oldest_of_most(self.prompts, [one.visitor[0] for one in self.prompts.values()])]
        task = asyncio.create_task(self._follow(prompt, events), name=f"prompt {prompt.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def unfinished(self) -> Iterator[tuple[Prompt, JobView]]:
        """Yield the prompts that are drawn or wait, each with its job, the next one first."""
        found = [(prompt, self._service.job(prompt.job)) for prompt in self._left()]
        yield from sorted(found, key=lambda one: (one[1].state != "drawing", one[1].position or 0))

    def _left(self) -> list[Prompt]:
        jobs = {row.id for row in self._service.journal.unfinished()}
        return [prompt for prompt in self.prompts.values() if prompt.job in jobs]

    def status(self) -> Json:
        """Return what is told of the queue."""
        return {"exec_info": {"queue_remaining": len(self._left())}}

    async def listen(self, socket: WebSocket, visitor: Visitor) -> None:
        """Keep a socket until its client closes it; of what it says nothing is needed."""
        before = self._sockets.get(visitor)
        self._sockets[visitor] = socket
        try:
            if before is not None:
                with contextlib.suppress(*_GONE):
                    await before.close()
            await self._send(visitor, "status", status=self.status(), sid=visitor[1])
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        finally:
            if self._sockets.get(visitor) is socket:
                del self._sockets[visitor]

    async def _send(self, visitor: Visitor, kind: str, **data: Any) -> None:
        socket = self._sockets.get(visitor)
        if socket is not None:
            with contextlib.suppress(*_GONE):
                await socket.send_json({"type": kind, "data": data})

    async def _send_picture(self, visitor: Visitor, form: int, data: bytes) -> None:
        socket = self._sockets.get(visitor)
        if socket is not None:
            with contextlib.suppress(*_GONE):
                await socket.send_bytes(struct.pack(">II", _PREVIEW, form) + data)

    async def _follow(self, prompt: Prompt, events: AsyncGenerator[Event, None]) -> None:
        drawing, visitor = prompt.drawing, prompt.visitor
        about = {"prompt_id": prompt.id}

        async def executing(node: str | None) -> None:
            await self._send(visitor, "executing", node=node, display_node=node, **about)

        await self._send(visitor, "status", status=self.status())
        begun = sampling = False
        async with aclosing(events):
            async for event in events:
                drawn = event["type"] in ("started", "opening", "step", "picture")
                if not begun and (drawn or event["type"] in ("done", "failed")):
                    begun = True
                    await self._send(visitor, "execution_start", timestamp=_now(), **about)
                    await self._send(visitor, "execution_cached", nodes=[], timestamp=_now(), **about)
                    await executing(drawing.loader)
                if event["type"] == "step":
                    if not sampling:
                        sampling = True
                        await executing(drawing.sampling.id)
                    await self._send(
                        visitor, "progress", value=event["done"], max=event["steps_total"],
                        node=drawing.sampling.id, **about,
                    )  # fmt: skip
                    if event.get("preview"):
                        await self._send_picture(visitor, _JPEG, await asyncio.to_thread(_as_jpeg, event["preview"]))
        job = self._service.job(prompt.job)
        at = {"node_id": drawing.sampling.id, "node_type": drawing.sampling.kind, "executed": [], **about}
        if job.state == "done":
            await executing(drawing.decoder)
            await self._hand_out(prompt, job)
            await self._send(visitor, "execution_success", timestamp=_now(), **about)
        elif job.state == "failed":
            await self._send(visitor, "execution_error", **at, **_why(job))
        else:
            await self._send(visitor, "execution_interrupted", **at)
        await executing(None)
        await self._send(visitor, "status", status=self.status())

    async def _hand_out(self, prompt: Prompt, job: JobView) -> None:
        """Tell of the pictures at each output, and send them where the graph says so."""
        for node in prompt.drawing.outputs:
            about = {"node": node.id, "display_node": node.id, "prompt_id": prompt.id}
            await self._send(prompt.visitor, "executing", **about)
            for number, picture in enumerate(job.pictures if node.kind in _BY_SOCKET else ()):
                length = _SWARM_PICTURE if node.kind.startswith("Swarm") else len(job.pictures)
                value = length if node.kind.startswith("Swarm") else number + 1
                await self._send(prompt.visitor, "progress", value=value, max=length, **about)
                # A picture may have been deleted meanwhile, or be so narrow that its other side would be too long.
                with contextlib.suppress(OlivelikeError, RequestRefusedError):
                    data = await picture_file(self._service, picture.id, size_of(prompt.drawing, picture))
                    await self._send_picture(prompt.visitor, _PNG, data)
            await self._send(prompt.visitor, "executed", output=output_of(prompt.drawing, node.kind, job), **about)


def _oldest_of_most(keys: Iterable[Key], clients: Sequence[str]) -> Key:
    """Return the oldest entry of the client that has the most of them."""
    ((most, _),) = Counter(clients).most_common(1)
    return next(key for key, client in zip(keys, clients, strict=True) if client == most)


def output_of(drawing: Drawing, kind: str, job: JobView) -> Json:
    """Return what an output node is told to have made."""
    if kind.startswith("Swarm"):
        return {}
    if kind == "ETN_SaveImageCache":
        form = {"source": "http", "content-type": "image/png", "type": "output"}
        return {"images": [{**form, "id": name_of(drawing, one)} for one in job.pictures]}
    if kind in _BY_SOCKET:
        form = {"source": "websocket", "content-type": "image/png", "type": "output"}
        return {"images": [form] * len(job.pictures)} if kind.startswith("ETN") else {}
    kept = "temp" if kind == "PreviewImage" else "output"
    return {
        "images": [{"filename": f"{name_of(drawing, one)}.png", "subfolder": "", "type": kept} for one in job.pictures]
    }


def history_of(prompt: Prompt, job: JobView) -> Json:
    """Return what ComfyUI keeps of a prompt that has ended."""
    done = job.state == "done"
    messages: list[Any] = [["execution_start", {"prompt_id": prompt.id}]]
    if job.error is not None:
        messages.append(
            ["execution_error", {"prompt_id": prompt.id, "node_id": prompt.drawing.sampling.id, **_why(job)}]
        )
    else:
        messages.append(["execution_success" if done else "execution_interrupted", {"prompt_id": prompt.id}])
    outputs = {node.id: output_of(prompt.drawing, node.kind, job) for node in prompt.drawing.outputs} if done else {}
    return {
        "prompt": [prompt.number, prompt.id, json.loads(prompt.graph), {"client_id": prompt.visitor[1]}, list(outputs)],
        "outputs": outputs,
        "status": {"status_str": "success" if done else "error", "completed": done, "messages": messages},
        "meta": {},
    }


def _why(job: JobView) -> Json:
    error = job.error
    return {
        "exception_message": error.message if error else "", "exception_type": error.code if error else "",
        "traceback": [], "current_inputs": {}, "current_outputs": [],
    }  # fmt: skip


def size_of(drawing: Drawing, picture: PictureView) -> tuple[int, int] | None:
    """Return the size that a graph brings a finished picture to; `None` where that is its own."""
    scaling = drawing.scaling
    if scaling is None:
        return None
    width, height = scaling.of(picture.width, picture.height)
    return None if (width, height) in ((0, 0), (picture.width, picture.height)) else (max(width, 1), max(height, 1))


def name_of(drawing: Drawing, picture: PictureView) -> str:
    """Return what a picture is called here: by its id, and by the size that the graph brings it to."""
    size = size_of(drawing, picture)
    return picture.id if size is None else f"{picture.id}_{size[0]}x{size[1]}"


async def picture_file(
    service: Service, picture: str, size: tuple[int, int] | None, request: Request | None = None
) -> bytes:
    """Return a picture of the gallery as PNG.

    Raises `SourceError` if it is gone, and for a size as `require_side` and `in_turn`.
    """
    if size is not None:
        require_side(size, service.settings.most_enlarged)
    data = await service.picture_bytes(picture)
    if size is None:
        return data
    from PIL import Image

    from olivelike.serve.api.images import png

    return await in_turn(lambda: png(upright(data, "picture").resize(size, Image.Resampling.LANCZOS)), request)


def _as_jpeg(preview: str) -> bytes:
    """Return the small picture of a step, a data URL, as a client that tells previews from pictures by it wants it."""
    from PIL import Image

    kept = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(preview.partition(",")[2]))) as image:
        image.convert("RGB").save(kept, "JPEG", quality=90)
    return kept.getvalue()


def _now() -> int:
    return int(time.time() * 1000)
