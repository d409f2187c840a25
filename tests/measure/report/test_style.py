"""Colours, light and dark: text can be read on what it stands on."""

from __future__ import annotations

import re

import pytest

from olivelike.measure.report.page import STYLE

SCHEMES = re.findall(r":root \{([^}]+)\}", STYLE)
TEXT = [
    *[("ink", background) for background in ("paper", "panel", "hit", "executed", "failed", "skipped")],
    ("quiet", "paper"), ("quiet", "panel"), ("link", "paper"),
]  # fmt: skip


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2 (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", range(3), ids=["light", "dark", "print"])
def test_text_has_the_contrast_that_reading_needs(scheme):
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", SCHEMES[scheme]))
    for ink, background in TEXT:
        assert contrast(colours[ink], colours[background]) >= 4.5, (ink, background)
    for mark in ("bar", "mark"):
        assert contrast(colours[mark], colours["panel"]) >= 3, mark
