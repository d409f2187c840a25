"""HTML elements, made so that no text gets into a page unescaped, and how values read in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape

_VOID = frozenset({"img", "meta", "link"})


class Html(str):
    """Text that is markup already; any other text is escaped where it meets an element."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """Return an element; it is well-formed as XML too.

    Args:
        children: `Html` as it is, other text escaped.
        attributes: By name: `class_` is `class`, `aria_label` is `aria-label`. The values are escaped.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{written} />")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Html:
    """Return pieces one after the other; what is no `Html` is escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def section(identifier: str, title: str, *children: str) -> Html:
    """Return a section with its heading, or nothing if it has no content."""
    content = join(children)
    if not content:
        return content
    heading = element("h2", title, id=identifier)
    return element("section", heading, content, aria_labelledby=identifier)


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    class_: str = "",
    columns: Mapping[int, str] | None = None,
) -> Html:
    """Return a table that scrolls by itself where it is too wide, or nothing if it has no rows.

    Args:
        rows: Cells; the first of each row is its title.
        numbers: Positions of the columns that are flush right.
        class_: Of the table, for style sheets.
        columns: Of columns, by position.
    """
    right, named = frozenset(numbers), columns or {}

    def cell(name: str, position: int, content: str, **attributes: str) -> Html:
        classes = [*(["number"] if position in right else []), *filter(None, [named.get(position)])]
        if classes:
            attributes["class_"] = " ".join(classes)
        return element(name, content, **attributes)

    body = [
        element(
            "tr",
            *(
                cell("td", position, content) if position else cell("th", 0, content, scope="row")
                for position, content in enumerate(row)
            ),
        )
        for row in rows
    ]
    if not body:
        return Html()
    head = (cell("th", position, title, scope="col") for position, title in enumerate(header))
    return element(
        "div",
        element("table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)),
        class_=f"scroll {class_}".rstrip(),
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Return a list of names and values, without those that are empty."""
    shown = [element("div", element("dt", name), element("dd", value)) for name, value in pairs if value]
    return element("dl", *shown) if shown else Html()


def fold(title: str, *children: str, is_open: bool = False) -> Html:
    """Return something that opens by a click on its title, or nothing if it has no content."""
    content = join(children)
    if not content:
        return content
    state = {"open": ""} if is_open else {}
    return element("details", element("summary", title), content, **state)


def shown(value: object) -> str:
    """Return any JSON value as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _LONGEST else f"{value:.3e}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(entry) for entry in value)
    return "" if value is None else str(value)


_LONGEST = 10**18


def moment(value: str) -> str:
    """Return a time in ISO 8601 as people write it: `22 November 2026, 04:27 UTC`."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{found.day} {found:%B %Y, %H:%M} {found:%Z}".rstrip()
