r"""Texts drawn by a picture's seed: `{a|b}`, `{2$$a|b|c}`, `{0.3::a|b}` and `__name__`, a line of a file `name.txt`.

The notation is that of sd-dynamic-prompts (https://github.com/adieyal/sd-dynamic-prompts). A backslash before a brace
or an underscore leaves it as text.

Choices are made before a text encoder sees a prompt, so that they are those of every model, and no part of emphasis.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

from olivelike._files import files_below
from olivelike._text import did_you_mean
from olivelike._untrusted import read_bytes
from olivelike.errors import SourceError, UsageError

_TOKEN: Final = re.compile(r"\\.|__[\w*./-]{0,200}?[\w*]__(?!\w)|[{}|]|(?:(?!__)[^\\{}|])+|_|\\", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?=[{}|]|__)")
_HOW_MANY: Final = re.compile(r"\s*(\d{1,3})(?:-(\d{1,3}))?\s*\$\$(?:([^$]*)\$\$)?")
_WEIGHT: Final = re.compile(r"\s*(\d{1,6}\.?\d{0,6}|\.\d{1,6})::")
_SUFFIX: Final = ".txt"
_DEEPEST: Final = 50
_MOST_CHOICES: Final = 10_000
"""Choices that one prompt may lead to: files may name each other so that each line doubles them."""
_MOST_BYTES: Final = 16 << 20
"""Most bytes of a file; lists of artists and the like have some 100 KB."""


class Wildcards:
    """Folders with files of one text per line; of two with the same name the first one counts. Links are not followed.

    Args:
        folders: where files are looked for, subfolders included.
        named: whether the user named them; a name that is in none of them is then a mistake, and else text.
    """

    def __init__(self, folders: Sequence[Path], *, named: bool = False) -> None:
        self._folders = folders
        self._named = named
        self._lines: dict[str, list[str]] = {}
        self._weighed: dict[str, _Weighed] = {}

    @cached_property
    def files(self) -> dict[str, str]:
        """The files' paths by name: their path below the folder, without suffix."""
        found: dict[str, str] = {}
        for folder in self._folders:
            if self._named and not folder.is_dir():
                raise SourceError(f"--wildcard-dir {folder}: no such folder")
            for path, inside in files_below(folder, (_SUFFIX,)):
                # A link in a pack of a stranger could name any file, whose lines would stand in pictures.
                if os.path.normcase(path).endswith(_SUFFIX) and not os.path.islink(path):  # noqa: PTH114  (there may be thousands)
                    found.setdefault(inside, path)
        return found

    def choices(self, name: str) -> list[str]:
        """Return the texts of a name, which may have `*`; none if there is no such file.

        Raises `UsageError` if folders are named and none has the file, and `SourceError` if a file can't be read.
        """
        known = self.files
        short = [key for key in known if key.rpartition("/")[2] == name]
        names = [key for key in known if fnmatchcase(key, name)] or short[:1]
        if not names and self._named:
            hint = did_you_mean(name, known, "wildcards")
            raise UsageError(f"there is no wildcard __{name}__ (a file {name}{_SUFFIX}); {hint}")
        return [text for key in names for text in self._lines_of(known[key])]

    def weighed(self, name: str) -> _Weighed:
        """Return the texts of a name with their weights, which are read once. Raises as `choices`."""
        if name not in self._weighed:
            self._weighed[name] = _Weighed.of(self.choices(name))
        return self._weighed[name]

    def _lines_of(self, path: str) -> list[str]:
        if path not in self._lines:
            self._lines[path] = _lines(Path(path))
        return self._lines[path]

    def resolve(self, prompt: str, seed: int) -> str:
        """Return a prompt in which every choice is made; the same for the same seed.

        Raises `UsageError` if choices lead to choices without end, or too few are left to choose, and `SourceError` if
        a file can't be read.
        """
        return _Choice(self, random.Random(seed)).read(prompt, 0)  # noqa: S311  (no secret)

    def unknown(self, prompt: str) -> list[str]:
        """Return what looks like a name in a prompt and has no file, as it is written."""
        names = [piece for piece in _TOKEN.findall(prompt) if _is_name(piece)]
        return [piece for piece in dict.fromkeys(names) if not self.choices(piece[2:-2])]


def without_escapes(prompt: str) -> str:
    """Return a prompt without the backslashes that leave braces and names as text, for who takes them as words."""
    return _ESCAPE.sub("", prompt)


