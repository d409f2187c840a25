"""`docs/request-options.md` is what the fields of a request say."""

from __future__ import annotations

from tools.request_options import PAGE, page


def test_the_page_says_what_the_fields_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tools/request_options.py writes it anew"
