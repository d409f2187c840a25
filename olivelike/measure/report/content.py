"""Parts of a report, as values; `page.html` has a way of writing each, and nothing else writes markup.

Text of strangers is text here: the template escapes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from olivelike import _table


class Block:
    """A piece of a page; one without content is false and is not written."""

    @property
    def kind(self) -> str:
        """The name by which the template knows it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Note(Block):
    """A text with what is said of it, small beside it or as its tooltip."""

    text: str
    small: str = ""
    title: str = ""


@dataclass(frozen=True)
class Command(Block):
    """A command that measures something for the report."""

    text: str


@dataclass(frozen=True)
class Bar(Block):
    """When a step ran: beginning and width in percent of the axis."""

    status: str
    left: float
    width: float
    title: str


@dataclass(frozen=True)
class Axis(Block):
    """Heading of a column of bars, with marks at places in percent."""

    title: str
    marks: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Facts(Block):
    """Names and values; those that are empty are not shown."""

    pairs: Sequence[tuple[str, str]]

    def __bool__(self) -> bool:
        return any(value for _, value in self.pairs)


@dataclass(frozen=True)
class Table(_table.Table, Block):
    """Rows of cells, the first of each being its title; as HTML."""

    style: str = ""
    """Its class in the style sheet."""
    columns: Mapping[int, str] = field(default_factory=dict)
    """Classes of columns, by position."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def column(self, position: int) -> str | None:
        """Return the classes of a column."""
        named = (*(["number"] if position in self.right else []), self.columns.get(position))
        return " ".join(filter(None, named)) or None


@dataclass(frozen=True)
class Items(Block):
    """Sentences, one below the other."""

    texts: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.texts)


@dataclass(frozen=True)
class Tiles(Block):
    """The figures that a reader asks for first: a name, the figure, and what is to be said of it."""

    tiles: Sequence[tuple[str, str, str | Command]]


@dataclass(frozen=True)
class Hint(Block):
    """Measurement that is still open, and the command for it."""

    text: str
    command: str | Command


@dataclass(frozen=True)
class Heading(Block):
    """Title of a part of a section."""

    text: str


@dataclass(frozen=True)
class Failure(Block):
    """Error that a step, or the run, ended with."""

    name: str
    error: str
    log: str = ""


@dataclass(frozen=True)
class Pictures(Block):
    """Pictures of one request beside each other: what each is, and its `data:` address."""

    images: Sequence[tuple[str, str]]
    facts: Facts

    def __bool__(self) -> bool:
        return bool(self.images)


@dataclass(frozen=True)
class Step(Block):
    """A node in the graph."""

    name: str
    status: str
    reason: str
    said: tuple[str, ...]


@dataclass(frozen=True)
class Chain(Block):
    """Steps one after the other, and the chains that they fork into."""

    steps: tuple[Step, ...]
    fork: tuple[Chain, ...] = ()


@dataclass(frozen=True)
class Graph(Block):
    """All steps: the chains of each network, and what the colours mean."""

    chains: Mapping[str, Sequence[Chain]]
    legend: Mapping[str, str]


@dataclass(frozen=True)
class Fold(Block):
    """Blocks that a click on their title opens."""

    title: str
    content: tuple[Block, ...]

    def __bool__(self) -> bool:
        return any(self.content)


@dataclass(frozen=True)
class Section(Block):
    """A part of the page with a heading, to which a link leads."""

    id: str
    title: str
    content: tuple[Block, ...]

    def __bool__(self) -> bool:
        return any(self.content)


def shown(value: object) -> str:
    """Return any JSON value as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _LONGEST else f"{max(min(value, _MOST), -_MOST):.3e}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(entry) for entry in value)
    return "" if value is None else str(value)


_LONGEST = 10**18
_MOST = 10**300
"""What a float can be made of."""


def moment(value: str) -> str:
    """Return a time in ISO 8601 as people write it: `22 November 2026, 04:27 UTC`."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{found.day} {found:%B %Y, %H:%M} {found:%Z}".rstrip()
