"""URLs of shared stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from olivelike._text import did_you_mean
from olivelike.errors import UsageError

_EXTRAS: Final = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "http": "http", "https": "http", "file": None}
"""The extra that each kind of URL takes."""
_READ_ONLY: Final = ("http", "https")
_TIMEOUT_SECONDS: Final = 30.0
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.1, 3600.0


@dataclass(frozen=True)
class Address:
    """Place of a shared store, and how it is used."""

    url: str
    """As fsspec takes it; it may hold a password."""
    kind: str
    """`s3`, `gs`, `az`, `abfs`, `http`, `https` or `file`."""
    read_only: bool
    timeout_seconds: float
    """Longest time that a request may go without a byte."""

    @property
    def extra(self) -> str | None:
        """The extra of olivelike whose packages it takes."""
        return _EXTRAS.get(self.kind)

    def __str__(self) -> str:
        """Return the address as people may see it, without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")

    def without_secrets(self, text: str) -> str:
        """Return what a library said, without what is secret in the address."""
        parts = urlsplit(self.url)
        user, _, _ = parts.netloc.rpartition("@")
        password = user.partition(":")[2]
        for secret in (user, password, unquote(password)):
            text = text.replace(secret, "***") if secret else text
        return text


def parse_address(text: str, where: str) -> Address:
    """Read a URL such as `s3://bucket/prefix?read-only&timeout=10`.

    Raises `UsageError` for what is no such URL; it does not quote passwords.

    Args:
        text: what a person wrote.
        where: what messages call its place.
    """
    text = text.strip()
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UsageError(f"{where}: that is no URL ({error})") from None
    kind = parts.scheme.lower()
    if kind not in _EXTRAS:
        kinds = did_you_mean(kind, _EXTRAS, "kinds of shared stores")
        raise UsageError(f"{where}: there is no kind of store {kind!r}; {kinds}")
    host = parts.netloc.rpartition("@")[2]
    if parts.fragment or any(ord(letter) < 32 for letter in text):
        raise UsageError(f"{where}: a store's URL has no `#` and no control characters")
    if kind == "file" and (host or not parts.path.strip("/")):
        raise UsageError(f"{where}: name the folder with three slashes, as in file:///mnt/share/olivelike")
    if kind != "file" and not host:
        raise UsageError(f"{where}: it lacks the name behind `{kind}://`, such as {kind}://NAME/FOLDER")
    if ".." in parts.path.split("/"):
        raise UsageError(f"{where}: a store's URL has no `..`")
    read_only, timeout = kind in _READ_ONLY, _TIMEOUT_SECONDS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "read-only" and value in ("", "1", "true"):
            read_only = True
        elif name == "timeout":
            timeout = _seconds(value, where)
        else:
            raise UsageError(f"{where}: unknown `{name}={value}`; there are `read-only` and `timeout=SECONDS`")
    return Address(urlunsplit((*parts[:3], "", "")).rstrip("/"), kind, read_only, timeout)


def _seconds(text: str, where: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise UsageError(f"{where}: `timeout` takes {_SHORTEST_SECONDS} to {_LONGEST_SECONDS:.0f} seconds")
    return seconds
