"""Who signs: somebody with a private key and maybe its certificate, or somebody whom Sigstore knows by a login.

Each makes the signature of a folder, which is model-signing's, and of a statement about it. Both are Sigstore bundles.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from olivelike._signing_keys import key_name, password_of, public_pem, read_certificates, read_pem, read_private_key
from olivelike._untrusted import Json, one_line
from olivelike.digest import digest_bytes
from olivelike.errors import MissingError, OlivelikeError, UsageError
from olivelike.extras.signing.folder_signature import certificate_name, hashing, signing_key
from olivelike.extras.signing.provenance import MEDIA_TYPE
from olivelike.extras.signing.signed_payloads import PayloadSigner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken

_BUNDLE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
TOKEN: Final = "OLIVELIKE_IDENTITY_TOKEN"  # noqa: S105  (the variable's name)


class FolderSigner(Protocol):
    """Somebody who signs folders."""

    @property
    def name(self) -> str:
        """How checks name the signer."""

    def sign(self, folder: Path, bundle: Path) -> None:
        """Write the bundle of a folder. Raises `OSError` or `ValueError` if it can't be read."""

    def finished(self, bundle: bytes) -> bytes:
        """Return the bundle of a folder with all that the signer puts into it."""

    def signed(self, statement: bytes) -> bytes:
        """Return the bundle of a statement."""


class KeySigner:
    """Somebody with a private key.

    A certificate is put into bundles here, over signatures that were made with the key: model-signing itself takes no
    password for a certificate's key, and what is signed depends on neither.
    """

    def __init__(self, key: Path, *, certificate: Path | None = None, chain: Sequence[Path] = ()) -> None:
        """Read key and certificates.

        Args:
            key: Private key as PEM.
            certificate: Certificate of the key as PEM.
            chain: Certificates between that one and the root.

        Raises:
            UsageError: if one can't be used.
        """
        self._path, self._key = key, read_private_key(key)
        self._public = public_pem(self._key.public_key())
        self._certificates = _certificates(certificate, chain, self._key.public_key())

    @property
    def name(self) -> str:
        """Subject of the certificate, or digest of the public key."""
        return certificate_name(self._certificates[0]) if self._certificates else key_name(self._public)

    def sign(self, folder: Path, bundle: Path) -> None:
        """Write the bundle of a folder."""
        from model_signing.signing import Config

        password: Any = password_of(self._path)
        config = Config().use_elliptic_key_signer(private_key=self._path, password=password)
        config.set_hashing_config(hashing()).sign(folder, bundle)

    def finished(self, bundle: bytes) -> bytes:
        """Return the bundle of a folder with the certificates in place of the hint at a key."""
        if not self._certificates:
            return bundle
        return json.dumps({**json.loads(bundle), "verificationMaterial": self._material}).encode()

    def signed(self, statement: bytes) -> bytes:
        """Return the bundle of a statement."""
        envelope = PayloadSigner(self._key).signed(statement, MEDIA_TYPE)
        made = {"mediaType": _BUNDLE, "verificationMaterial": self._material, "dsseEnvelope": envelope}
        return json.dumps(made).encode()

    @property
    def _material(self) -> Json:
        from cryptography.hazmat.primitives.serialization import Encoding

        if not self._certificates:
            return {"publicKey": {"hint": digest_bytes(self._public)}, "tlogEntries": []}
        chain = [{"rawBytes": base64.b64encode(one.public_bytes(Encoding.DER)).decode()} for one in self._certificates]
        return {"x509CertificateChain": {"certificates": chain}, "tlogEntries": []}


