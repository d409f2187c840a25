"""Prompts and what is to be drawn of each: as words, in a file, or on standard input."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from olivelike._text import did_you_mean
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pipeline.request import Asked, RequestFields, asked_fields, with_hires

STDIN: Final = "-"
_MOST_BYTES: Final = 16 << 20
_FILE_NAME: Final = re.compile(r"@\S+\.\w{1,8}")


@dataclass(frozen=True)
class PromptLine:
    """A prompt, and what its line says of it."""

    prompt: str
    fields: RequestFields = field(default_factory=RequestFields)
    """Fields of a request that the line sets."""
    place: str | None = None
    """File and line, for messages."""


def read_prompts(arguments: Sequence[str], *, literal: bool = False) -> list[PromptLine]:
    r"""Return the prompts that arguments of a command line stand for.

    `@FILE` is a file's lines, `-` those of standard input; `\\-` and `\\@` are text.

    Raises:
        SourceError: if a file can't be read.
        UsageError: for a line that can't be read.
    """
    lines: list[PromptLine] = []
    for argument in arguments:
        if literal:
            lines.append(PromptLine(argument_text(argument)))
        elif argument == STDIN:
            lines += _lines(_text(sys.stdin.buffer, "standard input"), "standard input")
        elif argument.startswith("@") and (_is_file(argument[1:]) or _FILE_NAME.fullmatch(argument)):
            lines += _lines(_file(argument), argument[1:])
        else:
            lines.append(PromptLine(argument_text(argument)))
    return lines


def argument_text(argument: str) -> str:
    """Return an argument of a command line as text, also where the locale has no letters for it.

    Python keeps bytes that the locale does not know as halves of surrogate pairs (PEP 383); they are read as UTF-8.
    Raises `UsageError` if they are none.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeError:
            raise UsageError(f"{argument!a} is no text in UTF-8; write it in a file, and name that by @FILE") from None
    return argument


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except OSError:
        return False


def _file(argument: str) -> str:
    path = Path(argument[1:]).expanduser()
    try:
        with path.open("rb") as file:  # It may be a pipe, which the user has named.
            return _text(file, str(path))
    except OSError as error:
        raise SourceError(
            f"{path}: can't be read as a file of prompts: {error.strerror or error}; a prompt that begins with @ is "
            f"written '\\{argument}'"
        ) from error


def _text(file: BinaryIO, where: str) -> str:
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise SourceError(
            f"{where}: has more than the {_MOST_BYTES:,} bytes of prompts that are read; part it, or end it"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{where}: is no text in UTF-8 (byte {error.start}); save it as UTF-8") from error


def _lines(text: str, where: str) -> Iterator[PromptLine]:
    empty = True
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        empty = False
        place = f"{where}:{number}"
        if content.startswith("--"):
            yield _options(content, place)
        elif _TRAINERS_OPTION.search(content):
            yield _trainers_line(content, place)
        else:
            yield PromptLine(content, place=place)
    if empty:
        raise UsageError(f"{where}: has no prompt; write one on each line")


_READ: Final[Mapping[str, tuple[str, Asked]]] = {
    **{name: (field_name, one) for field_name, one in asked_fields() for name in (one.name, *one.aliases)},
    **{
        name: (field_name, Asked(int, "", name=name))
        for name, field_name in (
            ("width", "width"),
            ("height", "height"),
            ("batch_size", "of_batch"),
            ("n_iter", "times"),
        )
    },
}
"""Options of a line: a request's, and those of A1111's script that are put together to one of these."""
_TEXTS: Final = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "negative-prompt": "negative_prompt",
}  # fmt: skip
"""Options whose text goes on to the next option."""


_TRAINERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "n": ("negative_prompt", str), "w": ("width", int), "h": ("height", int), "d": ("seed", int), "s": ("steps", int),
    "l": ("guidance_scale", float), "ss": ("scheduler", str),
}  # fmt: skip
"""Options behind a prompt, as files for the samples of a training have them.

Source: https://github.com/kohya-ss/sd-scripts, `line_to_prompt_dict`.
"""
_TRAINERS_OPTION: Final = re.compile(r"\s--(?:n|w|h|d|s|l|ss)\s")


