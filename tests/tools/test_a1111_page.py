"""`docs/a1111-fields.md` is what the server's list of A1111's fields says."""

from __future__ import annotations

from tools.a1111_fields import PAGE, page


def test_the_page_of_a1111s_fields_is_the_servers_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tools/a1111_fields.py writes it anew"
