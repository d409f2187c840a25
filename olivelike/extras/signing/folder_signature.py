"""What signing and checking have in common: the files that a signature covers, and how a signer is named."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._signing_keys import CURVES
from olivelike._text import did_you_mean_path, listed
from olivelike._untrusted import Json, one_line
from olivelike.engine.output.output_files import is_link
from olivelike.errors import MissingError, SourceError
from olivelike.model.records.output import JOURNAL_FILE, OutputRecord
from olivelike.model.records.signature_marks import SIGNATURE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate
    from model_signing.hashing import Config


@dataclass(frozen=True)
class FolderSignature:
    """A signature that was made or held."""

    path: Path
    files: int
    signer: str
    """Subject of a certificate, the digest of a public key, or a login."""
    provenance: bool = False
    """Whether a signed statement says what the folder was made of."""
    bom: bool = False
    """Whether a bill of materials lists its files."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return {**vars(self), "path": str(self.path)}


def covered_files(folder: Path) -> set[str]:
    """Return the files that a folder's signature covers: all but itself.

    Raises:
        SourceError: if there is no folder, or it holds what a signature can't cover: links, devices, empty folders, or
            what an interrupted run has left.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder; {did_you_mean_path(folder, 'check the path')}")
    files: set[str] = set()
    strange: list[str] = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        here = Path(place)
        for path in (here / name for name in (*folders, *names)):
            relative = path.relative_to(folder).as_posix()
            if is_link(path):
                strange.append(f"{relative} is a link")
            elif path.is_file():
                files.add(relative)
                strange += [] if os.access(path, os.R_OK) else [f"{relative} may not be read"]
            elif not path.is_dir():
                strange.append(f"{relative} is no regular file")
        if not folders and not names:
            strange.append(f"{here.relative_to(folder).as_posix()} is an empty folder")
    if strange:
        raise SourceError(
            f"{folder}: {shown(strange)}; a signature covers regular files alone: put files there, or remove it"
        )
    if JOURNAL_FILE in files:
        raise SourceError(f"{folder}: a run that was interrupted has left it half written; run the workflow again")
    return files - {SIGNATURE_FILE}


def unlike_files(folder: Path, made: Mapping[str, str], digests: Mapping[str, str]) -> list[str]:
    """Return the files of an output of which a list says something else than is so, or nothing.

    Raises `SourceError` if the folder is no output.

    Args:
        folder: It.
        made: What the list says.
        digests: What is so.
    """
    unlike = [name for name, digest in made.items() if digests.get(name) != digest]
    return unlike + [name for name in OutputRecord.require(folder).files if name not in made]


def hashing(algorithm: str = "sha256") -> Config:
    """Return how files are hashed: all but the signature, those of git too, through no link."""
    from model_signing.hashing import Config

    # Files of git are left out by default: whoever adds one would not be noticed.
    return (
        Config()
        .use_file_serialization(hashing_algorithm=algorithm)
        .set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)
    )


def shown(names: Iterable[str]) -> str:
    """Return the first names of files on one line."""
    return one_line(listed(sorted(names), 5))


@contextlib.contextmanager
def scratch_file(data: bytes = b"") -> Iterator[Path]:
    """Yield a file of these bytes that vanishes. Raises `MissingError` if there is no room for it."""
    try:
        place = tempfile.TemporaryDirectory()
        path = Path(place.name) / SIGNATURE_FILE
        path.write_bytes(data)
    except OSError as error:
        raise MissingError(
            f"no temporary file can be written: {error.strerror}; free some space, or name another folder by $TMPDIR"
        ) from error
    with place:
        yield path


def certificate_name(certificate: Certificate) -> str:
    """Return the subject of a certificate, and its SHA-256."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return f"{one_line(certificate.subject.rfc4514_string())} (SHA-256 {certificate.fingerprint(SHA256()).hex()})"


def signing_key(certificate: Certificate) -> EllipticCurvePublicKey | None:
    """Return the key of a certificate that is for signing: for digital signatures, or for code; `None` of others."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import ExtendedKeyUsage, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key, values = certificate.public_key(), [one.value for one in certificate.extensions]
    may_sign = any(isinstance(value, KeyUsage) and value.digital_signature for value in values) or any(
        isinstance(value, ExtendedKeyUsage) and ExtendedKeyUsageOID.CODE_SIGNING in value for value in values
    )
    return key if may_sign and isinstance(key, EllipticCurvePublicKey) and key.curve.name in CURVES else None


def _refuse(error: OSError) -> None:
    raise SourceError(f"{error.filename}: can't be read: {error.strerror}; a signature covers every file") from error