def as_options(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Return arguments of a command line in which other names of its options, as lines may have them, are its own.

    `options` are the command's names, with hyphens.
    """
    known = {name: field for name, (field, _) in _READ.items()} | _TEXTS | {"batch_size": "batch_size"}
    found: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[place:]]
        name, equals, value = argument.partition("=")
        own = f"--{known.get(name.removeprefix('--'), '').replace('_', '-')}"
        respelled = name.startswith("--") and name not in options and own in options
        found.append(f"{own}{equals}{value}" if respelled else argument)
    return found


def _options(line: str, place: str) -> PromptLine:
    given = _given(line, place)
    if "prompt" not in given:
        raise UsageError(f"{place}: has no --prompt")
    return PromptLine(given.pop("prompt"), _combined(given, place), place)


def _trainers_line(line: str, place: str) -> PromptLine:
    prompt, *rest = re.split(r"\s--(?=[a-zA-Z]+(?:\s|$))", line)
    given: RequestFields = {}
    for option in rest:
        name, _, value = option.partition(" ")
        if name.lower() not in _TRAINERS:
            hint = did_you_mean(f"--{name}", [f"--{known}" for known in _TRAINERS], "options")
            raise UsageError(f"{place}: there is no option --{name} behind a prompt; {hint}")
        field_name, read = _TRAINERS[name.lower()]
        given[field_name] = _value(name, value.strip(), read, place)
    return PromptLine(prompt.strip(), _combined(given, place), place)


def _value(name: str, value: str, read: Callable[[str], Any], place: str) -> Any:
    if not value:
        raise UsageError(f"{place}: --{name} has no value")
    try:
        return read(value)
    except UsageError as error:
        raise UsageError(f"{place}: --{name}: {error}") from None
    except ValueError:
        raise UsageError(f"{place}: --{name} {value!r} is no number") from None


def read_options(text: str, place: str) -> RequestFields:
    """Read the options of a line that has no prompt of its own. Raises `UsageError` for one that can't be read."""
    given = _given(text, place)
    if "prompt" in given:
        raise UsageError(f"{place}: a prompt can't be given here; leave --prompt out")
    return _combined(given, place)


def _given(line: str, place: str) -> RequestFields:
    """Return the values of options by the names of their fields."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{place}: {error}; put quotes around a text with spaces or apostrophes") from error
    given: RequestFields = {}
    while words:
        word = words.pop(0)
        name = word.removeprefix("--")
        if not word.startswith("--"):
            raise UsageError(f"{place}: {word!r} belongs to no option; a line of options is --prompt TEXT --seed 3 …")
        if name not in _TEXTS and name not in _READ:
            hint = did_you_mean(word, [f"--{known}" for known in (*_TEXTS, *_READ)], "options")
            raise UsageError(f"{place}: there is no option {word} for a line; {hint}")
        if name in _TEXTS:
            if not words:
                raise UsageError(f"{place}: --{name} has no value")
            texts = [words.pop(0)]
            while words and not words[0].startswith("--"):
                texts.append(words.pop(0))
            given[_TEXTS[name]] = " ".join(texts)
            continue
        field_name, one = _READ[name]
        alone = one.is_flag and not (words and words[0].lower() in ("true", "false"))
        value = words.pop(0) if words and not alone else ""
        given[field_name] = one.read("") if alone else _value(name, value, one.read, place)
    return given


def _combined(given: RequestFields, place: str) -> RequestFields:
    """Put together what takes two options: A1111's sides, and its pictures as so many times a batch."""
    sides = given.pop("width", None), given.pop("height", None)
    if (sides[0] is None) != (sides[1] is None):
        raise UsageError(f"{place}: gives one side alone; give --width and --height")
    if sides[0] is not None:
        given["size"] = sides
    at_once, times = given.pop("of_batch", None), given.pop("times", None)
    if at_once is not None:
        given["batch_size"] = at_once
    if at_once is not None or times is not None:
        given.setdefault("num_images", (1 if at_once is None else at_once) * (1 if times is None else times))
    return with_hires(given)
