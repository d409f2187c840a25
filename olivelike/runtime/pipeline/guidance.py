"""Classifier-free guidance (https://arxiv.org/abs/2207.12598), also by prompts of several terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True)
class Terms:
    """Rows of prompts, where a picture has several, or one with a weight."""

    weights: tuple[float, ...]
    pictures: tuple[int, ...]
    """Which picture each row belongs to."""


def terms_of(weights: Sequence[Sequence[float]]) -> Terms | None:
    """Return the rows for the weights of each picture's terms; `None` if each has one, of weight 1."""
    if all(list(own) == [1.0] for own in weights):
        return None
    owners = tuple(picture for picture, own in enumerate(weights) for _ in own)
    return Terms(tuple(weight for own in weights for weight in own), owners)


def guide(prediction: torch.Tensor, scale: float, rescale: float, terms: Terms | None = None) -> torch.Tensor:
    """Combine predictions on the negative prompts and on the prompts.

    Args:
        prediction: of shape (pictures + rows of prompts, channels, height, width): first the negative prompts.
        scale: `guidance_scale`.
        rescale: share of the result whose deviation is brought to that of the prompts' prediction (section 3.4 of
            https://arxiv.org/abs/2305.08891).
        terms: rows of prompts that add up to what leads a picture: each by its difference from the negative prompt,
            times its weight (equation 11 of https://arxiv.org/abs/2206.01714).

    Returns:
        A new tensor with a row for each picture.
    """
    if terms is None:
        negative, positive = prediction.chunk(2)
    else:
        negative, positive = _add_up(prediction, terms)
    guided = negative + scale * (positive - negative)
    if rescale == 0:
        return guided
    dims = list(range(1, guided.ndim))
    rescaled = guided * (positive.std(dims, keepdim=True) / guided.std(dims, keepdim=True))
    return rescale * rescaled + (1 - rescale) * guided


def _add_up(prediction: torch.Tensor, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the negative prompts predict, and the sum of what the terms of each picture do."""
    import torch

    owners = torch.tensor(terms.pictures, device=prediction.device)
    weights = torch.tensor(terms.weights, dtype=prediction.dtype, device=prediction.device)
    negative = prediction[: len(prediction) - len(owners)]
    differences = (prediction[len(negative) :] - negative[owners]) * weights[:, None, None, None]
    return negative, negative.index_add(0, owners, differences)
