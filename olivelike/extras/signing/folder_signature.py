"""What signing and checking have in common: the files that a signature covers, and how a signer is named."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._signing_keys import read_pem
from olivelike._text import did_you_mean_path, listed
from olivelike._untrusted import one_line
from olivelike.engine.output.output_files import is_link
from olivelike.errors import SourceError, UsageError
from olivelike.model.records.output import JOURNAL_FILE
from olivelike.model.records.signature_marks import SIGNATURE_FILE

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from model_signing.hashing import Config

    from olivelike._untrusted import Json

_SHOWN = 5


@dataclass(frozen=True)
class FolderSignature:
    """A signature that was made or held."""

    path: Path
    files: int
    signer: str
    """Subject of a certificate, the digest of a public key, or a login."""
    provenance: bool = False
    """Whether a signed statement says what the folder was made of."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        return {"path": str(self.path), "files": self.files, "signer": self.signer, "provenance": self.provenance}


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
            elif not path.is_dir():
                strange.append(f"{relative} is no regular file")
        if not folders and not names:
            strange.append(f"{here.relative_to(folder).as_posix()} is an empty folder")
    if strange:
        shown = one_line(listed(sorted(strange), _SHOWN))
        raise SourceError(f"{folder}: {shown}; a signature covers regular files alone: put files there, or remove it")
    if JOURNAL_FILE in files:
        raise SourceError(f"{folder}: a run that was interrupted has left it half written; run the workflow again")
    return files - {SIGNATURE_FILE}


def hashing(algorithm: str = "sha256") -> Config:
    """Return how files are hashed: all but the signature, those of git too, through no link."""
    from model_signing.hashing import Config

    # Files of git are left out by default: whoever adds one would not be noticed.
    return (
        Config()
        .use_file_serialization(hashing_algorithm=algorithm)
        .set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)
    )


def read_certificates(path: Path) -> list[Certificate]:
    """Return the certificates of a PEM file. Raises `UsageError` if it has none."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(read_pem(path, "a certificate"))
    except ValueError as error:
        raise UsageError(f"{path}: is no certificate in PEM form: {one_line(str(error))}") from None


def certificate_name(certificate: Certificate) -> str:
    """Return the subject of a certificate, and its SHA-256."""
    from cryptography.hazmat.primitives.hashes import SHA256

    return f"{one_line(certificate.subject.rfc4514_string())} (SHA-256 {certificate.fingerprint(SHA256()).hex()})"


def not_valid_now(certificate: Certificate) -> str | None:
    """Return why a certificate can't be relied on today; `None` if it can."""
    now = dt.datetime.now(dt.UTC)
    if now > certificate.not_valid_after_utc:
        return f"it ended on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"it begins on {certificate.not_valid_before_utc:%Y-%m-%d}"
    return None


def may_sign(certificate: Certificate) -> bool:
    """Tell whether a certificate names a usage that covers signing: digital signature, or code signing."""
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(KeyUsage).value.digital_signature:
            return True
    except ExtensionNotFound:
        pass
    try:
        return ExtendedKeyUsageOID.CODE_SIGNING in extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return False


def _refuse(error: OSError) -> None:
    raise SourceError(f"{error.filename}: can't be read: {error.strerror}; a signature covers every file") from error
