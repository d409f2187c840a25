"""Settings of c2pa under which nothing calls anybody: no manifest, revocation or time is fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from c2pa import Context

_USES: Final = ("1.3.6.1.5.5.7.3.4", "1.3.6.1.5.5.7.3.36", "1.3.6.1.4.1.62558.2.1")
"""Extended key usages of certificates that may sign: emailProtection, documentSigning and C2PA's own for claims; by
itself the library takes the first alone."""


def offline(anchors: str | None = None) -> Context:
    """Return how pictures are signed and checked; `anchors` are root certificates that are trusted, as PEM."""
    from c2pa import Context

    return Context.from_dict(
        {
            "builder": {"thumbnail": {"enabled": False}},
            "verify": {"remote_manifest_fetch": False, "ocsp_fetch": False},
            "trust": {"trust_config": "\n".join(_USES), **({"user_anchors": anchors} if anchors else {})},
        }
    )
