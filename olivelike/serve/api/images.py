"""Pictures as requests carry them, and as orders want them: decoded one at a time, since each may take 256 MB."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import anyio.to_thread
import pybase64
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from olivelike._untrusted import JsonView
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.picture_reading import MOST_PIXELS, decode_image
from olivelike.runtime.pictures.picture_record import PNG_STRATEGY
from olivelike.runtime.pipeline.request import RESAMPLED
from olivelike.serve.api.refusals import RequestRefusedError
from olivelike.serve.turns import Turns

if TYPE_CHECKING:
    from PIL import Image
    from PIL.Image import Resampling
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")
Size = tuple[int, int]
UPSCALERS: Final = ("None", *RESAMPLED)
_PIECE: Final = 3 << 16
"""Bytes of a picture that are sent at once; a multiple of 3, so that pieces in base64 can be put together."""
_TURN: Final = 5
"""Pieces that are sent to a client that takes them before others have their turn; noise of 512x512 pixels has five."""
_PLACE: Final = secrets.token_hex()
"""Stands for a picture in the text of an answer; nobody else can know it, and write it."""
_TURNS: Final = Turns()


async def in_turn(work: Callable[[], T], request: Request | None = None) -> T:
    """Run what takes much memory in a thread, one at a time.

    Raises `UsageError` for a picture that can't be read, and `ClientDisconnect` if the client of a request has left
    before its turn.
    """
    try:
        async with _TURNS.turn():
            if request is not None and await has_left(request):
                raise ClientDisconnect
            return await anyio.to_thread.run_sync(work)
    except SourceError as error:
        raise UsageError(str(error)) from None
    except MemoryError:
        raise RequestRefusedError(503, "memory", "there is too little memory for a picture as large as this") from None


async def has_left(request: Request) -> bool:
    """Tell whether the client of a request has left."""
    await request.body()  # That it has left comes behind it.
    return await request.is_disconnected()


def from_base64(text: str, name: str) -> bytes:
    """Return the bytes of a picture in base64, alone or as a data URL. Raises `UsageError` if it is none."""
    if text.startswith(("http://", "https://")):
        raise UsageError(f"{name}: pictures are not fetched from addresses; send them as base64")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    with contextlib.suppress(ValueError):
        return pybase64.b64decode(text, validate=True)
    try:
        return base64.b64decode(text)  # What more is read, as lines are, differs between versions of pybase64.
    except ValueError:
        raise UsageError(f"{name} is no base64") from None


def to_base64(data: bytes) -> str:
    """Return bytes in base64."""
    return pybase64.b64encode_as_string(data)


class PictureAnswer(Response):
    """JSON whose `bytes` are strings in base64, which are made piece by piece while the client reads the one before.

    In whole, a megabyte would be copied four times, and looked through for what JSON has to escape.
    """

    media_type = "application/json"

    def __init__(self, value: JsonView) -> None:
        """Take what JSON can have, and `bytes` anywhere in it."""
        self._pictures: list[bytes] = []
        text = json.dumps(value, separators=(",", ":"), default=self._put)
        self._texts = text.encode().split(_PLACE.encode())
        length = len(text) + sum(4 * -(-len(one) // 3) - len(_PLACE) for one in self._pictures)
        super().__init__(headers={"Content-Length": str(length)})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sent = 0
        for text, picture in zip(self._texts, self._pictures, strict=False):
            for begin in range(0, max(1, len(picture)), _PIECE):
                if sent == _TURN:
                    sent = 0
                    await asyncio.sleep(0)  # Others' turn, and where the server hears that the client has left.
                piece = pybase64.b64encode(memoryview(picture)[begin : begin + _PIECE])
                await send({"type": "http.response.body", "body": piece if begin else text + piece, "more_body": True})
                sent += 1
        await send({"type": "http.response.body", "body": self._texts[-1]})

    def _put(self, picture: object) -> str:
        """Return what stands for a picture in the text."""
        if not isinstance(picture, bytes):
            raise TypeError(f"{type(picture).__name__} is nothing that JSON has")
        self._pictures.append(picture)
        return _PLACE


def png(image: Image.Image) -> bytes:
    """Return a picture as PNG, packed fast."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_type=PNG_STRATEGY)
    return buffer.getvalue()


