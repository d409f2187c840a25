"""A folder's signature made with a private key, and with its certificate inside if there is one.

The bundle is model-signing's. A certificate is put into it here: model-signing itself takes no password
for its key.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._files import write_whole
from olivelike._signing_keys import key_name, public_pem, read_private_key
from olivelike._untrusted import one_line, read_bytes
from olivelike.errors import SourceError, UsageError
from olivelike.extras.signing.folder_signature import (
    FolderSignature,
    certificate_name,
    covered_files,
    hashing,
    may_sign,
    not_valid_now,
    read_certificates,
)
from olivelike.model.records.signature_marks import SIGNATURE_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.x509 import Certificate


def sign_folder(
    folder: Path, key: Path, *, password: str | None = None, certificate: Path | None = None, chain: Sequence[Path] = ()
) -> FolderSignature:
    """Sign all files of a folder, and write the signature as its `model.sig`, in place of an earlier one.

    Args:
        folder: It; links and empty folders are refused.
        key: Private key as PEM.
        password: Of the key, if it is encrypted.
        certificate: Certificate of the key as PEM.
        chain: Certificates between that one and the root.

    Raises:
        UsageError: if the key or a certificate can't be used.
        SourceError: if the folder has no files, or can't be signed.
    """
    from model_signing.signing import Config

    public = public_pem(read_private_key(key, password).public_key())
    certificates = _certificates(certificate, chain, public)
    if not (files := covered_files(folder)):
        raise SourceError(f"{folder}: has no file to sign")
    config = Config().use_elliptic_key_signer(private_key=key, password=password.encode() if password else None)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / SIGNATURE_FILE
        try:
            config.set_hashing_config(hashing()).sign(folder.resolve(), made)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{folder}: can't be signed: {one_line(str(error))}; sign it once no run writes"
            ) from error
        signature = read_bytes(made)
    if certificates:
        signature = _with_certificates(signature, certificates)
    path = folder / SIGNATURE_FILE
    try:
        write_whole(path, signature)
    except OSError as error:
        raise SourceError(f"{path}: can't be written: {error.strerror}; sign a copy that you may write") from error
    return FolderSignature(path, len(files), certificate_name(certificates[0]) if certificates else key_name(public))


def _certificates(path: Path | None, chain: Sequence[Path], public: bytes) -> list[Certificate]:
    """Return the signer's certificate and those above it; none without one."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if path is None:
        if chain:
            raise UsageError(f"--chain {chain[0]}: is above a certificate; name that with --certificate")
        return []
    own, *above = read_certificates(path)
    if own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) != public:
        raise UsageError(f"{path}: is the certificate of another key; name that of --key")
    if reason := not_valid_now(own):
        raise UsageError(f"{path}: the certificate is not valid now: {reason}; have it renewed")
    if not may_sign(own):
        raise UsageError(
            f"{path}: the certificate is not for signing; get one whose key usage has digitalSignature, or whose "
            "extended key usage has codeSigning"
        )
    return [own, *above, *(one for other in chain for one in read_certificates(other))]


def _with_certificates(signature: bytes, certificates: Sequence[Certificate]) -> bytes:
    """Return a bundle with certificates in place of the hint at a key; what is signed does not depend on either."""
    from cryptography.hazmat.primitives.serialization import Encoding

    bundle: dict[str, Any] = json.loads(signature)
    chain = [{"rawBytes": base64.b64encode(one.public_bytes(Encoding.DER)).decode()} for one in certificates]
    bundle["verificationMaterial"] = {"x509CertificateChain": {"certificates": chain}, "tlogEntries": []}
    return json.dumps(bundle).encode()
