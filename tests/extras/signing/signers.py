"""Keys and certificates that are made for a test, and a folder that takes milliseconds to sign."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from olivelike.model.records.output import ComponentRecord, OutputFile
from tests.fixtures.sample_records import write_output_record

NOW = dt.datetime.now(dt.UTC)
YEAR = dt.timedelta(days=365)
Key = ec.EllipticCurvePrivateKey


def write_key(folder: Path, name: str, password: bytes | None = None, key: object = None) -> tuple[Path, Path, Key]:
    """Return the files `NAME.key` and `NAME.pub`, and the key."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    how = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public, key


def rsa_key() -> object:
    return rsa.generate_private_key(65537, 2048)


def certificate(
    subject: str, key: Key, issuer: str, issuer_key: Key, *, root: bool = False, usage: bool = True,
    begin: dt.datetime = NOW - YEAR, end: dt.datetime = NOW + YEAR,
) -> bytes:  # fmt: skip
    """Return a certificate as PEM."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=root, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=usage and not root, key_cert_sign=root, crl_sign=root, content_commitment=False,
                key_encipherment=not usage, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )  # fmt: skip
    return builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM)


def write_folder(folder: Path) -> Path:
    """Write files as an output has them, without a network in any."""
    for name in ("model_index.json", "olivelike.json", "README.md", "unet/model.onnx", "unet/weights.pb", "vae/empty"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name.endswith("empty") else name.encode() * 20)
    return folder


def write_record(folder: Path, weights: bytes) -> Path:
    """Write an output of one network, whose record names its file."""
    path = folder / "unet" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights)
    write_output_record(
        folder,
        components={"unet": ComponentRecord("key")},
        files={"unet/model.onnx": OutputFile(len(weights), hashlib.sha256(weights).hexdigest())},
    )
    return folder
