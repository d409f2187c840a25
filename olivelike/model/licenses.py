"""Licences by name: the hub's ids, and what the known ones say of commercial use and of passing weights on.

A name that is not here is not judged. Sources: the hub's list of licences
(https://huggingface.co/docs/hub/repositories-licenses), and the texts of the licences themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_IDS: Final = (
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research "
    "intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c "
    "mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 open-mdw openrail openrail++ osl-3.0 pddl postgresql unlicense "
    "wtfpl zlib"
)
HUB_IDS: Final = frozenset(_IDS.split())
"""Values of `license` in a card; for others it is `other`, with a `license_name`."""


@dataclass(frozen=True)
class Terms:
    """What a licence says of commercial use and of passing weights on."""

    commercial: bool = True
    """Whether it allows commercial use."""
    limit: str | None = None
    """Whom it allows that, if not everybody."""
    restrictions: bool = False
    """Whether it names uses that are forbidden, and has whoever passes weights on bind others to that."""
    derivatives: bool = True
    """Whether changed weights may be passed on."""


_RESTRICTED: Final = Terms(restrictions=True)
_KNOWN: Final = {
    "openrail": _RESTRICTED,
    "openrail++": _RESTRICTED,
    "creativeml-openrail-m": _RESTRICTED,
    "bigscience-openrail-m": _RESTRICTED,
    "bigcode-openrail-m": _RESTRICTED,
    "bigscience-bloom-rail-1.0": _RESTRICTED,
    "gemma": _RESTRICTED,
    "stabilityai-ai-community": Terms(limit="who earns less than 1,000,000 USD a year", restrictions=True),
    "deepfloyd-if-license": Terms(commercial=False, restrictions=True),
    "apple-amlr": Terms(commercial=False),
}
_FREE: Final = frozenset(
    {"apache-2.0", "mit", "isc", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense"}
)
_FORBIDS_TRADE: Final = re.compile(r"(^|[^a-z])(nc|non[- ]?commercial)([^a-z]|$)", re.IGNORECASE)
_FORBIDS_CHANGES: Final = re.compile(r"^cc-by-(nc-)?nd-")

_TITLES: Final = {
    "apache-2": "apache-2.0",
    "apache-license-2.0": "apache-2.0",
    "apache-license,-version-2.0": "apache-2.0",
    "creativeml-open-rail-m": "creativeml-openrail-m",
    "creativeml-open-rail++-m": "openrail++",
    "creativeml-openrail++-m": "openrail++",
    "openrail++-m": "openrail++",
    "flux.1-[dev]-non-commercial": "flux-1-dev-non-commercial-license",
    "flux.1-dev-non-commercial": "flux-1-dev-non-commercial-license",
    "stability-ai-community": "stabilityai-ai-community",
}
"""How else licences are called in metadata and in titles of their texts: in small letters, with hyphens."""
_COMMON_WORDS: Final = re.compile(r"^the-|-licen[cs]e(-agreement)?(-dated-.*)?$")


def license_id(words: str) -> str:
    """Return the usual name of a licence that somebody wrote in words; words that are not known stay as they are."""
    words = " ".join(words.split())
    slug = words.lower().replace(" ", "-")
    bare = _COMMON_WORDS.sub("", slug)
    known = HUB_IDS | _KNOWN.keys() | {*_TITLES.values()}
    return next((name for name in (slug, bare, _TITLES.get(slug), _TITLES.get(bare)) if name in known), words)


def terms_of(name: str) -> Terms | None:
    """Return what is known of a licence; `None` if nothing is."""
    known = _KNOWN.get(name)
    if known is None and name in _FREE:
        known = Terms()
    if _FORBIDS_TRADE.search(name):  # Each non-commercial licence says so by its name, whatever its version.
        known = Terms(commercial=False, derivatives=not _FORBIDS_CHANGES.match(name))
    elif _FORBIDS_CHANGES.match(name):
        known = Terms(derivatives=False)
    return known
