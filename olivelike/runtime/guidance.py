"""Classifier-free guidance (https://arxiv.org/abs/2207.12598)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def guide(prediction: torch.Tensor, scale: float, rescale: float) -> torch.Tensor:
    """Combine predictions on the negative prompts and on the prompts.

    Args:
        prediction: of shape (2 · pictures, channels, height, width): first the negative prompts, then the prompts.
        scale: `guidance_scale`.
        rescale: share of the result whose deviation is brought to that of the prompts' prediction (section 3.4 of
            https://arxiv.org/abs/2305.08891).

    Returns:
        A new tensor of half the batch.
    """
    negative, positive = prediction.chunk(2)
    guided = negative + scale * (positive - negative)
    if rescale == 0:
        return guided
    dims = list(range(1, guided.ndim))
    rescaled = guided * (positive.std(dims, keepdim=True) / guided.std(dims, keepdim=True))
    return rescale * rescaled + (1 - rescale) * guided
