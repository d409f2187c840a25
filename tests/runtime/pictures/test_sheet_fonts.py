"""Words of sheets are readable in every language that the machine has a font for."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFont

from olivelike.runtime.pictures import sheet_fonts
from olivelike.runtime.pictures.sheet_fonts import font_for
from olivelike.runtime.pictures.sheets import PlotHeads, SheetPicture, plot_sheet


def ink(font, text):
    return bytes(font.getmask(text))


@pytest.fixture
def without_fonts(monkeypatch):
    """Have a machine without fonts."""
    monkeypatch.setattr(sheet_fonts, "_FILES", ())


def test_pillows_own_font_is_taken_where_it_has_all_letters():
    font, others = font_for(["a red circle, Seed 7 …"], 20)
    assert (font.getname(), others) == (ImageFont.load_default(20).getname(), {})


def test_a_font_of_the_machine_has_what_pillows_own_lacks():
    try:
        ImageFont.truetype("DejaVuSans.ttf", 20)
    except OSError:
        pytest.skip("this machine has no DejaVu Sans")
    font, others = font_for(["M\u00e4dchen \u2013 \u0416\u0443\u043a"], 20)
    assert others == {}
    assert len({ink(font, letter) for letter in "\u00e4\u2013\u0416\uffff"}) == 4
    assert ink(ImageFont.load_default(20), "\u00e4") == ink(ImageFont.load_default(20), "\uffff")


def test_a_machine_without_fonts_writes_letters_without_their_accents(without_fonts):
    font, others = font_for(["M\u00e4dchen \u2013 caf\u00e9 \u732b"], 20)
    assert font.getname() == ImageFont.load_default(20).getname()
    assert "M\u00e4dchen \u2013 caf\u00e9 \u732b".translate(others) == "Madchen - cafe \u732b"


def test_heads_of_a_plot_are_drawn_so(without_fonts):
    def drawn(head):
        cell = SheetPicture(Image.new("RGB", (64, 64), "teal"))
        return np.asarray(plot_sheet({(0, 0, 0): [cell]}, PlotHeads("a", across=(head,))))

    assert np.array_equal(drawn("caf\u00e9 \u2013"), drawn("cafe -"))
    assert not np.array_equal(drawn("caf\u00e9"), drawn("\u732b"))
