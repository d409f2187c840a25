"""Turns at what is done one at a time: however much one client asks for, others wait for one thing of its at most."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

import anyio

CLIENT: Final = ContextVar("client", default="")
"""Who sent the request that is answered."""


class Turns:
    """A queue in which each client has one place."""

    def __init__(self) -> None:
        self._all = anyio.Lock()
        self._own: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for this client's turn, and have it."""
        own = self._own.setdefault(CLIENT.get(), anyio.Lock())
        async with own, self._all:
            yield
