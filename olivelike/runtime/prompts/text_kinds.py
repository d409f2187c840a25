"""Kinds of text encoders: how each turns texts into ids, and ids into what the denoiser attends to.

A family says the kind of each of its texts; whoever draws asks `open_text` and knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from olivelike._files import identity_at
from olivelike.errors import UsageError
from olivelike.families.denoiser_forms import EncodedText
from olivelike.families.family import TextPart
from olivelike.runtime.prompts.clip_text import open_tokenizer

if TYPE_CHECKING:
    from olivelike.runtime.prompts.clip_text import TextEncoder


class Tokens(Protocol):
    """A text as ids."""

    @property
    def chunks(self) -> int:
        """Number of its rows of ids."""

    @property
    def tokens(self) -> int:
        """Number of ids that stand for its words."""


class TextReader(Protocol):
    """A tokenizer, and what is done with the states of its text encoder."""

    @property
    def room(self) -> int:
        """Tokens of a text that fit into a chunk."""

    @property
    def words(self) -> Collection[str]:
        """Names that are no plain words, as those of textual inversions."""

    def read(self, text: str, *, prompt_weights: bool = True) -> Tokens:
        """Tokenize a text; with `prompt_weights`, kinds that know weights take brackets for them."""

    def encode(self, texts: Sequence[Any], chunks: int, encoder: TextEncoder) -> EncodedText:
        """Encode what `read` returned, a row for each text, all as long as so many chunks."""


def _open_t5(folder: Path, part: TextPart) -> TextReader:
    from olivelike.runtime.prompts.t5_text import open_t5

    return open_t5(folder, part)


def _open_chat(folder: Path, part: TextPart) -> TextReader:
    from olivelike.runtime.prompts.chat_text import open_chat

    return open_chat(folder, part)


KINDS: Final[dict[str, Callable[[Path, TextPart], TextReader]]] = {
    "clip": lambda folder, part: open_tokenizer(folder, cut=part.cut),
    "t5": _open_t5,
    "chat": _open_chat,
}
"""Kind → opens the folder of a text's tokenizer. Raises `SourceError` for one that is damaged, or of another kind."""
_FILES: Final = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")


def open_text(folder: Path, part: TextPart) -> TextReader:
    """Open the tokenizer of one text of a pipeline's folder, once as long as its files are the same.

    Raises `SourceError` if it is damaged.
    """
    place = folder / part.tokenizer
    return _kept_reader(place, part, _stamps(place))


def chunk_counter(folder: Path, part: TextPart) -> Callable[[str, bool], int]:
    """Return what counts the chunks of a text, with its brackets as weights or not; the last counts are kept.

    Raises as `open_text` once it is called.
    """
    place = folder / part.tokenizer
    return partial(_kept_count, place, part, _stamps(place))


def _stamps(place: Path) -> tuple[object, ...]:
    return tuple(identity_at(f"{place}/{name}") for name in _FILES)


@lru_cache(maxsize=32)
def _kept_count(place: Path, part: TextPart, stamps: object, text: str, prompt_weights: bool) -> int:
    return _kept_reader(place, part, stamps).read(text, prompt_weights=prompt_weights).chunks


@lru_cache(maxsize=8)
def _kept_reader(folder: Path, part: TextPart, _stamps: object) -> TextReader:
    return KINDS[part.kind](folder, part)


def encode_prompts(
    prompts: Sequence[str], encoders: Sequence[tuple[TextReader, TextEncoder]], *, prompt_weights: bool = True
) -> list[EncodedText]:
    """Encode prompts to the same length with each encoder.

    Raises `UsageError` if there is no prompt, or weights can't be applied.

    Args:
        encoders: each with what reads texts for it.
        prompt_weights: whether brackets are weights, as in A1111, or text.
    """
    if not prompts:
        raise UsageError("there is no prompt; give at least one, which may be empty")
    read = [[reader.read(text, prompt_weights=prompt_weights) for text in prompts] for reader, _ in encoders]
    # Tokenizers may differ by a textual inversion, so that the longest of all decides.
    chunks = max(tokens.chunks for texts in read for tokens in texts)
    return [reader.encode(texts, chunks, encoder) for texts, (reader, encoder) in zip(read, encoders, strict=True)]
