"""A folder held against its signature: by a public key, by certificates that the signer's descends from, or by a login.

model-signing checks the signature and the digests. What it lets pass is refused here: files that a signature
leaves out, such as git's, links, empty folders, and certificates that have ended, since nothing proves when the folder
was signed.
"""

from __future__ import annotations

import base64
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._signing_keys import key_name, not_valid_now, public_pem, read_certificates, read_public_keys
from olivelike._untrusted import Json, one_line, parse_object, read_bytes
from olivelike.digest import digest_bytes, digest_file
from olivelike.errors import MissingError, UsageError, VerificationError
from olivelike.extras.signing.folder_signature import (
    FolderSignature,
    certificate_name,
    covered_files,
    hashing,
    scratch_file,
    shown,
    signing_key,
    unlike_files,
)
from olivelike.extras.signing.provenance import MEDIA_TYPE, products
from olivelike.extras.signing.signed_payloads import named_keys, payload_of
from olivelike.extras.signing.signers import identity_name, read_trust, sigstore_reached
from olivelike.model.records.signature_marks import MOST_BYTES, SIGNATURE_FILE, claimed_digests, claimed_statement
from olivelike.model.records.users_files import BOM_FILE, PROVENANCE_FILE, listed_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from model_signing.verifying import Config

_PREDICATE = "https://model_signing/signature/v1.0"
_KINDS: Final = {
    "publicKey": ("it is signed with a key", "name its public one with --key"),
    "x509CertificateChain": ("it is signed with a certificate", "name its root with --certificate"),
    "certificate": ("it is signed by a login", "name that with --identity and --issuer"),
}
"""Kinds of signers, by the field of a bundle that names one, and how to check them."""


@dataclass(frozen=True)
class Login:
    """Somebody who signed with a login in place of a key."""

    identity: str
    """Mail address, or the address of a CI's workflow."""
    issuer: str
    """Address of who vouched for that login."""
    trust: Path | None = None
    """Client trust config of a Sigstore of one's own; by default the public one's."""


@dataclass(frozen=True)
class _Expected:
    """Who is expected to have signed."""

    name: str
    config: Config
    statement: Callable[[bytes], bytes]
    """Returns what the bundle of a statement says. Raises `ValueError` if that one did not sign it."""


def check_folder(
    folder: Path, *, key: Path | None = None, roots: Sequence[Path] = (), login: Login | None = None
) -> FolderSignature:
    """Check that a folder is as its signer left it, and what the statement about it says, if it has one.

    Args:
        folder: It, with its `model.sig`.
        key: The signer's public key as PEM; or
        roots: certificates as PEM, one of which the signer's descends from; or
        login: whom Sigstore has seen sign.

    Raises:
        UsageError: if none of them or several are named, or can't be used.
        SourceError: if there is no such folder, or it holds what no signature covers.
        MissingError: if it is not signed, or Sigstore's roots can't be had.
        VerificationError: if another has signed it, or anything was changed since.
    """
    if (key is not None) + bool(roots) + (login is not None) != 1:
        raise UsageError(
            "name the signer: --key FILE with a public key, --certificate FILE with a root certificate, or --identity "
            "and --issuer of a login"
        )
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
    if key is not None:
        expected = _by_key(folder, key, bundle)
    elif login is not None:
        expected = _by_login(folder, login, bundle)
    else:
        expected = _by_certificates(folder, roots, bundle)
    _check(folder, expected, signature, algorithm, digests)
    if bare := [name for name in files if any(Path(name).is_relative_to(one) for one in left_out)]:
        raise _wrong(folder, f"the signer left out {shown(bare)}; remove it")
    if digests.keys() != files:
        raise _wrong(folder, "files came or went while it was read")
    about: dict[str, Callable[[bytes], dict[str, str]]]
    about = {PROVENANCE_FILE: lambda data: products(expected.statement(data)), BOM_FILE: listed_digests}
    told = {name: _check_about(folder, name, read, algorithm, digests) for name, read in about.items() if name in files}
    return FolderSignature(
        folder, len(files), expected.name, provenance=PROVENANCE_FILE in told, bom=told.get(BOM_FILE, False)
    )


def _check_about(
    folder: Path, name: str, read: Callable[[bytes], dict[str, str]], algorithm: str, digests: dict[str, str]
) -> bool:
    """Check that a signed file says of the others what they are: the statement, by the same signer, or the bill.

    Returns whether it speaks of them: a bill of another program's does not.

    Args:
        folder: It.
        name: The file.
        read: Returns the digests that it says. Raises `ValueError` if it does not hold.
        algorithm: By which the folder was signed.
        digests: What was signed.
    """
    try:
        data = read_bytes(folder / name, MOST_BYTES)
        made = read(data)
        if made and (digest_bytes(data) != digests[name] or algorithm != "sha256"):
            raise ValueError("it changed while it was read, or was signed by another digest than SHA-256")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _wrong(folder, f"its {name} does not hold: {one_line(str(error))}") from None
    if not made:
        return False
    if unlike := unlike_files(folder, made, digests):
        raise _wrong(folder, f"its {name} is of other files, by {shown(unlike)}")
    return True


def _read_signature(folder: Path) -> bytes:
    path = folder / SIGNATURE_FILE
    try:
        return read_bytes(path, MOST_BYTES)
    except FileNotFoundError:
        raise MissingError(
            f"{folder}: is not signed: it has no {SIGNATURE_FILE}; ask who made it, or `sign` it"
        ) from None
    except OSError as error:
        raise MissingError(f"{path}: can't be read: {error.strerror or error}") from error


