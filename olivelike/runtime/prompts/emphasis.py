"""Weights of tokens, applied to the hidden states of a text encoder.

As A1111's emphasis "Original" (`modules/sd_emphasis.py`): states times weights, then scaled back to the mean that they
had, chunk by chunk. A1111 takes the mean over a batch of prompts; here it is each prompt's own, so that a picture does
not depend on its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def weighted(hidden: torch.Tensor, weights: Sequence[Sequence[float]]) -> torch.Tensor:
    """Weigh the chunks of one prompt and lay them one after the other.

    Args:
        hidden: hidden states of the chunks, of shape (chunks, length, width), in any floating dtype.
        weights: a weight per token, (chunks, length).

    Returns:
        Embeddings of shape (1, chunks · length, width), of the dtype of `hidden`; a chunk whose weights are all 1 keeps
        its bits.

    Raises:
        UsageError: if the weights leave no finite numbers.
    """
    import torch

    chunks = []
    for states, own in zip(hidden, weights, strict=True):
        if all(weight == 1.0 for weight in own):
            chunks.append(states)
            continue
        whole = states.float()
        scaled = whole * torch.tensor(own, dtype=torch.float32, device=hidden.device)[:, None]
        restored = (scaled * (whole.mean() / scaled.mean())).to(hidden.dtype)
        if not bool(torch.isfinite(restored).all()):
            raise UsageError(
                "prompt: with these weights the text's embedding has no finite values; use smaller ones"
            )
        chunks.append(restored)
    return torch.cat(chunks)[None]
