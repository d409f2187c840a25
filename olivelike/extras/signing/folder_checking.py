"""A folder held against its signature: by a public key, or by certificates that the signer's descends from.

model-signing checks the signature and the digests. What it lets pass is refused here: files that a signature
leaves out, such as git's, links, empty folders, and certificates that have ended, since nothing proves when the folder
was signed.
"""

from __future__ import annotations

import base64
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._signing_keys import key_name, public_pem, read_public_keys
from olivelike._text import listed
from olivelike._untrusted import one_line, parse_object, read_bytes
from olivelike.digest import digest_file
from olivelike.errors import MissingError, UsageError, VerificationError
from olivelike.extras.signing.folder_signature import (
    FolderSignature,
    certificate_name,
    covered_files,
    hashing,
    may_sign,
    not_valid_now,
    read_certificates,
)
from olivelike.model.records.signature_marks import SIGNATURE_FILE, claimed_digests, claimed_statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_signing.verifying import Config

    from olivelike._untrusted import Json

_PREDICATE = "https://model_signing/signature/v1.0"
_SHOWN = 5


def check_folder(folder: Path, *, key: Path | None = None, roots: Sequence[Path] = ()) -> FolderSignature:
    """Check that a folder is as its signer left it.

    Args:
        folder: It, with its `model.sig`.
        key: The signer's public key as PEM; or
        roots: certificates as PEM, one of which the signer's descends from.

    Raises:
        UsageError: if neither or both are named, or can't be used.
        SourceError: if there is no such folder, or it holds what no signature covers.
        MissingError: if it is not signed.
        VerificationError: if another has signed it, or anything was changed since.
    """
    if (key is None) == (not roots):
        raise UsageError("name the signer: --key FILE with a public key, or --certificate FILE with a root certificate")
    files = covered_files(folder)
    signature = _read_signature(folder)
    try:
        bundle, statement = parse_object(signature), claimed_statement(signature)
        digests = claimed_digests(statement)
        how: Json = statement["predicate"]["serialization"]
        algorithm, left_out = how["hash_type"], [Path(name) for name in how.get("ignore_paths", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(folder, f"its {SIGNATURE_FILE} is damaged: {one_line(str(error))}") from None
    if statement.get("predicateType") != _PREDICATE or how.get("method") != "files":
        raise _wrong(folder, f"its {SIGNATURE_FILE} is of another form than OMS 1.0 with a digest for each file")
    config, signer = _by_key(folder, key, bundle) if key is not None else _by_certificates(folder, roots, bundle)
    _check(folder, config, signature, algorithm, digests)
    if bare := sorted(name for name in files if any(Path(name).is_relative_to(one) for one in left_out)):
        raise _wrong(folder, f"the signer left out {one_line(listed(bare, _SHOWN))}; remove it")
    if digests.keys() != files:
        raise _wrong(folder, "files came or went while it was read")
    return FolderSignature(folder, len(files), signer)


def _read_signature(folder: Path) -> bytes:
    path = folder / SIGNATURE_FILE
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise MissingError(
            f"{folder}: is not signed: it has no {SIGNATURE_FILE}; ask who made it, or `sign` it"
        ) from None
    except OSError as error:
        raise MissingError(f"{path}: can't be read: {error.strerror or error}") from error


def _by_key(folder: Path, path: Path, bundle: Json) -> tuple[Config, str]:
    from model_signing.verifying import Config

    first, *more = read_public_keys(path)
    if more:
        raise UsageError(f"{path}: holds several keys; name the file of the signer's alone")
    config = Config().use_elliptic_key_verifier(public_key=path)
    if "x509CertificateChain" in _material(bundle):
        raise _wrong(folder, "it is signed with a certificate; name its root with --certificate")
    return config, key_name(public_pem(first))


def _by_certificates(folder: Path, roots: Sequence[Path], bundle: Json) -> tuple[Config, str]:
    from cryptography.x509 import load_der_x509_certificate
    from model_signing.verifying import Config

    for root in roots:
        for one in read_certificates(root):
            if reason := not_valid_now(one):
                raise UsageError(f"{root}: the certificate is not valid now: {reason}")
    material = _material(bundle)
    if "x509CertificateChain" not in material:
        raise _wrong(folder, "it is signed with a key, without a certificate; name the public key with --key")
    try:
        chain = [
            load_der_x509_certificate(base64.b64decode(one["rawBytes"]))
            for one in material["x509CertificateChain"]["certificates"]
        ]
        name = certificate_name(chain[0])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _wrong(folder, f"its certificate is damaged: {one_line(str(error))}") from None
    for one in chain:
        if reason := not_valid_now(one):
            raise _wrong(
                folder,
                f"the certificate of {certificate_name(one)} is not valid now: {reason}; ask for a new signature",
            )
    if not may_sign(chain[0]):
        raise _wrong(folder, f"the certificate of {name} is not for signing")
    return Config().use_certificate_verifier(certificate_chain=list(roots)), name


def _material(bundle: Json) -> dict[str, Any]:
    found = bundle.get("verificationMaterial")
    return found if isinstance(found, dict) else {}


def _check(folder: Path, config: Config, signature: bytes, algorithm: str, digests: dict[str, str]) -> None:
    """Check the signature, and the folder against it; what was read is checked, not what lies there by then."""
    from cryptography.exceptions import InvalidSignature
    from OpenSSL.crypto import Error, X509StoreContextError

    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        read = Path(place) / SIGNATURE_FILE
        read.write_bytes(signature)
        try:
            config.set_hashing_config(hashing(algorithm)).verify(folder.resolve(), read)
        except InvalidSignature:
            raise _wrong(folder, f"the key did not sign it, or its {SIGNATURE_FILE} was changed") from None
        except (Error, X509StoreContextError) as error:
            raise _wrong(
                folder, f"its signer's certificate does not descend from yours: {one_line(str(error))}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            if str(error).startswith("Signature mismatch"):
                raise _wrong(folder, _differences(folder, algorithm, digests)) from None
            if str(error).startswith("Key mismatch"):
                raise _wrong(folder, "another key has signed it") from None
            raise _wrong(folder, f"its {SIGNATURE_FILE} does not hold: {one_line(str(error))}") from None


def _differences(folder: Path, algorithm: str, digests: dict[str, str]) -> str:
    """Return what a folder has otherwise than its signature says, which held."""
    files = covered_files(folder)
    changed = [
        name
        for name in sorted(files & digests.keys())
        if algorithm == "sha256" and digest_file(folder / name) != digests[name]
    ]
    told = {"changed": changed, "added": sorted(files - digests.keys()), "missing": sorted(digests.keys() - files)}
    parts = [f"{word}: {one_line(listed(names, _SHOWN))}" for word, names in told.items() if names]
    return "; ".join(parts) or "files were changed"


def _wrong(folder: Path, what: str) -> VerificationError:
    return VerificationError(f"{folder}: {what}; take the folder anew from who made it")
