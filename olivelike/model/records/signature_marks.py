"""`model.sig` of a folder, its signature: what it claims to cover. Nothing here checks that the claim is true.

The format is OpenSSF Model Signing 1.0: a Sigstore bundle with an in-toto statement, which
names each file with its digest.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from olivelike._untrusted import Json, parse_object, read_bytes
from olivelike.digest import digest_file
from olivelike.model.records.output import RECORD_FILE

SIGNATURE_FILE: Final = "model.sig"
"""No file of the output: who signs writes it, and a run leaves it alone."""
MOST_BYTES: Final = 64 << 20
"""Most bytes of what names each file of a folder."""


def claimed_statement(signature: bytes) -> Json:
    """Return the in-toto statement inside a signature. Raises `ValueError` if it has none."""
    try:
        payload = base64.b64decode(parse_object(signature)["dsseEnvelope"]["payload"], validate=True)
    except (KeyError, TypeError) as error:
        raise ValueError("it is no bundle with a signed statement") from error
    return parse_object(payload)


def claimed_digests(statement: Json) -> dict[str, str]:
    """Return the digest of each file that a statement names. Raises `ValueError` if it has no list of files."""
    try:
        return {one["name"]: one["digest"] for one in statement["predicate"]["resources"]}
    except (KeyError, TypeError) as error:
        raise ValueError("its statement has no list of files") from error


def is_outdated_signature(folder: Path) -> bool:
    """Tell whether a folder's signature is damaged, or of another `olivelike.json` than the folder has now."""
    try:
        signature = read_bytes(folder / SIGNATURE_FILE, MOST_BYTES)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        signed = claimed_digests(claimed_statement(signature)).get(RECORD_FILE)
    except ValueError:
        return True
    return signed != digest_file(folder / RECORD_FILE)
