"""Certificates that may sign pictures, and their roots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.certificates import EMAIL, certificate, write_key

DOCUMENTS, CLAIMS, CODE = "1.3.6.1.5.5.7.3.36", "1.3.6.1.4.1.62558.2.1", "1.3.6.1.5.5.7.3.3"
"""Further extended key usages."""


def write_certificate(folder: Path, name: str = "studio", issuer: str = "root", **how: Any) -> tuple[Path, Path]:
    """Write `NAME.pem`, `NAME.key` and `ISSUER.pem`; return the first two."""
    _, _, root = write_key(folder, issuer)
    private, _, key = write_key(folder, name, how.pop("password", None), how.pop("key", None))
    (folder / f"{issuer}.pem").write_bytes(
        certificate("Root", root, "Root", root, root=True, organisation="Studio Ltd")
    )
    how = {"uses": (EMAIL,), "organisation": "Studio Ltd", **how}
    path = folder / f"{name}.pem"
    path.write_bytes(certificate("The Studio", key, "Root", root, **how))
    return path, private
