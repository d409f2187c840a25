"""Signatures of a shared store's records: whose are asked for, and who signs what is given.

A record names the key of a result and the SHA-256 of each of its objects, so that its signature covers all of them.
A signed record is an envelope of DSSE around it, which an extra makes and checks; anybody reads what is in it.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from olivelike._extras import needed
from olivelike._untrusted import Json, parse_object
from olivelike.errors import UsageError
from olivelike.store import actions
from olivelike.store.actions import Action
from olivelike.store.folder import seal

SIGNERS: Final = "OLIVELIKE_SHARED_SIGNERS"
"""Names a file with the public keys of those whose records are taken."""
KEY: Final = "OLIVELIKE_SHARED_KEY"
"""Names the private key that signs what is given."""
_MEDIA_TYPE: Final = "application/vnd.olivelike.action+json"


class _Signer(Protocol):
    def signed(self, payload: bytes, kind: str) -> Json: ...


class _Signers(Protocol):
    def flaw(self, envelope: Any, payload: bytes, kind: str) -> str | None: ...


@dataclass(frozen=True)
class RecordSignatures:
    """Policy of one machine about the records of shared stores."""

    signer: _Signer | None = None
    """Signs what is given from here."""
    signers: _Signers | None = None
    """Those whose records are taken; `None` takes all."""

    @property
    def may_give(self) -> bool:
        """Whether what is given from here would be taken here."""
        return self.signers is None or self.signer is not None

    @property
    def may_replace(self) -> bool:
        """Whether what is given from here may stand in place of what has no signature that counts."""
        return self.signer is not None

    def encoded(self, action: Action) -> bytes:
        """Return the file of a record, signed if there is a key."""
        data = seal(actions.KIND, asdict(action))
        return data if self.signer is None else json.dumps(self.signer.signed(data, _MEDIA_TYPE)).encode()

    def flaw(self, data: bytes) -> str | None:
        """Return why a record's file is not taken whatever it says; `None` if it may be."""
        if self.signers is None:
            return None
        envelope = _envelope(data)
        return "nobody signed it" if envelope is None else self.signers.flaw(envelope, _content(data), _MEDIA_TYPE)


def read_signatures() -> RecordSignatures:
    """Return the policy that the environment names.

    Raises:
        UsageError: if a file of keys can't be used.
        MissingError: if the extra for signatures, or its packages, are not here.
    """
    keys, public = _named(KEY), _named(SIGNERS)
    signer = None if keys is None else needed("SIGNATURES", "signer", f"${KEY}")(keys)
    signers = None if public is None else needed("SIGNATURES", "signers", f"${SIGNERS}")(public)
    if signer is not None and signers is not None:
        signers.require(signer)
    return RecordSignatures(signer, signers)


def decoded(data: bytes | None, key: str) -> Action | None:
    """Return the action that a record's file holds, signed or not; `None` if it is damaged or has another key."""
    return None if data is None else actions.decoded(_content(data), key)


def _named(variable: str) -> Path | None:
    """Return the file that a variable names; one that names nothing could stand for a policy that got lost."""
    text = os.environ.get(variable)
    if text is None:
        return None
    if not text.strip():
        raise UsageError(f"${variable}: is set and names no file; name one, or unset it")
    return Path(text.strip())


def _envelope(data: bytes) -> Json | None:
    if b'"payloadType"' not in data:  # Most records need not be read twice.
        return None
    try:
        read = parse_object(data)
    except ValueError:
        return None
    return read if "payloadType" in read else None


def _content(data: bytes) -> bytes:
    """Return the record inside a file: the payload of an envelope, or all of it."""
    envelope = _envelope(data)
    try:
        return data if envelope is None else base64.b64decode(envelope["payload"], validate=True)
    except (KeyError, ValueError, TypeError):
        return b""
