r"""Module patterns of PEFT's configs (`rank_pattern`, `alpha_pattern`), matched in bounded time.

PEFT runs each pattern from the file with `re.match(rf"(.*\.)?({pattern})$", path)`, which some patterns keep busy for
ever. Here a plain name is looked up, and a regular expression runs as an automaton, which reads each path once: the
answer is the same, for it asks only whether a path matches. What such an automaton can't know (references back, looking
around) is refused.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Value = TypeVar("Value")

_PLAIN: Final = re.compile(r"\^?[\w-]+(?:\\?\.[\w-]+)*\$?")
"""A module's name; its dots are taken for dots, though to PEFT they stand for any character."""
_LONGEST: Final = 1000
_MOST_AUTOMATA: Final = 100
_MOST_STATES: Final = 5000
_MOST_WORK: Final = 5_000_000
"""States that are visited, in all patterns and paths of a file together: two seconds."""
_CLASSES: Final = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": r"\s", "S": r"\S"}


_REMEDY: Final = "name the modules in full instead"


class _NotRunError(ValueError):
    """A pattern that is not run; the text says why."""


class Patterns(Generic[Value]):
    """Values by pattern; of several that match a path, the first counts."""

    def __init__(self, where: str = "", values: Mapping[str, Value] | None = None) -> None:
        """Take the file, for messages, and pattern → value.

        Raises:
            SourceError: if a pattern is damaged, or of a kind that is not run.
        """
        values = values or {}
        self._where = where
        self._values = list(values.values())
        self._suffixes: dict[str, int] = {}
        self._whole: dict[str, int] = {}
        self._automata: list[tuple[int, _Automaton]] = []
        self._work = 0
        for number, pattern in enumerate(values):
            if _PLAIN.fullmatch(pattern):
                names = self._whole if pattern.startswith("^") else self._suffixes
                names.setdefault(pattern.lstrip("^").rstrip("$").replace("\\.", "."), number)
            else:
                self._automata.append((number, self._automaton(pattern)))

    def find(self, path: str) -> Value | None:
        """Return the value of the first pattern that matches a module's path; `None` if none does.

        Raises:
            SourceError: if the patterns take too long.
        """
        suffixes = [path, *(path[match.end() :] for match in re.finditer(r"\.", path))]
        found = [self._suffixes[name] for name in suffixes if name in self._suffixes]
        if path in self._whole:
            found.append(self._whole[path])
        first = min(found, default=len(self._values))
        for number, automaton in self._automata:
            if number > first:
                break
            if self._matches(automaton, path):
                first = number
                break
        return self._values[first] if first < len(self._values) else None

    def _automaton(self, pattern: str) -> _Automaton:
        try:
            if len(self._automata) == _MOST_AUTOMATA:
                raise _NotRunError(f"it is one of more than {_MOST_AUTOMATA} regular expressions")
            return _Parser(pattern).automaton()
        except _NotRunError as error:
            raise SourceError(f"{self._where}: pattern {pattern[:80]!r}: {error}; {_REMEDY}") from error

    def _matches(self, automaton: _Automaton, path: str) -> bool:
        # `(.*\.)?`: the pattern may begin behind any dot, and `^` only at the very beginning.
        starts = {0, *(match.end() for match in re.finditer(r"\.", path))}
        states: set[int] = set()
        for position in range(len(path) + 1):
            if position in starts:
                states |= automaton.closure({automaton.start}, at_start=position == 0, at_end=False)
            self._work += 1 + len(states)
            if self._work > _MOST_WORK:
                raise SourceError(f"{self._where}: its patterns take too long to match; {_REMEDY}")
            if position < len(path):
                states = automaton.step(states, path[position])
        return automaton.end in automaton.closure(
            states | ({automaton.start} if len(path) in starts else set()),
            at_start=not path,
            at_end=True,
        )


@dataclass
class _Automaton:
    """States with edges: a test of one character, or nothing to read, which may ask for a place."""

    start: int = 0
    end: int = 0
    tests: dict[int, tuple[Callable[[str], bool], int]] = field(default_factory=dict)
    free: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    count: int = 0

    def state(self) -> int:
        """Return a new state."""
        self.count += 1
        if self.count > _MOST_STATES:
            raise _NotRunError("it is too long")
        return self.count - 1

    def edge(self, before: int, after: int, place: str = "") -> None:
        """Let one state lead to another without reading; `place` is `^` or `$` where only there."""
        self.free.setdefault(before, []).append((place, after))

    def closure(self, states: Iterable[int], *, at_start: bool, at_end: bool) -> set[int]:
        """Return the states that can be reached without reading."""
        found = set(states)
        waiting = list(found)
        while waiting:
            for place, after in self.free.get(waiting.pop(), ()):
                if after not in found and (not place or (at_start if place == "^" else at_end)):
                    found.add(after)
                    waiting.append(after)
        return found

    def step(self, states: set[int], letter: str) -> set[int]:
        """Return the states behind one character."""
        read = {self.tests[s][1] for s in states if s in self.tests and self.tests[s][0](letter)}
        return self.closure(read, at_start=False, at_end=False)


