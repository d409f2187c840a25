"""Bytes that a key has signed, in envelopes of DSSE (https://github.com/secure-systems-lab/dsse), by securesystemslib.

A shared store's records are signed so: the envelope holds the bytes, what they are, and signatures of both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._signing_keys import read_private_key, read_public_keys
from olivelike._untrusted import Json
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from securesystemslib.signer import Key, Signer


class PayloadSigner:
    """Somebody with a private key."""

    def __init__(self, key: Path | EllipticCurvePrivateKey) -> None:
        """Take a key, or read it; its password is in `$OLIVELIKE_KEY_PASSWORD` then.

        Raises:
            UsageError: if it can't be used.
        """
        from securesystemslib.signer import CryptoSigner

        self._signer: Signer = CryptoSigner(read_private_key(key) if isinstance(key, Path) else key)

    @property
    def id(self) -> str:
        """Digest by which signatures name the key."""
        name: str = self._signer.public_key.keyid
        return name

    def signed(self, payload: bytes, kind: str) -> Json:
        """Return the envelope of a payload; `kind` is its media type, and signed too."""
        from securesystemslib.dsse import Envelope

        envelope = Envelope(payload, kind, {})
        envelope.sign(self._signer)
        made: Json = envelope.to_dict()
        return made


class PayloadSigners:
    """Those whose signatures count."""

    def __init__(self, path: Path) -> None:
        """Read public keys from a PEM file. Raises `UsageError` if it has none, or anything else."""
        self._path, self._keys = path, named_keys(read_public_keys(path))

    def require(self, signer: PayloadSigner) -> None:
        """Make sure that a signer is one of them. Raises `UsageError`."""
        if signer.id not in self._keys:
            raise UsageError(f"{self._path}: lacks the public key of the private one that signs here; add it there")

    def flaw(self, envelope: Any, payload: bytes, kind: str) -> str | None:
        """Return why an envelope is not to be relied on for a payload of a kind; `None` if one of them signed that."""
        try:
            return None if payload_of(envelope, self._keys, kind) == payload else "something else was signed"
        except ValueError as error:
            return str(error)


def named_keys(keys: Iterable[EllipticCurvePublicKey]) -> dict[str, Key]:
    """Return public keys by the digests with which signatures name them."""
    from securesystemslib.signer import SSlibKey

    return {key.keyid: key for key in map(SSlibKey.from_crypto, keys)}


def payload_of(envelope: Any, keys: Mapping[str, Key], kind: str) -> bytes:
    """Return what one of the keys has signed as a kind of payload. Raises `ValueError`, which says why, if none did."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error

    try:
        read = Envelope.from_dict(envelope)
        if signed := read.signatures.keys() & keys.keys():
            read.verify(list(keys.values()), 1)
    except Error as error:
        raise ValueError("it was changed after it was signed") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("its signature is damaged") from error
    if not signed:
        raise ValueError("none of the keys has signed it")
    if read.payload_type != kind:
        raise ValueError("something else was signed")
    return bytes(read.payload)
