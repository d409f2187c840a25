"""Cost of a batch's prompts, bounded before anything is encoded.

A text is read in chunks of 75 tokens. In each step the denoiser attends to parts times chunks, all parts being as long
as the longest; of all steps that differ these are held at once. A prompt of 20 KB can ask for thousands: by `BREAK`, by
`AND`, by letters that have three tokens each, by texts that change at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.runtime.prompts.syntax import PromptTerm, read_terms, texts_of_steps
from olivelike.runtime.prompts.text_kinds import chunk_counter

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request

MOST_CHUNKS: Final = 64
"""Most chunks of a picture at one step: 512x512 pixels attend to their 4,928 tokens as to their own 4,096."""
MOST_PARTS: Final = 8
"""Most parts of a prompt: the denoiser's rows, each of which costs what a picture of a batch does. With 16 the demo
takes 2.6 times its memory at rest to draw 512x512 pixels, with 64 chunks 1.5 times."""
_MOST_STEPPED: Final = 1024
"""Chunks of a picture over all steps that differ: 240 MB of SD 1.5's states."""


@dataclass(frozen=True)
class BatchTexts:
    """Texts of a batch's prompts at each step."""

    parts: tuple[tuple[PromptTerm, ...], ...]
    """Parts of each picture's prompt."""
    against: tuple[str, ...]
    """The negative prompt at each step; empty where there is none to encode."""
    guided: bool
    """Whether there is a row for the negative prompt."""

    @property
    def distinct(self) -> list[str]:
        """Each text once."""
        return list(dict.fromkeys([*(t for one in self.parts for part in one for t in part.texts), *self.against]))


def batch_texts(prompts: Sequence[str], request: Request, folder: PipelineFolder) -> BatchTexts:
    """Return what is to be encoded for a batch of prompts.

    Prompts of several parts are guided at any scale: what leads is how parts differ from the negative prompt. Raises
    `UsageError` for a prompt of too many parts.
    """
    weights = request.prompt_weights
    parts = tuple(read_terms(prompt, request.steps, prompt_weights=weights) for prompt in prompts)
    several = any(len(one) > 1 or one[0].weight != 1.0 for one in parts)
    guided = (request.guided and folder.takes_negative_prompt) or several
    zeros = folder.family.zeros_for_no_text and folder.index.get("force_zeros_for_empty_prompt")
    against: tuple[str, ...] = ()
    if guided and not (zeros and request.negative_prompt is None):
        text = request.negative_prompt or ""
        against = texts_of_steps(text, request.steps) if weights else (text,) * request.steps
    return BatchTexts(parts, against, guided)


def check_cost(texts: BatchTexts, folder: PipelineFolder, *, prompt_weights: bool = True) -> None:
    """Raise `UsageError` if a batch has more parts, chunks, or chunks of all steps together than are drawn with."""
    pictures, rows = len(texts.parts), sum(map(len, texts.parts))
    if (most := max(map(len, texts.parts))) > MOST_PARTS:
        raise UsageError(f"prompt: it has {most:,} parts, and at most {MOST_PARTS} are drawn with; leave out some AND")
    stepped = [part.texts for one in texts.parts for part in one]
    moments = set(zip(*stepped, *([texts.against] if texts.against else ()), strict=True))
    held = len(moments) * (rows + pictures * texts.guided)
    singly = ", or draw fewer pictures at once (batch_size)" if pictures > 1 else ""
    counters = [chunk_counter(folder.path, part) for part in folder.texts]
    own = {text for one in texts.parts for part in one for text in part.texts}
    for text in texts.distinct:
        chunks = max(counted(text, prompt_weights) for counted in counters)
        name = "prompt" if text in own else "negative prompt"
        if chunks * rows > MOST_CHUNKS * pictures:
            parted = f" in each of {rows:,} parts" if rows > pictures else ""
            raise UsageError(
                f"{name}: it has {chunks:,} chunks of 75 tokens{parted}, and at most {MOST_CHUNKS} are drawn with for "
                f"a picture; leave out words, BREAK or AND{singly}"
            )
        if chunks * held > _MOST_STEPPED * pictures:
            raise UsageError(
                f"{name}: it changes {len(moments):,} times, and what it says would be {chunks * held:,} chunks of 75 "
                f"tokens, of which at most {_MOST_STEPPED:,} are held for a picture; let it change less often{singly}"
            )
