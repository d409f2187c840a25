"""Reading what others wrote: files of bounded size, JSON of bounded depth, and text as a terminal may show it.

A checkpoint, a LoRA, a picture or a workflow may come from anyone. What reads one goes through here, so that a device,
a pipe, an endless file or a steering character does no harm.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from io import BufferedReader

Json: TypeAlias = dict[str, Any]
"""An object of JSON that is free: a config, a message between processes, what a pass found, what `--json` prints."""
JsonView: TypeAlias = Mapping[str, Any]
"""A `Json` that is read and not changed."""

CONFIG_BYTES: Final = 8 << 20
"""Most of a JSON file such as `config.json`; those of hubs have a few KB, indexes of shards some hundred KB."""
DEEPEST_JSON: Final = 50
"""Most levels of lists and objects; configs and tokenizers have up to 6."""

_STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # writing direction, and line ends that only some know
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"  # invisible ones, and halves of pairs
)


class RefusedError(OSError):
    """A file that is there and is not read; `strerror` says why."""

    def __str__(self) -> str:
        """Return the reason alone."""
        return str(self.strerror)


def open_file(path: Path, most: int | None = None) -> BufferedReader:
    """Open a regular file for reading bytes; a pipe, which could wait for ever, and a device are refused.

    Raises `OSError` if there is none, it is larger, or it can't be read. It may have `most` bytes; `None` is for
    what is read in parts.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise RefusedError(errno.EINVAL, "its name can be no file's") from error
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(errno.EINVAL, "it is a device, pipe or socket, and only regular files are read")
    if most is not None and found.st_size > most:
        raise RefusedError(errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {most:,} are read")
    return path.open("rb")


def read_bytes(path: Path, most: int = CONFIG_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises `OSError` if there is none, it is larger, or it can't be read.
    """
    with open_file(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:  # such as a file of /proc, which says that it is empty
        raise RefusedError(errno.EFBIG, f"it has more than {most:,} bytes")
    return data


def parse_json(
    data: bytes | str,
    pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    *,
    halves: bool = False,
    unbounded: bool = False,
) -> Any:
    """Return the value of a JSON text of bounded depth, with finite numbers and whole characters.

    Raises `ValueError` if it is none.

    Args:
        data: the text, UTF-8 as bytes.
        pairs_hook: makes an object of its keys and values.
        halves: allow halves of surrogate pairs, which have no UTF-8.
        unbounded: allow `-Infinity`, which diffusers writes for the least of a scheduler's values if nothing bounds it.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    try:
        constant = _unbounded if unbounded else _no_constant
        value = json.loads(text, object_pairs_hook=pairs_hook, parse_float=_finite, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST_JSON} levels") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):
            raise ValueError(f"a number in it has more than {sys.get_int_max_str_digits()} digits") from None
        raise
    _check_depth(value)
    if not halves and "\\u" in text:
        _check_characters(value)
    return value


def read_json(path: Path, most: int = CONFIG_BYTES) -> Any:
    """Return the value of a regular file of JSON, within the bounds of `read_bytes` and `parse_json`.

    Raises `OSError` if there is none, it is larger, or it can't be read, and `ValueError` if it is no JSON.
    """
    return parse_json(read_bytes(path, most))


def read_object(path: Path, most: int = CONFIG_BYTES) -> Json:
    """Return the object of a regular file of JSON; raises as `read_json`, also for JSON that is no object."""
    return parse_object(read_bytes(path, most))


def object_or_empty(path: Path, most: int = CONFIG_BYTES) -> Json:
    """Return the object of a regular file of JSON; an empty one if there is none that can be read."""
    try:
        return read_object(path, most)
    except (OSError, ValueError):
        return {}


def parse_object(data: bytes | str, *, unbounded: bool = False) -> Json:
    """Return the object of a JSON text; raises `ValueError` as `parse_json`, also for JSON that is no object."""
    value = parse_json(data, unbounded=unbounded)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def read_settings(path: Path, remedy: str, *, absent: Json | None = None, unbounded: bool = False) -> Json:
    """Return the object of a file of JSON in a pipeline: an index, or a config of a network, scheduler or tokenizer.

    Raises `SourceError` if it is missing, too large, or no JSON object.

    Args:
        path: The file.
        remedy: What to do if it is damaged.
        absent: What no file means; by default that one is missing.
        unbounded: As for `parse_json`: for a scheduler's.
    """
    try:
        return parse_object(read_bytes(path), unbounded=unbounded)
    except FileNotFoundError:
        if absent is None:
            raise SourceError(f"{path}: no such file, and the pipeline needs it; {remedy}") from None
        return absent
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: can't be read as JSON: {error}; {remedy}") from error


def has_utf8(name: str) -> bool:
    """Tell whether a file's name can be sent: in bytes that are no UTF-8 Python puts halves of surrogate pairs."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def terminal_text(text: str) -> str:
    r"""Return text in which what would steer a terminal, or hide, stands as an escape such as `\x1b`."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text on one line, in which a sign stands for each letter that can't be seen, such as a line feed."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _unbounded(name: str) -> float:
    return -math.inf if name == "-Infinity" else _no_constant(name)


_NESTED: Final = (dict, list)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST_JSON):
        inside = (outer.values() if isinstance(outer, dict) else outer for outer in level if isinstance(outer, _NESTED))
        level = [inner for values in inside for inner in values if isinstance(inner, _NESTED)]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST_JSON} levels")


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it has half of a surrogate pair") from None
