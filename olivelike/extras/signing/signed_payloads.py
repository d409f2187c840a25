"""Bytes that a key has signed, in envelopes of DSSE (https://github.com/secure-systems-lab/dsse), by securesystemslib.

A shared store's records are signed so: the envelope holds the bytes, what they are, and signatures of both.
"""

from __future__ import annotations

import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._signing_keys import PASSWORD, read_private_key, read_public_keys
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from securesystemslib.signer import Key, Signer

    from olivelike._untrusted import Json


class PayloadSigner:
    """Somebody with a private key."""

    def __init__(self, key: Path | EllipticCurvePrivateKey) -> None:
        """Take a key, or read it; its password is in `$OLIVELIKE_KEY_PASSWORD` then.

        Raises:
            UsageError: if it can't be used.
        """
        from securesystemslib.signer import CryptoSigner

        self._signer: Signer = CryptoSigner(
            read_private_key(key, os.environ.get(PASSWORD)) if isinstance(key, Path) else key
        )

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
        from securesystemslib.signer import SSlibKey

        self._path = path
        keys = [SSlibKey.from_crypto(key) for key in read_public_keys(path)]
        self._keys: dict[str, Key] = {key.keyid: key for key in keys}

    def require(self, signer: PayloadSigner) -> None:
        """Make sure that a signer is one of them. Raises `UsageError`."""
        if signer.id not in self._keys:
            raise UsageError(f"{self._path}: lacks the public key of the private one that signs here; add it there")

    def flaw(self, envelope: Any, payload: bytes, kind: str) -> str | None:
        """Return why an envelope is not to be relied on for a payload of a kind; `None` if one of them signed that."""
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import Error

        try:
            read = Envelope.from_dict(envelope)
            if (read.payload, read.payload_type) != (payload, kind):
                return "something else was signed"
            if not read.signatures.keys() & self._keys.keys():
                return "none of the keys has signed it"
            read.verify(list(self._keys.values()), 1)
        except Error:
            return "it was changed after it was signed"
        except (ValueError, TypeError, KeyError, AttributeError, binascii.Error):
            return "its signature is damaged"
        return None


def payload_of(envelope: Any, key: EllipticCurvePublicKey, kind: str) -> bytes:
    """Return what a key has signed as a kind of payload. Raises `ValueError` if it did not."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error
    from securesystemslib.signer import SSlibKey

    try:
        read = Envelope.from_dict(envelope)
        read.verify([SSlibKey.from_crypto(key)], 1)
    except Error as error:
        raise ValueError("the signer did not sign it, or it was changed") from error
    except (TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise ValueError("its signature is damaged") from error
    if read.payload_type != kind:
        raise ValueError("something else was signed")
    found: bytes = read.payload
    return found