@dataclass(frozen=True)
class KeylessSigner:
    """Somebody who logs in: Sigstore gives a certificate for ten minutes, and writes it into a public log.

    The log names the login for ever. Raises `MissingError` wherever the servers can't be had or refuse.
    """

    token: str | None = None
    """Identity token of OpenID Connect; by default that of a CI that gives one, or a login in the browser."""
    trust: Path | None = None
    """Client trust config of a Sigstore of one's own, as JSON; by default the public one's, by TUF."""

    @property
    def name(self) -> str:
        """Login, and who vouches for it."""
        return identity_name(self._identity.identity, self._identity.federated_issuer)

    def sign(self, folder: Path, bundle: Path) -> None:
        """Write the bundle of a folder."""
        from model_signing.signing import Config

        token = str(self._identity)
        with sigstore_reached():
            config = Config().use_sigstore_signer(identity_token=token, trust_config=self.trust)
            config.set_hashing_config(hashing()).sign(folder, bundle)

    def finished(self, bundle: bytes) -> bytes:
        """Return the bundle as it is."""
        return bundle

    def signed(self, statement: bytes) -> bytes:
        """Return the bundle of a statement."""
        from sigstore.dsse import Statement
        from sigstore.sign import SigningContext

        with sigstore_reached(), SigningContext.from_trust_config(self._trusted).signer(self._identity) as signer:
            return str(signer.sign_dsse(Statement(statement)).to_json()).encode()

    @cached_property
    def _trusted(self) -> ClientTrustConfig:
        return read_trust(self.trust)

    @cached_property
    def _identity(self) -> IdentityToken:
        from sigstore.errors import Error
        from sigstore.oidc import IdentityToken, Issuer, detect_credential

        trusted = self._trusted  # It is read first, so that a wrong file is told before anybody logs in.
        if self.token is not None:
            try:
                return IdentityToken(self.token)
            except Error as error:  # The text may not quote it.
                raise UsageError(
                    f"the identity token in ${TOKEN} can't be used: {one_line(str(error))}; get a new one"
                ) from None
        with sigstore_reached():
            found = detect_credential()
            if found is not None:
                return IdentityToken(found)
            return Issuer(trusted.signing_config.get_oidc_url()).identity_token()


def read_trust(path: Path | None) -> ClientTrustConfig:
    """Return the servers and roots of a Sigstore.

    Raises:
        UsageError: if the file is none.
        MissingError: if there is no file, and the public Sigstore's can't be had.
    """
    from sigstore.models import ClientTrustConfig

    if path is None:
        with sigstore_reached():
            return ClientTrustConfig.production()
    try:
        return ClientTrustConfig.from_json(read_pem(path, "a trust config").decode())
    except ValueError as error:
        raise UsageError(f"{path}: is no client trust config of Sigstore: {one_line(str(error))}") from None


@contextlib.contextmanager
def sigstore_reached() -> Iterator[None]:
    """Tell what goes wrong with Sigstore's servers as `MissingError`; nothing was written then."""
    try:
        yield
    except OlivelikeError:
        raise
    except Exception as error:
        causes = [error, error.__cause__, error.__context__]
        told = next((text for cause in causes if cause is not None and (text := one_line(str(cause)))), "")
        raise MissingError(
            f"Sigstore can't be reached, or refuses: {told or type(error).__name__}; connect and try again, name a "
            "Sigstore of your own with --trust-config, or use a key"
        ) from error


def identity_name(identity: str, issuer: str) -> str:
    """Return how a login is named."""
    return f"{one_line(identity)} (login at {one_line(issuer)})"


def _certificates(path: Path | None, chain: Sequence[Path], public: EllipticCurvePublicKey) -> list[Certificate]:
    """Return the signer's certificate and those above it; none without one."""
    if path is None:
        if chain:
            raise UsageError(f"--chain {chain[0]}: is above a certificate; name that with --certificate")
        return []
    own, *above = read_certificates(path)
    if (key := signing_key(own)) is None:
        raise UsageError(
            f"{path}: the certificate is not for signing; get one whose key usage has digitalSignature, or whose "
            "extended key usage has codeSigning"
        )
    if key != public:
        raise UsageError(f"{path}: is the certificate of another key; name that of --key")
    return [own, *above, *(one for other in chain for one in read_certificates(other))]
