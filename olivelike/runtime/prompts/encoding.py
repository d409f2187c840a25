"""Prompts and negative prompts as what the UNet attends to, of equal length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from olivelike.errors import UsageError
from olivelike.runtime.prompts.chunks import Chunks, chunk_prompt
from olivelike.runtime.prompts.emphasis import weighted
from olivelike.runtime.prompts.syntax import parse_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from olivelike.runtime.prompts.tokenizer import PromptTokenizer


@dataclass(frozen=True)
class EncodedText:
    """What a text encoder makes of rows of ids."""

    hidden: torch.Tensor
    """Hidden states, of shape (rows, length, width)."""
    pooled: torch.Tensor | None = None
    """Pooled output, of shape (rows, width), of an encoder with projection."""


class TextEncoder(Protocol):
    """A text encoder, ready to run."""

    def __call__(self, ids: torch.Tensor, /) -> EncodedText:
        """Encode ids, int32 of shape (rows, length); all rows differ."""


@dataclass(frozen=True)
class PromptEmbeddings:
    """Embeddings of a batch of prompts."""

    positive: torch.Tensor
    """Of shape (prompts, chunks · length, width); widths of several encoders are concatenated."""
    negative: torch.Tensor | None
    """Of the same shape; `None` without negative prompts."""
    positive_pooled: torch.Tensor | None
    """Pooled output of the last encoder for the first chunk, of shape (prompts, width); `None` if it has none."""
    negative_pooled: torch.Tensor | None
    tokens: tuple[int, ...]
    """Tokens of each prompt, by the first tokenizer."""
    chunks: int
    """Chunks that each embedding consists of."""


def encode_prompts(
    prompts: Sequence[str],
    negative_prompts: Sequence[str] | None,
    encoders: Sequence[tuple[PromptTokenizer, TextEncoder]],
    *,
    prompt_weights: bool = True,
) -> PromptEmbeddings:
    """Encode prompts, and negative prompts to the same length.

    Every distinct row of ids is encoded once, in one call per encoder.

    Args:
        prompts: one for each picture.
        negative_prompts: as many, or `None` if there is no guidance.
        encoders: one with its tokenizer, or two for SDXL.
        prompt_weights: whether brackets are weights, as in A1111, or text.

    Raises:
        UsageError: if the numbers of prompts differ, or weights can't be applied.
    """
    import torch

    if not prompts:
        raise UsageError("there is no prompt; give at least one, which may be empty")
    if negative_prompts is not None and len(negative_prompts) != len(prompts):
        raise UsageError(
            f"{len(prompts)} prompts and {len(negative_prompts)} negative prompts; give one for each, or for none"
        )
    texts = [*prompts, *(negative_prompts or ())]
    parsed = {text: parse_prompt(text, prompt_weights=prompt_weights) for text in texts}
    chunked = [
        {text: chunk_prompt(tokenizer, parts) for text, parts in parsed.items()} for tokenizer, _ in encoders
    ]
    # Tokenizers may differ by a textual inversion, so that the longest of all decides.
    count = max(len(chunks.ids) for by_text in chunked for chunks in by_text.values())
    encoded = [
        _encode({text: chunks.padded(count, tokenizer) for text, chunks in by_text.items()}, encoder)
        for by_text, (tokenizer, encoder) in zip(chunked, encoders, strict=True)
    ]
    hidden = {text: torch.cat([by_text[text].hidden for by_text in encoded], dim=-1) for text in parsed}
    last = encoded[-1]

    def gather(wanted: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor | None]:
        pooled = [row for row in (last[text].pooled for text in wanted) if row is not None]
        return torch.cat([hidden[text] for text in wanted]), torch.cat(pooled) if pooled else None

    positive, positive_pooled = gather(prompts)
    negative, negative_pooled = gather(negative_prompts) if negative_prompts is not None else (None, None)
    tokens = tuple(chunked[0][text].tokens for text in prompts)
    return PromptEmbeddings(positive, negative, positive_pooled, negative_pooled, tokens, count)


def _encode(chunks: Mapping[str, Chunks], encoder: TextEncoder) -> dict[str, EncodedText]:
    """Return each text's embedding, (1, chunks · length, width), and its pooled output, (1, width)."""
    import torch

    rows = list(dict.fromkeys(row for prompt in chunks.values() for row in prompt.ids))
    number = {row: index for index, row in enumerate(rows)}
    output = encoder(torch.tensor(rows, dtype=torch.int32))
    found = {}
    for text, prompt in chunks.items():
        places = [number[row] for row in prompt.ids]
        pooled = None if output.pooled is None else output.pooled[places[:1]]
        found[text] = EncodedText(weighted(output.hidden[places], prompt.weights), pooled)
    return found
