"""Reads YAML into a tree of values that know their positions.

Plain scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema): only `true`
and `false` are booleans, `1e-4` is a number, dates stay text. Infinity and NaN stay text too: no option wants
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from olivelike._untrusted import read_bytes
from olivelike.errors import WorkflowError
from olivelike.workflow.findings import Document, Findings, Position, file_label

_MAX_BYTES = 1 << 19
_MAX_NODES = 20_000
_DEEPEST = 50
_LONGEST_SHOWN = 80
_TAG = "tag:yaml.org,2002:"


@dataclass
class Scalar:
    """Text, a number, a boolean or nothing."""

    value: str | int | float | bool | None
    position: Position


@dataclass
class Sequence:
    """A list."""

    items: list[Node]
    position: Position


@dataclass
class Mapping:
    """A map with text keys, and the position of each key."""

    entries: dict[str, Node]
    keys: dict[str, Position]
    position: Position

    def put(self, key: str, node: Node, position: Position) -> None:
        """Set an entry and the position of its key."""
        self.entries[key] = node
        self.keys[key] = position


Node = Scalar | Sequence | Mapping


def plain(node: Node) -> Any:
    """Return the tree as Python values."""
    match node:
        case Mapping():
            return {key: plain(value) for key, value in node.entries.items()}
        case Sequence():
            return [plain(item) for item in node.items]
        case Scalar():
            return node.value


def kind_of(node: Node) -> str:
    """Name what a node is, for messages."""
    match node:
        case Mapping():
            return "a map"
        case Sequence():
            return "a list"
        case Scalar(value=None):
            return "nothing"
        case Scalar():
            return quoted(node.value) if isinstance(node.value, str) else repr(node.value)


def quoted(text: str) -> str:
    """Return a text for a message, cut if it is long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def read_document(path: Path) -> tuple[str, Document]:
    """Read the text of a workflow file. Raises `WorkflowError` if it can't be read, or is too long."""
    label = file_label(path)
    try:
        data = read_bytes(path, _MAX_BYTES)
    except OSError as error:
        document = Document(label, path=path)
        raise Position(document, 1, 1).error(
            f"can't be read: {error.strerror}; check the path and its permissions"
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig").split("\n")
        document = Document(label, path=path)
        raise Position(document, len(before), len(before[-1]) + 1).error(
            "not UTF-8; save the file in that encoding"
        ) from error
    return text, Document(label, tuple(text.splitlines()), path)


def parse_yaml(text: str, document: Document, findings: Findings) -> Node:
    """Parse one YAML document; what is readable but wrong goes to `findings`.

    Raises `WorkflowError` for a syntax error.
    """
    loader: _CoreLoader | None = None
    try:
        loader = _CoreLoader(text)
        root = loader.get_single_node()
    except _BoundError as error:
        raise _at(error.problem_mark, document).error(str(error.problem)) from error
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, document) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        position = Position(document, len(before), len(before[-1]) + 1)
        raise position.error(f"character U+{error.character:04X} is not allowed; remove it") from error
    except ValueError as error:  # `chr` of an escape beyond Unicode, `int` of 5,000 digits
        mark = loader.get_mark() if loader is not None else None
        raise _at(mark, document).error(
            "YAML syntax error: an escape or number here stands for nothing; correct it"
        ) from error
    if root is None:
        return Scalar(None, Position(document, 1, 1))
    return _Converter(document, findings).convert(root)


def _at(mark: Any, document: Document) -> Position:
    return Position(document, mark.line + 1, mark.column + 1) if mark else Position(document, 1, 1)


_OPENED = {
    "while parsing a flow sequence": ("`[`", "`]`"),
    "while parsing a flow mapping": ("`{`", "`}`"),
    "while scanning a quoted scalar": ("this quote", "its partner"),
}


_BACKSLASH: Final = "behind double quotes a backslash begins an escape; use single quotes, or / in a path"
_SYNTAX_REMEDIES: Final = {
    "unknown escape character": _BACKSLASH,
    "expected escape sequence": _BACKSLASH,
    "found character '\\t'": "indent with spaces, not with tabs",
}
"""Remedies, by a part of what the parser says."""


