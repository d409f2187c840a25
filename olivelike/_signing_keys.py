"""Keys and certificates of signers, read from PEM files; keys are of the curves that signatures take."""

from __future__ import annotations

import datetime as dt
import os
import re
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import one_line, read_bytes
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

PASSWORD: Final = "OLIVELIKE_KEY_PASSWORD"  # noqa: S105  (the variable's name)
_MAKE_KEY: Final = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out KEY"
CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")
_BEGIN: Final = re.compile(rb"^-----BEGIN (.+?)-----", re.MULTILINE)


def read_pem(path: Path, what: str) -> bytes:
    """Return the bytes of a key or certificate. Raises `UsageError` if they can't be read."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file, and {what} is needed; check the path") from None
    except OSError as error:
        raise UsageError(f"{path}: {what} can't be read: {error.strerror or error}") from None


def password_of(path: Path) -> bytes | None:
    """Return the password of a private key, which `$OLIVELIKE_KEY_PASSWORD` has; `None` for a key that needs none.

    Raises `UsageError` if it is not there.
    """
    if b"ENCRYPTED" not in read_pem(path, "a private key"):
        return None
    if not (password := os.environ.get(PASSWORD)):
        raise UsageError(f"{path}: the key is encrypted; put its password into the environment variable {PASSWORD}")
    return os.fsencode(password)


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Return a private key. Raises `UsageError` if it can't be used; nothing of it is ever told."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = password_of(path)
    try:
        key = load_pem_private_key(read_pem(path, "a private key"), password)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # Their texts may quote the file.
        reason = f"or {PASSWORD} is not its password" if password else f"make one with `{_MAKE_KEY}`"
        raise UsageError(f"{path}: is no private key in PEM form that can be read, {reason}") from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise UsageError(f"{path}: signatures need a key of the curve P-256, P-384 or P-521; `{_MAKE_KEY}` makes one")
    return key


def read_public_keys(path: Path) -> list[EllipticCurvePublicKey]:
    """Return the public keys of a PEM file, at least one. Raises `UsageError` if anything else is in it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = read_pem(path, "a public key")
    if b"PRIVATE KEY" in data:
        raise UsageError(
            f"{path}: is a private key; make its public one with `openssl pkey -in KEY -pubout -out PUBLIC`"
        )
    starts = [found.start() for found in _BEGIN.finditer(data)]
    keys: list[EllipticCurvePublicKey] = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        try:
            key = load_pem_public_key(data[start:end])
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
            keys.clear()
            break
        keys.append(key)
    if not keys:
        raise UsageError(f"{path}: is no public key of the curve P-256, P-384 or P-521 in PEM form")
    return keys


def read_certificates(path: Path) -> list[Certificate]:
    """Return the certificates of a PEM file. Raises `UsageError` if it has none, or one that is not valid today."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        found = load_pem_x509_certificates(read_pem(path, "a certificate"))
    except ValueError as error:
        raise UsageError(f"{path}: is no certificate in PEM form: {one_line(str(error))}") from None
    if reason := next(filter(None, map(not_valid_now, found)), None):
        raise UsageError(f"{path}: the certificate is not valid now: {reason}; have it renewed, or get the present one")
    return found


def not_valid_now(certificate: Certificate) -> str | None:
    """Return why a certificate can't be relied on today; `None` if it can."""
    now = dt.datetime.now(dt.UTC)
    if now > certificate.not_valid_after_utc:
        return f"it ended on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"it begins on {certificate.not_valid_before_utc:%Y-%m-%d}"
    return None


def public_pem(key: EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_name(public: bytes) -> str:
    """Return how a public key is named: as signatures hint at it, by the digest of its PEM form."""
    from olivelike.digest import digest_bytes

    return f"key {digest_bytes(public)}"
