"""Pictures signed with a certificate, by c2pa: a manifest says that they were made by AI, and of what.

The manifest's hard binding is a hash of all of the file but the manifest: pixels and texts, EXIF and XMP.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Final

from olivelike._installed import own_version
from olivelike._signing_keys import read_certificates, read_pem, read_private_key
from olivelike._untrusted import Json, one_line
from olivelike.errors import UsageError
from olivelike.extras.credentials.offline import offline
from olivelike.runtime.pictures.ai_mark import MADE, source_url
from olivelike.runtime.pictures.picture_signature import RECIPE

if TYPE_CHECKING:
    from pathlib import Path

_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_REMEDY: Final = (
    "it takes a certificate that is no root's, with the key usage digitalSignature and the extended key usage "
    "emailProtection, documentSigning or C2PA's, and its own key"
)


def open_signer(certificate: Path, key: Path) -> PictureSigner:
    """Return what signs pictures, after it has signed one.

    Args:
        certificate: PEM file of the signer's certificate, then of those between it and the root.
        key: PEM file of its private key, whose password is in `$OLIVELIKE_KEY_PASSWORD`.

    Raises:
        UsageError: if they can't be used.
    """
    from PIL import Image

    read_certificates(certificate)
    signer, file = PictureSigner(certificate, key), io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    try:
        signer.signed(file.getvalue(), "PNG", source_url(MADE), None)
    except UsageError as error:
        raise UsageError(f"{certificate}: {error}") from None
    return signer


class PictureSigner:
    """Somebody with a certificate and its private key; any thread may ask."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both; raises as `open_signer`."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        private = read_private_key(key)
        self._key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._algorithm = _ALGORITHMS[private.curve.name]
        self._certificate = read_pem(certificate, "a certificate")

    def signed(self, data: bytes, form: str, source_type: str, record: Json | None) -> bytes:
        """Return a picture's file with its manifest.

        Args:
            data: The file.
            form: `PNG`, `JPEG` or `WEBP`.
            source_type: URL of its IPTC digital source type.
            record: What made it, if that is to be told.

        Raises:
            UsageError: if it can't be signed.
        """
        from c2pa import Builder, C2paError, C2paSignerInfo, C2paSigningAlg, Signer

        maker = {"name": "olivelike", "version": own_version()}
        action = {"action": "c2pa.created", "digitalSourceType": source_type, "softwareAgent": maker}
        assertions: list[Json] = [{"label": "c2pa.actions.v2", "created": True, "data": {"actions": [action]}}]
        if record is not None:
            assertions.append({"label": RECIPE, "kind": "Json", "created": True, "data": record})
        # Halves of surrogate pairs have no UTF-8.
        manifest = json.dumps({"claim_generator_info": [maker], "assertions": assertions}, ensure_ascii=False)
        made, algorithm = io.BytesIO(), C2paSigningAlg[self._algorithm]
        try:
            signer = Signer.from_info(C2paSignerInfo(algorithm, self._certificate, self._key, None))
            with signer, Builder(manifest.encode("utf-8", "replace").decode(), context=offline()) as builder:
                builder.sign(signer, f"image/{form.lower()}", io.BytesIO(data), made)
        except C2paError as error:
            # A client of a server may be told: no place of its operator's files is in it.
            raise UsageError(f"can't sign pictures: {one_line(str(error))}; {_REMEDY}") from None
        return made.getvalue()
