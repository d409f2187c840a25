"""Texts as chat models read them: one row of ids, between the words of a template, filled up and masked at its end.

The template is the family's own, as two texts; `tokenizer.json` tells which words of it are single tokens. Brackets are
text, since a chat model reads a sentence as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.denoiser_forms import EncodedText
from olivelike.runtime.prompts.clip_text import read_special
from olivelike.runtime.prompts.t5_text import damage, open_whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from olivelike.families.family import TextPart
    from olivelike.runtime.prompts.clip_text import TextEncoder

_FALLBACK: Final = {"pad_token": "<|endoftext|>"}


@dataclass(frozen=True)
class ChatRow:
    """A text as ids."""

    ids: tuple[int, ...]
    """Ids of template and text, without what fills them up."""
    tokens: int
    """Number of ids that stand for the text's own words, as far as they are read with the whole template."""
    chunks: int = 1


@dataclass(frozen=True)
class ChatTokenizer:
    """Text → token ids, as many as the denoiser was trained with."""

    folder: Path
    backend: Tokenizer
    pad: int
    part: TextPart
    frame: int
    """Number of ids of the template alone."""

    @property
    def room(self) -> int:
        """Tokens of a text that are read with the whole template."""
        return self.part.length - self.frame

    @property
    def words(self) -> Collection[str]:
        """No names: textual inversions are CLIP's."""
        return ()

    def read(self, text: str, *, prompt_weights: bool = True) -> ChatRow:  # noqa: ARG002
        """Tokenize a text; what is beyond the length is cut off, the template's end first, as diffusers does."""
        before, behind = self.part.template
        with damage(self.folder):
            ids = self.backend.encode(before + text + behind).ids
        return ChatRow(tuple(ids[: self.part.length]), min(len(ids) - self.frame, self.room))

    def encode(self, texts: Sequence[ChatRow], chunks: int, encoder: TextEncoder) -> EncodedText:  # noqa: ARG002
        """Encode texts, a row for each, however many chunks other kinds have."""
        import numpy as np

        if not self.part.filled:
            return _each(texts, encoder, self.part.dropped)
        ids = np.full((len(texts), self.part.length), self.pad, np.int32)
        mask = np.zeros(ids.shape, np.int32)
        for place, text in enumerate(texts):
            ids[place, : len(text.ids)] = text.ids
            mask[place, : len(text.ids)] = 1
        return encoder(ids, mask)


def _each(texts: Sequence[ChatRow], encoder: TextEncoder, dropped: int) -> EncodedText:
    """Encode each text as long as it is, without its first states; zeros follow those shorter than the longest."""
    import numpy as np

    rows = [np.array([text.ids], np.int32) for text in texts]
    states = [encoder(row, np.ones_like(row)).hidden[:, dropped:] for row in rows]
    tokens = np.array([one.shape[1] for one in states])
    fillings = [((0, 0), (0, tokens.max() - count), (0, 0)) for count in tokens]
    return EncodedText(np.concatenate([np.pad(*one) for one in zip(states, fillings, strict=True)]), tokens=tokens)


def open_chat(folder: Path, part: TextPart) -> ChatTokenizer:
    """Open the tokenizer of a text. Raises `SourceError` if files are absent or damaged, or it is of another kind."""
    backend = open_whole(folder, _vocabulary_of)
    pad = read_special(folder, backend, _FALLBACK)["pad_token"]
    opened = ChatTokenizer(folder, backend, pad, part, 0)
    frame = len(opened.read("").ids)
    if not part.dropped < frame < part.length:
        raise SourceError(
            f"{folder}/tokenizer.json makes {frame} tokens of a template alone, where {part.dropped + 1} to "
            f"{part.length - 1} leave "
            "room for a text; fetch it again"
        )
    return replace(opened, frame=frame)


def _vocabulary_of(model: Any) -> int | None:
    """Return the number of tokens of a byte-pair model; `None` for another one."""
    tokens = model.get("vocab") if isinstance(model, dict) and model.get("type") == "BPE" else None
    return len(tokens) if isinstance(tokens, dict) else None
