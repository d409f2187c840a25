"""Records as JSON: one reader and one writer for all of them, by the types of their fields.

pydantic would do it in fewer lines, but `generate` and `info` read records and import nothing else of it: its import
and its validators of these classes take 100 ms of processor time in each process. It also refuses paths that are no
UTF-8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Content = dict[str, object]
Migration = Callable[[Content], Content]


class RecordError(ValueError):
    """A value that is no record of ours; the text says which field, and what is wrong with it."""


class NewerRecordError(RecordError):
    """A record that a later version of olivelike wrote."""


def read_version(cls: type[Record], value: object, migrations: tuple[Migration, ...]) -> Record:
    """Read a record of any version up to today's.

    Raises `NewerRecordError` for a version that is not known yet, and `RecordError` for anything else that is no such
    record.

    Args:
        value: JSON, with its `version`; the first had none.
        migrations: What makes version 2 of version 1, version 3 of version 2, and so on.
    """
    if not isinstance(value, dict):
        raise _wrong("", "an object", value)
    content: Content = dict(value)
    version, newest = content.pop("version", 1), len(migrations) + 1
    if not isinstance(version, int) or version < 1:
        raise _wrong("version", "a number from 1", version)
    if version > newest:
        raise NewerRecordError(
            f"a later olivelike wrote it (version {version} of this record; this one reads up to {newest}); "
            "upgrade with `pip install --upgrade olivelike`"
        )
    for migrate in migrations[version - 1 :]:
        try:
            content = migrate(content)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RecordError(f"it is no record of version {version}: {error!r}") from None
    return from_json(cls, content)


def from_json(cls: type[Record], value: object) -> Record:
    """Make a frozen dataclass of JSON; a field of type `object` takes any.

    Raises `RecordError` if a field is missing, unknown, or of another type.
    """
    found: Record = _read(cls, value, "", exact=True)
    return found


def part_of_json(cls: type[Record], value: object) -> Record | None:
    """Make a frozen dataclass of JSON that may have more fields; `None` if it is something else."""
    try:
        found: Record = _read(cls, value, "", exact=False)
    except RecordError:
        return None
    return found


def to_json(value: object) -> Any:
    """Return dataclasses, mappings and tuples as JSON; fields that are `None` are left out."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: to_json(entry) for name, entry in pairs if entry is not None}
    if isinstance(value, Mapping):
        return {name: to_json(entry) for name, entry in value.items()}
    return [to_json(entry) for entry in value] if isinstance(value, tuple | list) else value


_LONGEST_NAME: Final = 100
_LARGEST: Final = 1 << 64
"""Beyond what seeds, sizes and counts have, and well within what a float can be made of."""
_SIMPLE: Final[Mapping[object, str]] = {str: "a text", int: "a whole number", bool: "true or false"}


def _read(hint: Any, value: object, place: str, *, exact: bool) -> Any:
    if hint in (object, Any) or (hint is NoneType and value is None):
        return value
    if hint in _SIMPLE:
        if type(value) is hint and (hint is not int or -_LARGEST < value < _LARGEST):  # type: ignore[operator]
            return value
        raise _wrong(place, _SIMPLE[hint], value)
    if hint is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
            return value
        raise _wrong(place, "a number", value)
    if is_dataclass(hint):
        return _read_fields(hint, value, place, exact=exact)
    origin, inner = _shape(hint)
    if origin is Literal:
        if value in inner:
            return value
        raise _wrong(place, " or ".join(map(repr, inner)), value)
    if origin in {Union, UnionType}:
        (real,) = (kind for kind in inner if kind is not NoneType)
        return None if value is None else _read(real, value, place, exact=exact)
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_read(inner[0], entry, f"{place}[{at}]", exact=exact) for at, entry in enumerate(value))
        raise _wrong(place, "a list", value)
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    if inner[1] in (object, Any):
        return value
    return {name: _read(inner[1], entry, _below(place, name), exact=exact) for name, entry in value.items()}


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


@cache
def _fields(cls: Any) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it has to be there."""
    hints = get_type_hints(cls)
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    }


def _read_fields(cls: Any, value: object, place: str, *, exact: bool) -> Any:
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    known = _fields(cls)
    for name, (_, is_needed) in known.items():
        if is_needed and name not in value:
            raise RecordError(f"{_below(place, name)} is missing")
    if exact and (unknown := [name for name in value if name not in known]):
        raise RecordError(f"{_below(place, unknown[0])} is no field that a record has")
    read = {
        name: _read(known[name][0], entry, _below(place, name), exact=exact)
        for name, entry in value.items()
        if name in known
    }
    try:
        return cls(**read)
    except RecordError as error:
        raise RecordError(f"{place or 'it'}: {error}") from None


def _below(place: str, name: str) -> str:
    name = ascii(name)[1:-1][:_LONGEST_NAME]
    return f"{place}.{name}" if place else name


def _wrong(place: str, expected: str, value: object) -> RecordError:
    return RecordError(f"{place or 'it'}: expected {expected}, found {_described(value)}")


def _described(value: object) -> str:
    kinds = {dict: "an object", list: "a list", NoneType: "nothing"}
    return kinds.get(type(value)) or ascii(value)[:60]
