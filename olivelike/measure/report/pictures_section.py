"""Pictures of the optimised pipeline beside those of the original, from files beside the run's record."""

from __future__ import annotations

import base64
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.report.element import Html, element, facts, section
from olivelike.measure.report.record_reading import mapping, sequence, shown, text

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.measure.report.beside import Beside
    from olivelike.measure.report.record_reading import RunReport

PICTURES: Final = "pictures"
"""The fact that names pictures."""
_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
_LARGEST: Final = 20_000_000
_SIDES: Final = {"original": "Original", "optimised": "Optimised", "difference": "Difference"}


def pictures(run: RunReport, beside: Beside) -> Html:
    """Return each pair of pictures with its figures; nothing if none is named that is there.

    Args:
        run: The run; the fact `pictures` of a step is a list of maps with the names of the files `original`,
            `optimised` and perhaps `difference`, and any figures.
        beside: The files, and such a list of `olivelike verify`.
    """
    lists = [node.facts.get(PICTURES) for node in run.nodes] + [beside.verification.get(PICTURES)]
    pairs = [_pair(mapping(entry), beside.folder) for listed in lists for entry in sequence(listed)]
    return section("pictures", "Pictures", *pairs)


def _pair(entry: Any, folder: Path) -> Html:
    images = [
        element("figure", element("img", src=data, alt=f"{label} picture"), element("figcaption", label))
        for side, label in _SIDES.items()
        if (data := _embedded(folder, text(entry.get(side))))
    ]
    if not images:
        return Html()
    found = facts(
        (name.replace("_", " "), _value(value)) for name, value in entry.items() if name not in _SIDES
    )
    return element("article", element("div", *images, class_="pictures"), found)


def _value(value: Any) -> str:
    return "infinite" if value is None else shown(value)


def _embedded(folder: Path, name: str) -> str:
    """Return a picture as a `data:` address; nothing if it is absent, too large, or no picture."""
    relative = PurePath(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        return ""
    path = folder / relative
    try:
        content = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
    except (OSError, ValueError):  # ValueError: no file can have such a name.
        return ""
    kind = next((kind for magic, kind in _KINDS.items() if content.startswith(magic)), None)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}" if kind else ""