class _Parser:
    """Makes an automaton of a regular expression, by recursive descent."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._made = _Automaton()

    def automaton(self) -> _Automaton:
        if len(self._text) > _LONGEST:
            raise _NotRunError(f"it has {len(self._text)} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # `[[`, which has one meaning today
                re.compile(self._text)
                self._made.start, self._made.end = self._choice()
        except re.error as error:
            raise _NotRunError(f"it is no regular expression ({error})") from error
        except (RecursionError, OverflowError) as error:
            raise _NotRunError("it is nested too deeply") from error
        if self._at < len(self._text):
            raise _NotRunError(f"`{self._text[self._at]}` has no partner")
        return self._made

    def _choice(self) -> tuple[int, int]:
        start, end = self._made.state(), self._made.state()
        while True:
            first, last = self._sequence()
            self._made.edge(start, first)
            self._made.edge(last, end)
            if not self._take("|"):
                return start, end

    def _sequence(self) -> tuple[int, int]:
        start = last = self._made.state()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            first, after = self._repeated()
            self._made.edge(last, first)
            last = after
        return start, last

    def _repeated(self) -> tuple[int, int]:
        begin = self._at
        part = self._atom()
        behind = self._at
        counts = self._counts()
        if counts is None:
            return part
        least, most = counts
        after = self._at
        start = last = self._made.state()
        # Each repetition is a copy of its own, read again from the text.
        for number in range(max(least, 1) if most is None else most):
            first, end = part if number == 0 else self._again(begin, behind)
            self._made.edge(last, first)
            if number >= least:
                self._made.edge(last, end)
            last = end
            if most is None and number + 1 >= least:
                self._made.edge(end, first)
        self._at = after
        return start, last

    def _again(self, begin: int, behind: int) -> tuple[int, int]:
        self._at = begin
        part = self._atom()
        assert self._at == behind
        return part

    def _counts(self) -> tuple[int, int | None] | None:
        """Read a quantifier; lazy ones match the same paths."""
        bounded = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}").match(self._text, self._at)
        counts: tuple[int, int | None]
        if self._take("*"):
            counts = 0, None
        elif self._take("+"):
            counts = 1, None
        elif self._take("?"):
            counts = 0, 1
        elif bounded and bounded[0] != "{}":
            self._at = bounded.end()
            if len(bounded[0]) > 10:
                raise _NotRunError("it is too long")
            least = int(bounded[1] or 0)
            most = int(bounded[3]) if bounded[3] else None
            counts = least, most if bounded[2] else least
        else:
            return None
        if self._at < len(self._text) and self._text[self._at] == "+":
            raise _NotRunError("possessive quantifiers are not run")
        self._take("?")
        return counts

    def _atom(self) -> tuple[int, int]:
        letter = self._text[self._at]
        if letter == "(":
            return self._group()
        if letter in "^$":
            self._at += 1
            return self._between(letter)
        if letter == "[":
            # Python's own reading of a class: `re` needs one step for one character.
            end = self._class_end()
            text, self._at = self._text[self._at : end], end
            one = re.compile(text)
            return self._one(lambda found: one.fullmatch(found) is not None)
        if letter == ".":
            self._at += 1
            return self._one(lambda found: found != "\n")
        if letter == "\\":
            return self._escape()
        self._at += 1
        return self._one(lambda found: found == letter)

    def _group(self) -> tuple[int, int]:
        self._at += 1
        if self._take("?") and not self._take(":"):
            named = re.compile(r"P<\w+>").match(self._text, self._at)
            if named is None:
                raise _NotRunError("`(?…)` other than `(?:…)` is not run")
            self._at = named.end()
        part = self._choice()
        if not self._take(")"):
            raise _NotRunError("`(` has no partner")
        return part

    def _escape(self) -> tuple[int, int]:
        name = self._text[self._at + 1]
        self._at += 2
        if name in _CLASSES:
            test = re.compile(_CLASSES[name])
            return self._one(lambda found: test.fullmatch(found) is not None)
        if name in ("A", "Z"):
            return self._between("^" if name == "A" else "$")
        if name.isalnum():
            raise _NotRunError(f"`\\{name}` is not run")
        return self._one(lambda found: found == name)

    def _class_end(self) -> int:
        position = self._at + 1
        position += self._text[position : position + 1] == "^"
        position += self._text[position : position + 1] == "]"
        while self._text[position] != "]":
            position += 2 if self._text[position] == "\\" else 1
        return position + 1

    def _one(self, test: Callable[[str], bool]) -> tuple[int, int]:
        start, end = self._made.state(), self._made.state()
        self._made.tests[start] = (test, end)
        return start, end

    def _between(self, place: str) -> tuple[int, int]:
        start, end = self._made.state(), self._made.state()
        self._made.edge(start, end, place)
        return start, end

    def _take(self, mark: str) -> bool:
        found = self._text[self._at : self._at + 1] == mark
        self._at += found
        return found
