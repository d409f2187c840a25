"""The mark that a picture was made by AI: IPTC's digital source type in its XMP, written and read.

The property is `Iptc4xmpExt:DigitalSourceType` of the IPTC Photo Metadata Standard, its values are those of
http://cv.iptc.org/newscodes/digitalsourcetype. XMP is part 1 of ISO 16684; where a file keeps it is in part 3.
"""

from __future__ import annotations

import re
from typing import Final

XMP_TEXT: Final = "XML:com.adobe.xmp"
"""Keyword of the text chunk that holds a PNG's XMP."""
MADE: Final = "trainedAlgorithmicMedia"
"""Created using generative AI: every pixel is a network's."""
COMPOSITE: Final = "compositeWithTrainedAlgorithmicMedia"
"""Edited using generative AI: made pixels beside those of another picture, "such as with inpainting or outpainting"."""
_NAMES: Final = {MADE: "made by AI", COMPOSITE: "another picture, in part made by AI"}
_VOCABULARY: Final = "http://cv.iptc.org/newscodes/digitalsourcetype/"
_MOST_BYTES: Final = 1 << 20
"""Most bytes of XMP that are looked at."""
# As an element, as an attribute, and as a resource; no XML parser, which would expand what strangers declare.
_SAID: Final = re.compile(
    rb"""DigitalSourceType[^<\w]{1,40}(?:rdf:resource\s{0,8}=\s{0,8}["'])?"""
    rb"\s{0,8}https?://cv\.iptc\.org/newscodes/digitalsourcetype/(\w{1,64})"
)


def source_type(*, masked: bool) -> str:
    """Return what IPTC calls a picture: with a mask a part of it is another picture's, else all of it was made."""
    return COMPOSITE if masked else MADE


def source_url(kind: str) -> str:
    """Return the term that a digital source type is in IPTC's vocabulary."""
    return _VOCABULARY + kind


def xmp_packet(kind: str) -> bytes:
    """Return the XMP that says a digital source type."""
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/">'
        f"<Iptc4xmpExt:DigitalSourceType>{source_url(kind)}</Iptc4xmpExt:DigitalSourceType>"
        '</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    ).encode()


def said_source_type(xmp: object) -> str | None:
    """Return the digital source type that XMP of anyone says, such as `trainedAlgorithmicMedia`."""
    if isinstance(xmp, str):
        xmp = xmp.encode("utf-8", "replace")
    match = _SAID.search(xmp[:_MOST_BYTES]) if isinstance(xmp, bytes) else None
    return match[1].decode("ascii") if match else None


def in_words(kind: str) -> str:
    """Return what a digital source type means, and its name."""
    return f"{_NAMES[kind]} ({kind})" if kind in _NAMES else kind