def _by_key(folder: Path, path: Path, bundle: Json) -> _Expected:
    from model_signing.verifying import Config

    first, *more = read_public_keys(path)
    if more:
        raise UsageError(f"{path}: holds several keys; name the file of the signer's alone")
    config = Config().use_elliptic_key_verifier(public_key=path)
    _require_kind(folder, bundle, "publicKey")

    def statement(data: bytes) -> bytes:
        return payload_of(parse_object(data)["dsseEnvelope"], named_keys([first]), MEDIA_TYPE)

    return _Expected(key_name(public_pem(first)), config, statement)


def _by_login(folder: Path, login: Login, bundle: Json) -> _Expected:
    from model_signing.verifying import Config
    from sigstore.errors import Error
    from sigstore.models import Bundle
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    _require_kind(folder, bundle, "certificate")
    trust = read_trust(login.trust)
    with sigstore_reached():
        verifier = Verifier(trusted_root=trust.trusted_root)
        config = Config().use_sigstore_verifier(
            identity=login.identity, oidc_issuer=login.issuer, trust_config=login.trust
        )

    def statement(data: bytes) -> bytes:
        policy = Identity(identity=login.identity, issuer=login.issuer)
        try:
            kind, payload = verifier.verify_dsse(Bundle.from_json(data), policy)
        except Error as error:
            raise ValueError(str(error)) from error
        if kind != MEDIA_TYPE:
            raise ValueError("something else was signed")
        return bytes(payload)

    return _Expected(identity_name(login.identity, login.issuer), config, statement)


def _by_certificates(folder: Path, roots: Sequence[Path], bundle: Json) -> _Expected:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from model_signing.verifying import Config

    for root in roots:
        read_certificates(root)
    _require_kind(folder, bundle, "x509CertificateChain")
    try:
        chain = [x509.load_der_x509_certificate(one) for one in _chain(bundle)]
        names, ended = [*map(certificate_name, chain)], [*map(not_valid_now, chain)]
        key = signing_key(chain[0])
    except (
        ValueError, KeyError, TypeError, IndexError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ) as error:  # fmt: skip
        raise _wrong(folder, f"its certificate is damaged: {one_line(str(error))}") from None
    for name, reason in zip(names, ended, strict=True):
        if reason:
            raise _wrong(folder, f"the certificate of {name} is not valid now: {reason}", "ask for a new signature")
    if key is None:
        raise _wrong(folder, f"the certificate of {names[0]} is not for signing", "ask for a signature by another")
    by_it = named_keys([key])

    def statement(data: bytes) -> bytes:
        found = parse_object(data)
        if _chain(found)[0] != _chain(bundle)[0]:
            raise ValueError("another certificate has signed it")
        return payload_of(found["dsseEnvelope"], by_it, MEDIA_TYPE)

    return _Expected(names[0], Config().use_certificate_verifier(certificate_chain=list(roots)), statement)


def _chain(bundle: Json) -> list[bytes]:
    """Return the certificates of a bundle, the signer's first."""
    certificates = bundle["verificationMaterial"]["x509CertificateChain"]["certificates"]
    return [base64.b64decode(one["rawBytes"]) for one in certificates]


def _require_kind(folder: Path, bundle: Json, kind: str) -> None:
    """Make sure that a bundle is of such a signer as somebody has named. Raises `VerificationError`."""
    material = bundle.get("verificationMaterial")
    found = next((one for one in _KINDS if isinstance(material, dict) and one in material), None)
    if found != kind:
        raise _wrong(folder, *(_KINDS[found] if found else (f"its {SIGNATURE_FILE} names no signer",)))


def _check(folder: Path, expected: _Expected, signature: bytes, algorithm: str, digests: dict[str, str]) -> None:
    """Check the signature, and the folder against it; what was read is checked, not what lies there by then."""
    from cryptography.exceptions import InvalidSignature
    from OpenSSL.crypto import Error, X509StoreContextError
    from sigstore.errors import Error as SigstoreError

    with scratch_file(signature) as read, contextlib.redirect_stdout(sys.stderr):
        try:
            expected.config.set_hashing_config(hashing(algorithm)).verify(folder.resolve(), read)
        except InvalidSignature:
            raise _wrong(folder, f"the key did not sign it, or its {SIGNATURE_FILE} was changed") from None
        except (Error, X509StoreContextError) as error:
            raise _wrong(
                folder, f"its signer's certificate does not descend from yours: {one_line(str(error))}"
            ) from None
        except SigstoreError as error:
            raise _wrong(folder, f"{expected.name} did not sign it: {one_line(str(error))}") from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            if str(error).startswith("Signature mismatch"):
                raise _wrong(folder, _differences(folder, algorithm, digests)) from None
            if str(error).startswith("Key mismatch"):
                raise _wrong(folder, "another key has signed it", "name that of who made it, or take it anew") from None
            raise _wrong(folder, f"its {SIGNATURE_FILE} does not hold: {one_line(str(error))}") from None


def _differences(folder: Path, algorithm: str, digests: dict[str, str]) -> str:
    """Return what a folder has otherwise than its signature says, which held."""
    files = covered_files(folder)
    both = files & digests.keys() if algorithm == "sha256" else ()
    changed = {name for name in both if digest_file(folder / name) != digests[name]}
    told = {"changed": changed, "added": files - digests.keys(), "missing": digests.keys() - files}
    parts = [f"{word}: {shown(names)}" for word, names in told.items() if names]
    return "; ".join(parts) or "files were changed"


def _wrong(folder: Path, what: str, remedy: str = "take the folder anew from who made it") -> VerificationError:
    return VerificationError(f"{folder}: {what}; {remedy}")
