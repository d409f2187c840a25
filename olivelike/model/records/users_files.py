"""Files beside an output that people make of it: no run writes, checks or removes them, and no result may bring one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from olivelike._untrusted import read_object
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
        components = read_object(folder / BOM_FILE, MOST_BYTES)["components"]
        told = [one["hashes"][0]["content"] for one in components if one["name"] == RECORD_FILE]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError):
        return True
    record = folder / RECORD_FILE
    return bool(told) and (not record.is_file() or told != [digest_file(record)])
