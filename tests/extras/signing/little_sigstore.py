"""A Sigstore of one's own on loopback: who gives certificates for logins, and the log that keeps what they signed.

Its answers are signed as the public one's are, so that sigstore's client and verifier run as they are. Formats: the
REST APIs of Fulcio v2 and Rekor v1, RFC 6962 (certificate transparency, Merkle trees), and signed notes.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://login.example.org"
_ISSUER_OF_LOGIN = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_BEGIN = "2020-01-01T00:00:00Z"


def token(identity: str, **changes: object) -> str:
    """Return an identity token, whose signature nobody here looks at."""
    now = int(time.time())
    claims = {"iss": ISSUER, "sub": identity, "aud": "sigstore", "iat": now, "exp": now + 600, **changes}
    parts = (json.dumps({"alg": "HS256", "typ": "JWT"}).encode(), json.dumps(claims).encode(), b"signature")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class LittleSigstore:
    """Keys of the authority, of its log of certificates, and of the log of signatures."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    certificates: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    signatures: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    asked: list[str] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    """Paths that are answered with an error."""
    url: str = ""

    def __enter__(self) -> Self:
        """Listen on loopback."""
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"authorization_endpoint": here.url, "token_endpoint": here.url})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                make = here.certify if self.path.endswith("signingCert") else here.log
                self._answer(make(body, self.headers.get("Authorization", "")))

            def _answer(self, content: object) -> None:
                here.asked.append(self.path)
                data = json.dumps(content).encode()
                self.send_response(503 if self.path in here.refuses else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "little sigstore")])
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only", "crl_sign", "digital_signature"), False,
        )  # fmt: skip
        public = self.authority.public_key()
        self.root = (
            self._certificate(name, public, dt.timedelta(days=1000))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(key_cert_sign=True, **usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def trust_config(self) -> str:
        """Return what a client is told of it."""

        def key(own: ec.EllipticCurvePrivateKey) -> dict[str, object]:
            public = {"rawBytes": _b64(_spki(own)), "keyDetails": "PKIX_ECDSA_P256_SHA_256"}
            return {
                "baseUrl": self.url, "hashAlgorithm": "SHA2_256",
                "publicKey": {**public, "validFor": {"start": _BEGIN}}, "logId": {"keyId": _b64(_id(own))},
            }  # fmt: skip

        service = [{"url": self.url, "majorApiVersion": 1, "validFor": {"start": _BEGIN}, "operator": "little"}]
        root = _b64(self.root.public_bytes(Encoding.DER))
        authority = {
            "subject": {"organization": "little", "commonName": "little sigstore"},
            "certChain": {"certificates": [{"rawBytes": root}]},
            "validFor": {"start": _BEGIN},
        }
        made = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [key(self.signatures)], "ctlogs": [key(self.certificates)],
                "certificateAuthorities": [authority], "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": service, "oidcUrls": service, "rekorTlogUrls": service,
                "rekorTlogConfig": {"selector": "ANY"}, "tsaConfig": {"selector": "ANY"},
            },
        }  # fmt: skip
        return json.dumps(made)

    def _certificate(
        self, name: x509.Name, public: ec.EllipticCurvePublicKey, length: dt.timedelta
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "little sigstore")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=1))
            .not_valid_after(now + length)
        )

    def certify(self, body: dict[str, str], authorization: str) -> dict[str, object]:
        """Return a certificate for whom a token names, with the promise of the log of certificates inside."""
        claims = authorization.split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        request = x509.load_pem_x509_csr(base64.b64decode(body["certificateSigningRequest"]))
        off = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
               "decipher_only", "crl_sign", "key_cert_sign")  # fmt: skip
        public = self.authority.public_key()
        builder = (
            self._certificate(x509.Name([]), request.public_key(), dt.timedelta(minutes=10))
            .add_extension(x509.KeyUsage(digital_signature=True, **dict.fromkeys(off, False)), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(told["sub"])]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER_OF_LOGIN, told["iss"].encode()), critical=False)
        )
        before = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        when = int(time.time() * 1000)
        entry = _id(self.authority) + len(before).to_bytes(3, "big") + before
        promise = _sign(self.certificates, struct.pack("!BBQH", 0, 0, when, 1) + entry + b"\0\0")
        packed = struct.pack("!B32sQHBBH", 0, _id(self.certificates), when, 0, 4, 3, len(promise)) + promise
        listed = struct.pack("!HH", len(packed) + 2, len(packed)) + packed
        octets = b"\x04" + (b"\x81" if len(listed) > 127 else b"") + bytes([len(listed)]) + listed
        made = builder.add_extension(x509.UnrecognizedExtension(_TIMESTAMPS, octets), critical=False).sign(
            self.authority, hashes.SHA256()
        )
        chain = [one.public_bytes(Encoding.PEM).decode() for one in (made, self.root)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def log(self, body: dict[str, dict[str, dict[str, object]]], _: str) -> dict[str, object]:
        """Return the entry of a signature in a log that has no other."""
        proposed = body["spec"]["proposedContent"]
        envelope = json.loads(str(proposed["envelope"]))
        (verifier,) = proposed["verifiers"]
        payload = hashlib.sha256(base64.b64decode(envelope["payload"])).hexdigest()
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(b"").hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": payload},
            "signatures": [{"signature": envelope["signatures"][0]["sig"], "verifier": verifier}],
        }
        content = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}, sort_keys=True).encode()
        root = hashlib.sha256(b"\0" + content).digest()
        note = f"little.log\n1\n{_b64(root)}\n"
        signed = _b64(_id(self.signatures)[:4] + _sign(self.signatures, note.encode()))
        entry = {
            "body": _b64(content), "integratedTime": int(time.time()), "logID": _id(self.signatures).hex(),
            "logIndex": len(self.asked) + 1,
        }  # fmt: skip
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        proof = {
            "checkpoint": f"{note}\n\u2014 little.log {signed}\n", "hashes": [], "logIndex": 0,
            "rootHash": root.hex(), "treeSize": 1,
        }  # fmt: skip
        promise = _b64(_sign(self.signatures, canonical))
        return {"1": {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}