class _Choice:
    """One way through all choices of a prompt."""

    def __init__(self, wildcards: Wildcards, source: random.Random) -> None:
        self._wildcards = wildcards
        self._source = source
        self._choices = 0

    def read(self, text: str, depth: int) -> str:
        if depth > _DEEPEST:
            raise UsageError(
                f"the choices in {text[:60]!r} lie too deep in each other, or lead to each other without end"
            )
        pieces: list[str] = []
        opened: list[int] = []
        for piece in _TOKEN.findall(text):
            if piece == "{":
                opened.append(len(pieces))
            if piece == "}" and opened:
                start = opened.pop()
                inner = pieces[start + 1 :]
                del pieces[start:]
                # Inside another choice it waits: only what is chosen is read.
                pieces.append(f"{{{''.join(inner)}}}" if opened else self._choose(inner, depth))
            elif _is_name(piece) and not opened:
                choices = self._wildcards.weighed(piece[2:-2])
                pieces.append(self.read(self._pick(choices, 1)[0], depth + 1) if choices.texts else piece)
            else:
                pieces.append(piece)
        if opened:  # A brace without a partner is text, and so is none of what follows it.
            start = opened[0]
            return "".join(pieces[: start + 1]) + self.read("".join(pieces[start + 1 :]), depth + 1)
        return "".join(pieces)

    def _choose(self, inner: list[str], depth: int) -> str:
        text = "".join(inner)
        count = _HOW_MANY.match(text)
        options = _options(text[count.end() :] if count else text)
        if not count and len(options) == 1:
            return f"{{{self.read(text, depth + 1)}}}"
        least, most = (int(count[1]), int(count[2] or count[1])) if count else (1, 1)
        if not 0 <= least <= most <= len(options):
            raise UsageError(f"{{{text}}} asks for more than its {len(options)} texts, or from many to few")
        number = least + int(self._source.random() * (most - least + 1))
        between = count[3] if count and count[3] is not None else ", "
        return between.join(self.read(option, depth + 1) for option in self._pick(_Weighed.of(options), number))

    def _pick(self, options: _Weighed, number: int) -> list[str]:
        self._choices += 1
        if self._choices > _MOST_CHOICES:
            raise UsageError(
                f"its choices lead to more than {_MOST_CHOICES:,} others; shorten it, or the files that it names"
            )
        picked = []
        for left in range(number, 0, -1):
            place = options.place(self._source.random())
            picked.append(options.texts[place])
            if left > 1:
                options = options.without(place)
        return picked


@dataclass(frozen=True)
class _Weighed:
    """Texts to choose among, with how often each is taken."""

    texts: list[str]
    weights: list[float]
    total: float
    is_even: bool
    """Whether all weights are 1."""

    @classmethod
    def of(cls, options: Iterable[str]) -> _Weighed:
        """Return texts that may begin with their weights."""
        found = [(_WEIGHT.match(option), option) for option in options]
        weights = [float(match[1]) if match else 1.0 for match, _ in found]
        return cls._made([option[match.end() :] if match else option for match, option in found], weights)

    @classmethod
    def _made(cls, texts: list[str], weights: list[float]) -> _Weighed:
        return cls(texts, weights, sum(weights), set(weights) <= {1.0})

    def place(self, share: float) -> int:
        """Return the text that a share of all weights, from 0 to 1, lies in; of 100,000 lines alike at once."""
        left, last = share * self.total, len(self.texts) - 1
        if self.is_even:
            return min(int(left), last)
        for place, weight in enumerate(self.weights):
            if left < weight:
                return place
            left -= weight
        return last

    def without(self, place: int) -> _Weighed:
        """Return all but one."""
        texts, weights = ([*every[:place], *every[place + 1 :]] for every in (self.texts, self.weights))
        return self._made(texts, weights)


def _is_name(piece: str) -> bool:
    return len(piece) > 4 and piece.startswith("__") and piece.endswith("__")


def _options(text: str) -> list[str]:
    """Part a text at each `|` that is in no further braces."""
    options, depth = [""], 0
    for piece in _TOKEN.findall(text):
        depth += {"{": 1, "}": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            options.append("")
        else:
            options[-1] += piece
    return options


def _lines(path: Path) -> list[str]:
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: can't be read as text in UTF-8: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise SourceError(f"{path}: has no line to choose")
    return found
