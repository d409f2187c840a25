"""What comes of checking a picture's manifest, by c2pa; nobody is called."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from olivelike._signing_keys import read_certificates, read_pem
from olivelike._untrusted import Json, one_line
from olivelike.extras.credentials.offline import offline
from olivelike.runtime.pictures.picture_signature import PictureSignature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_UNTRUSTED: Final = "signingCredential.untrusted"
_WORDS: Final = {
    "assertion.dataHash.mismatch": "pixels or texts were changed since it was signed",
    "assertion.hashedURI.mismatch": "what the signer said of it was changed",
    "claimSignature.mismatch": "the signature is of something else",
    "signingCredential.expired": "the signer's certificate has ended, and nothing proves that it was signed before",
}
"""Status codes of C2PA that people meet."""
_LONGEST: Final = 200
_MOST: Final = 5


def check_picture(data: bytes, roots: Sequence[Path]) -> PictureSignature:
    """Check the manifest in a picture's file.

    Args:
        data: The file.
        roots: Files of root certificates that are trusted, as PEM.

    Raises:
        UsageError: if a root can't be read.
    """
    from c2pa import C2paError

    for root in roots:
        read_certificates(root)
    try:
        found = _read(data)
        trusted = [root for root in roots if _read(data, root).get("validation_state") == "Trusted"]
    except C2paError.ManifestNotFound:
        return PictureSignature("none")
    except C2paError as error:
        return PictureSignature("invalid", problems=(f"it is damaged: {_said(error)}",))
    manifest = found.get("manifests", {}).get(found.get("active_manifest"))
    if not isinstance(manifest, dict):
        return PictureSignature("invalid", problems=("it is damaged: the manifest that counts is not there",))
    who = manifest.get("signature_info") or {}
    names = [one_line(str(who[name])) for name in ("common_name", "issuer") if who.get(name)]
    makers = manifest.get("claim_generator_info") or []
    failures = {one["code"]: one.get("explanation") or "" for one in found.get("validation_status") or ()}
    failures.pop(_UNTRUSTED, None)
    problems = [_WORDS.get(code) or f"{_said(text)} ({one_line(code)})" for code, text in failures.items()]
    holds = found.get("validation_state") in ("Valid", "Trusted")
    return PictureSignature(
        "invalid" if not holds else "trusted" if trusted else "valid",
        ", ".join(dict.fromkeys(names)) or None,
        who.get("cert_serial_number"),
        _program(makers[0]) if makers else None,
        tuple(map(str, trusted)) if holds else (),
        tuple(problems[:_MOST]),
    )


def _read(data: bytes, root: Path | None = None) -> Json:
    from c2pa import Reader

    anchors = None if root is None else read_pem(root, "a root certificate").decode("ascii", "replace")
    with Reader(_media_type(data), io.BytesIO(data), context=offline(anchors)) as reader:
        found: Json = json.loads(reader.json())
        return found


def _media_type(data: bytes) -> str:
    if data.startswith(b"\x89PNG"):
        return "image/png"
    return "image/jpeg" if data.startswith(b"\xff\xd8") else "image/webp"


def _program(maker: Any) -> str | None:
    """Return name and version of a program, as its manifest has them."""
    said = [str(maker[name]) for name in ("name", "version") if maker.get(name)] if isinstance(maker, dict) else []
    return one_line(" ".join(said))[:_LONGEST] or None


def _said(error: object) -> str:
    return one_line(" ".join(str(error).split()))[:_LONGEST]
