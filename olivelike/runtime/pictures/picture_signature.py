"""Signatures of pictures: Content Credentials of C2PA (https://spec.c2pa.org), which an extra writes and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from olivelike._extras import needed, place_of
from olivelike._untrusted import Json, read_bytes
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.picture_reading import MOST_BYTES
from olivelike.runtime.pictures.picture_record import PictureSigner

RECIPE: Final = "olivelike.picture"
"""Label of the assertion that has what made a picture, as its record has it."""
_MANIFESTS: Final = b"jumdc2pa\x00\x11\x00\x10\x80\x00\x00\xaa\x00\x38\x9bq"
"""Beginning of the box that describes a store of manifests; a PNG, JPEG or WebP has it as it is."""


@dataclass(frozen=True)
class PictureSignature:
    """A picture's signature as it was found."""

    state: Literal["none", "trusted", "valid", "invalid", "unchecked"]
    """`valid` is what nobody vouches for; `invalid` a change, or a certificate that is no good."""
    signer: str | None = None
    """Name and organisation in the certificate; anybody can make one that says so."""
    serial: str | None = None
    """Serial number of the certificate."""
    made_by: str | None = None
    """Program that signed."""
    trusted_by: tuple[str, ...] = ()
    """Files of those root certificates that the signer's descends from."""
    problems: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return {**asdict(self), "trusted_by": list(self.trusted_by), "problems": list(self.problems)}


def open_picture_signer(certificate: Path | None, key: Path | None) -> PictureSigner | None:
    """Return what signs with a certificate; nothing if none is named.

    Raises `UsageError` if one of both lacks the other, or can't be used, and `MissingError` if the extra or its package
    is not here.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--sign-pictures names a certificate, and --sign-key its private key: give both, or neither")
    signer: PictureSigner = needed("CREDENTIALS", "signer", "--sign-pictures")(certificate, key)
    return signer


def read_signature(path: Path, roots: Sequence[Path] = ()) -> PictureSignature:
    """Return what comes of checking a picture's signature.

    Raises `SourceError` if the picture can't be read, `UsageError` if a root can't, and `MissingError` if roots are
    named and nothing is here that checks.

    Args:
        path: The picture.
        roots: Files of root certificates that are trusted, as PEM.
    """
    try:
        data = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise SourceError(f"{path} can't be read as a picture: {error}; get the file again") from error
    if not roots:
        if _MANIFESTS not in data:
            return PictureSignature("none")
        if place_of("CREDENTIALS", "check") is None or find_spec("c2pa") is None:
            return PictureSignature("unchecked", problems=("pip install 'olivelike[c2pa]' has it checked",))
    found: PictureSignature = needed("CREDENTIALS", "check", "--certificate")(data, roots)
    return found
