"""A prompt as chunks of 75 tokens, each with a start and an end of its own.

As in A1111's `TextConditionalModel.tokenize_line` (`modules/sd_hijack_clip.py`): the vectors of one textual inversion
stay in one chunk, and where a comma stands among the last 20 tokens of a full chunk, what follows it moves on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.runtime.prompts.syntax import Fragment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.runtime.prompts.prompt_tokenizer import PromptTokenizer
    from olivelike.runtime.prompts.syntax import PromptPart

_COMMA_REACH = 20
"""A1111's default for `comma_padding_backtrack`."""

Token = tuple[int, float]


@dataclass(frozen=True)
class Chunks:
    """A tokenized prompt."""

    ids: tuple[tuple[int, ...], ...]
    """Rows of `length` ids, with start, end and padding."""
    weights: tuple[tuple[float, ...], ...]
    """A weight for each id; 1 for start, end and padding."""
    tokens: int
    """How many ids stand for the prompt's text."""

    def padded(self, count: int, tokenizer: PromptTokenizer) -> Chunks:
        """Return as many chunks as asked for, the further ones being those of an empty prompt."""
        missing = count - len(self.ids)
        empty = _row([], tokenizer)
        return Chunks(
            self.ids + (empty[0],) * missing,
            self.weights + (empty[1],) * missing,
            self.tokens,
        )


def chunk_prompt(tokenizer: PromptTokenizer, parts: Sequence[PromptPart]) -> Chunks:
    """Tokenize the parts of a prompt and deal them out to chunks; there is always one.

    Args:
        tokenizer: of the text encoder that will read the ids.
        parts: as `parse_prompt` returns them.
    """
    deal = _Deal(tokenizer.length - 2, tokenizer.comma)
    for part in parts:
        if not isinstance(part, Fragment):
            deal.end_chunk()
            continue
        for ids in tokenizer.ids(part.text):
            # A token with more vectors than a whole chunk has room for has to be parted.
            for start in range(0, len(ids), deal.room):
                deal.add([(token, part.weight) for token in ids[start : start + deal.room]])
    if deal.current or not deal.full:
        deal.end_chunk()
    rows = [_row(tokens, tokenizer) for tokens in deal.full]
    return Chunks(
        tuple(ids for ids, _ in rows),
        tuple(weights for _, weights in rows),
        sum(len(tokens) for tokens in deal.full),
    )


class _Deal:
    """Chunks as they fill up."""

    def __init__(self, room: int, comma: int | None) -> None:
        self.room = room
        self.full: list[list[Token]] = []
        self.current: list[Token] = []
        self._comma = comma
        self._last_comma: int | None = None

    def add(self, group: list[Token]) -> None:
        """Add vectors that stay together."""
        if group[0][0] == self._comma:
            self._last_comma = len(self.current)
        elif (
            len(self.current) == self.room
            and self._last_comma is not None
            and self.room - self._last_comma <= _COMMA_REACH
        ):
            moved = self.current[self._last_comma + 1 :]
            del self.current[self._last_comma + 1 :]
            self.end_chunk()
            self.current = moved
        if len(self.current) + len(group) > self.room:
            self.end_chunk()
        self.current += group

    def end_chunk(self) -> None:
        """Begin the next chunk."""
        self.full.append(self.current)
        self.current, self._last_comma = [], None


def _row(tokens: Sequence[Token], tokenizer: PromptTokenizer) -> tuple[tuple[int, ...], tuple[float, ...]]:
    padding = tokenizer.length - 2 - len(tokens)
    ids = (tokenizer.start, *(token for token, _ in tokens), tokenizer.end, *(tokenizer.pad,) * padding)
    return ids, (1.0, *(weight for _, weight in tokens), 1.0, *(1.0,) * padding)