def _syntax_error(error: yaml.MarkedYAMLError, document: Document) -> WorkflowError:
    start, place = error.context_mark, error.problem_mark or error.context_mark
    if error.context in _OPENED and start is not None and place is not None and place.line > start.line:
        # What is found further down is well there; the mark that opens is alone.
        opening, closing = _OPENED[error.context]
        return _at(start, document).error(
            f"YAML syntax error: {opening} is not closed: {error.problem} on line {place.line + 1}, column "
            f"{place.column + 1}; add {closing}, or correct that line"
        )
    context = f"{error.context}: " if error.context else ""
    problem = str(error.problem)
    remedy = next(
        (remedy for part, remedy in _SYNTAX_REMEDIES.items() if part in problem), "correct it, or quote the text"
    )
    return _at(place, document).error(f"YAML syntax error: {context}{problem}; {remedy}")


class _BoundError(yaml.MarkedYAMLError):
    """A text has too many values, or too deep ones."""


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's loader with the scalars of YAML 1.2 in place of those of 1.1, and with bounds."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (the name and shape are PyYAML's)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, unless it is one too many or lies too deep."""
        self._count += 1
        self._depth += 1
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._count > _MAX_NODES:
            raise _BoundError(None, None, f"the file has more than {_MAX_NODES} values; shorten it", mark)
        if self._depth > _DEEPEST:
            raise _BoundError(None, None, f"nested deeper than {_DEEPEST} levels; flatten the file", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
for _name, _pattern, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", ["t", "T", "f", "F"]),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", "<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


class _Converter:
    """Turns PyYAML's nodes into ours: merge keys are applied, duplicate keys are found."""

    def __init__(self, document: Document, findings: Findings) -> None:
        self._document = document
        self._findings = findings
        self._count = 0
        self._open: set[int] = set()

    def convert(self, node: yaml.Node) -> Node:
        position = self._position(node)
        self._count += 1
        if self._count > _MAX_NODES:
            raise position.error(f"the file has more than {_MAX_NODES} values once aliases are replaced; shorten it")
        if len(self._open) == _DEEPEST:
            raise position.error(f"nested deeper than {_DEEPEST} levels once aliases are replaced; flatten the file")
        if id(node) in self._open:
            raise position.error("an anchor contains its own alias; remove the alias")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                self._check_tag(node, "map")
                return self._mapping(node)
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, "seq")
                return Sequence([self.convert(item) for item in node.value], position)
            return Scalar(self._scalar(node), position)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode) -> Mapping:
        result = Mapping({}, {}, self._position(node))
        merged: list[Mapping] = []
        for key_node, value_node in node.value:
            position = self._position(key_node)
            if key_node.tag == f"{_TAG}merge":
                merged += self._merge_sources(value_node)
                continue
            value = self.convert(value_node)
            if key_node.tag != f"{_TAG}str" or not isinstance(key_node, yaml.ScalarNode):
                self._findings.add(position, "a key must be text; put it into quotes")
            elif key_node.value in result.entries:
                first = result.keys[key_node.value].line
                self._findings.add(
                    position, f"key {quoted(key_node.value)} appears twice (first on line {first}); remove one"
                )
            else:
                result.put(key_node.value, value, position)
        for source in merged:
            for key, value in source.entries.items():
                if key not in result.entries:
                    result.put(key, value, source.keys[key])
        return result

    def _merge_sources(self, node: yaml.Node) -> list[Mapping]:
        converted = self.convert(node)
        sources = converted.items if isinstance(converted, Sequence) else [converted]
        found = [source for source in sources if isinstance(source, Mapping)]
        if len(found) != len(sources):
            self._findings.add(converted.position, "`<<` takes a map or a list of maps, such as `<<: *anchor`")
        return found

    def _scalar(self, node: yaml.Node) -> str | int | float | bool | None:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" if re.fullmatch(_INT, text) and len(text) < 100:
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            case "float" if re.fullmatch(_FLOAT, text) and abs(float(text)) != float("inf"):
                return float(text)
            case _:
                self._findings.add(self._position(node), f"{quoted(text)} can't be read as {node.tag}; remove the tag")
                return text

    def _check_tag(self, node: yaml.Node, expected: str) -> None:
        if node.tag != _TAG + expected:
            self._findings.add(self._position(node), f"tag {node.tag} is not supported; remove it")

    def _position(self, node: yaml.Node) -> Position:
        return Position(self._document, node.start_mark.line + 1, node.start_mark.column + 1)
