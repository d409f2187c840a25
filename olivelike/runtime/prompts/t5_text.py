"""Texts as T5 reads them: one row of ids with an end and padding, read without a mask, weighted as CLIP's are.

Its `tokenizer.json` is of the unigram kind, as libraries make it of a SentencePiece model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.runtime.prompts.clip_text import Chunks, encode_chunks, read_special, read_tokenizer
from olivelike.runtime.prompts.syntax import Fragment, parse_prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from olivelike.families.denoiser_forms import EncodedText
    from olivelike.families.family import TextPart
    from olivelike.runtime.prompts.clip_text import TextEncoder


@dataclass(frozen=True)
class T5Tokenizer:
    """Text → token ids, as many as the denoiser was trained with."""

    folder: Path
    backend: Tokenizer
    end: int
    pad: int
    length: int
    """Ids of a text, its end and padding included; words beyond are not read, as in diffusers' pipelines."""

    @property
    def room(self) -> int:
        """Tokens of a text that are read."""
        return self.length - 1

    @property
    def words(self) -> Collection[str]:
        """No names: textual inversions are CLIP's."""
        return ()

    def read(self, text: str, *, prompt_weights: bool = True) -> Chunks:
        """Tokenize a text, whose brackets are weights or, without `prompt_weights`, text; `BREAK` parts nothing."""
        parts = [part for part in parse_prompt(text, prompt_weights=prompt_weights) if isinstance(part, Fragment)]
        with damage(self.folder):
            tokens = [
                (token, part.weight)
                for part in parts
                for token in self.backend.encode(part.text, add_special_tokens=False).ids
            ][: self.room]
        rest = self.room - len(tokens)
        ids = (*(token for token, _ in tokens), self.end, *(self.pad,) * rest)
        weights = (*(weight for _, weight in tokens), 1.0, *(1.0,) * rest)
        return Chunks((ids,), (weights,), len(tokens))

    def encode(self, texts: Sequence[Chunks], chunks: int, encoder: TextEncoder) -> EncodedText:  # noqa: ARG002
        """Encode texts; each is one row, however many chunks other kinds have. Raises `UsageError` for its weights."""
        return encode_chunks(texts, encoder)


def open_t5(folder: Path, part: TextPart) -> T5Tokenizer:
    """Open the tokenizer of a text. Raises `SourceError` if files are absent or damaged, or it is none of T5's kind."""
    backend = open_whole(folder, _vocabulary_of)
    special = read_special(folder, backend, {"eos_token": "</s>", "pad_token": "<pad>"})
    return T5Tokenizer(folder, backend, special["eos_token"], special["pad_token"], part.length)


def open_whole(folder: Path, count: Callable[[Any], int | None]) -> Tokenizer:
    """Open a `tokenizer.json` that neither cuts nor fills; arguments and errors are those of `read_tokenizer`."""
    from tokenizers import Tokenizer

    whole = read_tokenizer(folder, count)
    with damage(folder):
        backend = Tokenizer.from_str(whole)
        backend.no_padding()
        backend.no_truncation()
    return backend


def _vocabulary_of(model: Any) -> int | None:
    """Return the number of pieces of a unigram model; `None` for another one."""
    pieces = model.get("vocab") if isinstance(model, dict) and model.get("type") == "Unigram" else None
    return len(pieces) if isinstance(pieces, list) else None


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Refuse what the library can't work with; it also panics, which is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise SourceError(f"{folder}/tokenizer.json can't be used: {error}; fetch it again") from error
