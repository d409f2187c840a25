"""Products of alphas, by which a scheduler's config says how noise grows; formulas are those of diffusers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from olivelike.model.architecture import Config

SCHEDULER_FILE: Final = "scheduler/scheduler_config.json"
_MOST_BETA: Final = 0.999
_MOST_MOMENTS: Final = 1_000_000

Floats = np.ndarray[Any, np.dtype[np.float32]]


def alphas_of(config: Config) -> Floats:
    """Return the products of alphas that a scheduler's config leads to, one per timestep.

    As torch's `cumprod`: of numbers of 32 bits, multiplied in 64, and rounded again. Raises `KeyError`, `ValueError` or
    `TypeError` if the config leads to none.
    """
    betas = _betas(config)
    return _products(_without_signal_at_the_end(betas) if config.get("rescale_betas_zero_snr") else betas)


def _products(betas: Floats) -> Floats:
    return np.cumprod(1 - betas, dtype=np.float64).astype(np.float32)


def _betas(config: Config) -> Floats:
    if (trained := config.get("trained_betas")) is not None:
        betas = np.array(trained, np.float32)
        if betas.ndim != 1 or not betas.size:
            raise ValueError("trained_betas is no list of numbers")
        return betas
    count, kind = int(config["num_train_timesteps"]), config["beta_schedule"]
    if not 0 < count <= _MOST_MOMENTS:
        raise ValueError(f"num_train_timesteps is {count}")
    first, last = float(config["beta_start"]), float(config["beta_end"])
    if kind == "linear":
        return np.linspace(first, last, count, dtype=np.float32)
    if kind == "scaled_linear":
        roots = np.linspace(math.sqrt(first), math.sqrt(last), count, dtype=np.float32)
        squares: Floats = roots**2
        return squares
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-np.linspace(-6, 6, count))) * (last - first) + first, np.float32)
    if kind not in _BARS:
        raise ValueError(f"beta_schedule is {kind!r}")
    bars = _BARS[kind](np.arange(count + 1) / count)
    return np.asarray(np.minimum(1 - bars[1:] / bars[:-1], _MOST_BETA), np.float32)


def _laplace(time: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ratio = (1 - 2 * np.abs(0.5 - time) + 1e-6) ** (-0.5 * np.copysign(1, 0.5 - time))
    return np.asarray(np.sqrt(ratio / (1 + ratio)))


_BARS: Final[Mapping[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    "squaredcos_cap_v2": lambda time: np.cos((time + 0.008) / 1.008 * np.pi / 2) ** 2,
    "laplace": _laplace,
    "exp": lambda time: np.exp(-12.0 * time),
}
"""Schedules by what is left of the signal at a share of the time."""


def _without_signal_at_the_end(betas: Floats) -> Floats:
    """Return betas whose last step is noise alone: algorithm 1 of https://arxiv.org/abs/2305.08891."""
    roots = np.sqrt(_products(betas))
    bars = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    return np.asarray(1 - np.concatenate([bars[:1], bars[1:] / bars[:-1]]), np.float32)
