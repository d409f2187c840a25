"""`docs/pass-options.md` is what the classes of the passes say."""

from __future__ import annotations

from tools.pass_options import PAGE, page


def test_the_page_of_options_is_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tools/pass_options.py writes it anew"
