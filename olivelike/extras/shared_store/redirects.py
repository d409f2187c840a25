"""Redirects of an HTTP store: they may lead to other paths of its own host, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceConfig, TraceRequestRedirectParams


class RedirectError(ValueError):
    """A store that leads to another host, port or scheme, which is the same when it is asked again."""


def same_host_only() -> TraceConfig:
    """Return what keeps a session of aiohttp from following a redirect to another scheme, host or port.

    Whoever keeps a store could have each machine that reads it ask others of its network, and tell them its password.
    """
    from aiohttp import TraceConfig

    async def look(_session: ClientSession, _context: Any, asked: TraceRequestRedirectParams) -> None:
        led = asked.response.headers.get("Location") or asked.response.headers.get("URI") or ""
        there = asked.url.join(type(asked.url)(led))
        if there.origin() != asked.url.origin():
            raise RedirectError(
                f"it leads to {there.origin()}, and only redirects within {asked.url.origin()} are followed; "
                "name the place where the files are"
            )

    traces = TraceConfig()
    traces.on_request_redirect.append(look)
    return traces
