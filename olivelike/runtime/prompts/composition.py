"""Prompts of several parts, `a castle AND a storm :0.6`, each with a weight and a text for each step.

As `get_multicond_prompt_list` in A1111's `modules/prompt_parser.py` parts them, after Composable Diffusion
(https://arxiv.org/abs/2206.01714). A weight needs an `AND`: without one, `16:9` at a prompt's end is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from olivelike.runtime.prompts.editing import texts_of_steps

_AND: Final = re.compile(r"\bAND\b")
_WEIGHT: Final = re.compile(r"[-+]?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9})")


@dataclass(frozen=True)
class PromptTerm:
    """One part of a prompt."""

    weight: float
    """What its guidance is multiplied by."""
    texts: tuple[str, ...]
    """What it says at each step."""


def read_terms(prompt: str, steps: int, *, prompt_weights: bool = True) -> tuple[PromptTerm, ...]:
    """Part a prompt at each `AND`, and lay out what each part says at each step.

    Args:
        prompt: what the user wrote.
        steps: how many there are.
        prompt_weights: `False` takes all of it literally.
    """
    if not prompt_weights:
        return (PromptTerm(1.0, (prompt,) * steps),)
    texts = _AND.split(prompt)
    if len(texts) == 1:
        return (PromptTerm(1.0, texts_of_steps(prompt, steps)),)
    terms = []
    for text in texts:
        said, _, number = text.rpartition(":")
        said, weight = (said, float(number)) if _WEIGHT.fullmatch(number.strip()) and said else (text, 1.0)
        terms.append(PromptTerm(weight, texts_of_steps(said, steps)))
    return tuple(terms)