def upright(data: bytes, name: str) -> Image.Image:
    """Return a picture as it is seen. Raises `SourceError` if it is none."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(decode_image(data, name))


def where_transparent(data: bytes, name: str) -> Image.Image | None:
    """Return a mask that is white where a picture is fully transparent; `None` if it is so nowhere."""
    image = upright(data, name)
    if not image.has_transparency_data:
        return None
    alpha = image.convert("RGBA").getchannel("A")
    return alpha.point([255] + [0] * 255) if 0 in alpha.tobytes() else None


def flat(image: Image.Image) -> Image.Image:
    """Return a picture on white, as A1111 starts from it."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def a1111_mask(data: bytes, size: Size | None = None) -> Image.Image:
    """Return a mask as A1111 reads it: the opacity, or the brightness if all is opaque; of a size, if one is named."""
    image = upright(data, "mask")
    mask = image.convert("RGBA").getchannel("A") if image.has_transparency_data else image.convert("L")
    if set(mask.tobytes()) == {255}:
        mask = image.convert("L")
    return mask if size in (None, mask.size) else mask.resize(size)


def resized(image: Image.Image, size: Size, mode: int) -> Image.Image:
    """Bring a picture to a size as A1111's `resize_mode` says: 0 stretches, 1 crops, 2 continues its edges."""
    from PIL import Image, ImageOps

    if mode == 1:
        return ImageOps.fit(image, size, Image.Resampling.LANCZOS)
    if mode == 0:
        return image.resize(size, Image.Resampling.LANCZOS)
    inner = _contained(image, size, Image.Resampling.LANCZOS)
    left, top = (size[0] - inner.width) // 2, (size[1] - inner.height) // 2
    right, bottom = size[0] - left - inner.width, size[1] - top - inner.height
    whole = Image.new(image.mode, size)
    whole.paste(inner, (left, top))
    for width, height, place, edge in (
        (left, size[1], (0, 0), (0, 0, 1, inner.height)),
        (right, size[1], (left + inner.width, 0), (inner.width - 1, 0, inner.width, inner.height)),
        (size[0], top, (0, 0), (0, 0, inner.width, 1)),
        (size[0], bottom, (0, top + inner.height), (0, inner.height - 1, inner.width, inner.height)),
    ):
        if width and height:
            whole.paste(inner.crop(edge).resize((width, height)), place)
    return whole


def _contained(image: Image.Image, size: Size, method: Resampling) -> Image.Image:
    """Bring a picture to the largest size of its shape within another, of a pixel at least: a line stays one."""
    share = min(size[0] / image.width, size[1] / image.height)
    return image.resize((max(1, round(image.width * share)), max(1, round(image.height * share))), method)


def require_side(size: Size, most: int, name: str = "") -> None:
    """Refuse a size that finished pictures are not brought to. Raises `RequestRefusedError`, by the name of a field."""
    if max(size) > most or size[0] * size[1] > MOST_PIXELS:
        raise RequestRefusedError(
            422, "invalid", f"{name}{size[0]}x{size[1]} has a side of more than the {most} pixels that pictures are "
            "enlarged to here, four times --max-size, or more than 67 million in all",
        )  # fmt: skip


def upscaled(image: Image.Image, size: Size, upscaler: str) -> Image.Image:
    """Bring a picture to a size, cropped to its shape."""
    from PIL import Image, ImageOps

    method = Image.Resampling.NEAREST if upscaler == "Nearest" else Image.Resampling.LANCZOS
    return ImageOps.fit(image, size, method)


def scaled_to(whole: Size, size: Size, *, crop: bool) -> Size:
    """Return what A1111's "Scale to" makes of a size: that which is given if it is cropped, else one that covers it."""
    if crop:
        return size
    share = max(size[0] / whole[0], size[1] / whole[1])
    return max(1, round(whole[0] * share)), max(1, round(whole[1] * share))


def hires_size(size: Size, scale: float, across: int, down: int) -> Size:
    """Return the size of A1111's second pass, in multiples of 8: by a factor, or by one or both sides."""
    if not across and not down:
        across, down = round(size[0] * scale), round(size[1] * scale)
    across = across or round(down * size[0] / size[1])
    down = down or round(across * size[1] / size[0])
    return max(8, across // 8 * 8), max(8, down // 8 * 8)
