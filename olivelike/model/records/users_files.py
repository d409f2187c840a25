"""Files beside an output that people make of it: no run writes, checks or removes them, and no result may bring one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from olivelike._untrusted import parse_object, read_bytes
from olivelike.digest import digest_file
from olivelike.model.records.card_marks import CARD_FILE
from olivelike.model.records.output import RECORD_FILE
from olivelike.model.records.signature_marks import MOST_BYTES, SIGNATURE_FILE

BOM_FILE: Final = "bom.cdx.json"
"""Bill of materials, named as CycloneDX recommends."""
PROVENANCE_FILE: Final = "provenance.sigstore.json"
"""Signed statement of what it was made of and how."""
USERS_FILES: Final = (CARD_FILE, SIGNATURE_FILE, BOM_FILE, PROVENANCE_FILE)


def is_outdated_bom(folder: Path) -> bool:
    """Tell whether a folder's bill of materials is damaged, or of another `olivelike.json` than the folder has now.

    One that names none is another program's, and nothing is said of it.
    """
    try:
        told = listed_digests(read_bytes(folder / BOM_FILE, MOST_BYTES))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    record = folder / RECORD_FILE
    return bool(told) and (not record.is_file() or told[RECORD_FILE] != digest_file(record))


def listed_digests(bill: bytes) -> dict[str, str]:
    """Return the digest of each file that a bill of materials lists; none where it does not list `olivelike.json`.

    Such a one is another program's. Raises `ValueError` for what is no bill, or has two digests for a file.
    """
    files: set[tuple[str, str]] = set()
    try:
        listed = list(parse_object(bill)["components"])
        for one in listed:
            listed += one.get("components", ())  # The files of a network are in it.
            if one["type"] == "file":
                digests = (hashed["content"] for hashed in one.get("hashes", ()) if hashed["alg"] == "SHA-256")
                files.add((str(one["name"]), str(next(digests, ""))))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("it is no bill of materials") from error
    found = dict(files)
    if RECORD_FILE not in found:
        return {}
    if len(found) != len(files):
        raise ValueError("it has two digests for a file")
    return found
