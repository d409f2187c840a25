"""A child process that reads pictures of strangers, one after another, and is ended when one takes too long.

A picture of half a MB may take seconds to decode, and no thread of Pillow's can be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from olivelike._files import write_whole
from olivelike._json_child import JsonChild, how_it_ended, serve
from olivelike._untrusted import JsonView, read_bytes
from olivelike.errors import OlivelikeError, SessionError, StoreError, UsageError, error_of
from olivelike.serve.gallery.uploads import add_upload
from olivelike.serve.turns import Turns
from olivelike.serve.views import UploadView

_SECONDS: Final = 20.0
"""Seconds that reading a picture may take; one of 12 million pixels takes one."""
_PATIENCE: Final = 120.0
"""Seconds that the child may take to start."""
_MOST_BYTES: Final = 1 << 30
"""Size of a request's body that lies in the folder; `--max-body` has refused larger ones."""


class UploadReader:
    """The parent's end; pictures are read one at a time, since each may take 256 MB."""

    def __init__(self, folder: Path, log: Path) -> None:
        """Take where uploads are kept, and what gets the child's words."""
        self._folder, self._log = folder, log
        self._child: JsonChild | None = None
        self._answers: asyncio.Queue[JsonView] = asyncio.Queue()
        self._turns = Turns()

    async def add(self, data: bytes) -> UploadView:
        """Keep a picture as `add_upload` does. Raises `UsageError` too if reading it takes too long, or much memory."""
        async with self._turns.turn():
            sent = self._folder / f".{secrets.token_hex(8)}.tmp"
            try:
                await asyncio.to_thread(write_whole, sent, data, durable=False)
                return await self._read(sent)
            except OSError as error:
                raise StoreError(f"the upload can't be kept: {error.strerror or error}; free some space") from error
            finally:
                with contextlib.suppress(OSError):
                    sent.unlink(missing_ok=True)

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def _start(self) -> tuple[JsonChild, asyncio.Queue[JsonView]]:
        """Return a child, and where its own answers come; those of one that was ended are heard by nobody."""
        loop = asyncio.get_running_loop()
        answers: asyncio.Queue[JsonView] = asyncio.Queue()

        def hear(answer: JsonView) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended, and with it the server.
                loop.call_soon_threadsafe(answers.put_nowait, answer)

        return JsonChild(__name__, self._log, hear, lambda status: hear({"ended": status}), self._folder), answers

    async def _read(self, sent: Path) -> UploadView:
        try:
            if self._child is None or self._child.has_ended:
                self.close()
                self._child, self._answers = self._start()
                self._child.send({})
                if "ended" in await asyncio.wait_for(self._answers.get(), _PATIENCE):
                    raise StoreError(f"the upload can't be read: its process does not start; {self._log.name} says why")
            self._child.send({"folder": str(self._folder), "sent": str(sent)})
            async with asyncio.timeout(_SECONDS):
                answer = await self._answers.get()
        except TimeoutError:
            await asyncio.to_thread(self.close)
            raise UsageError(
                f"the upload takes more than {_SECONDS:g} s to read; make the picture smaller, or save it as JPEG"
            ) from None
        except asyncio.CancelledError:
            self.close()  # What it reads is for nobody.
            raise
        if "ended" in answer:
            self.close()
            raise self._why(answer["ended"])
        if "word" in answer:
            raise error_of(answer["word"])(answer["message"])
        return UploadView.model_validate(answer["view"])

    def _why(self, status: int) -> OlivelikeError:
        """Return the error that the child ended with while it read."""
        if os.name == "posix" and status == -signal.SIGKILL:
            return UsageError("the upload can't be read: it takes too much memory; make the picture smaller")
        ended = f"the process that reads it {how_it_ended(status)}"
        if status < 0:
            return UsageError(f"the upload can't be read: {ended}; save the picture as PNG or JPEG")
        return SessionError(f"the upload can't be read: {ended}; {self._log.name} says why")


def _handle(message: JsonView, answer: Callable[[JsonView], None]) -> None:
    if not message:
        answer({"ready": True})
        return
    try:
        view = add_upload(Path(message["folder"]), read_bytes(Path(message["sent"]), _MOST_BYTES))
    except MemoryError:
        answer({"word": UsageError.word, "message": "the upload takes too much memory; make the picture smaller"})
    except OlivelikeError as error:
        answer({"word": error.word, "message": str(error)})
    else:
        answer({"view": view.model_dump(mode="json")})


def main() -> None:
    """Be the child."""
    serve(_handle)


if __name__ == "__main__":
    main()
