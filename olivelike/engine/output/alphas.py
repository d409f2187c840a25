"""Products of alphas, by which a scheduler's config says how noise grows; formulas are those of diffusers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.architecture import Config

SCHEDULER_FILE: Final = "scheduler/scheduler_config.json"
_MOST_BETA: Final = 0.999
_MOST_MOMENTS: Final = 1_000_000


def alphas_of(config: Config) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the products of alphas that a scheduler's config leads to, one per timestep.

    Raises `KeyError`, `ValueError` or `TypeError` if it leads to none.
    """
    import numpy as np

    return np.cumprod(1 - _betas(config), dtype=np.float32)


def _betas(config: Config) -> np.ndarray[Any, np.dtype[np.float32]]:
    import numpy as np

    if (trained := config.get("trained_betas")) is not None:
        betas = np.array(trained, np.float32)
        if betas.ndim != 1 or not betas.size:
            raise ValueError("trained_betas is no list of numbers")
    else:
        count, kind = int(config["num_train_timesteps"]), config["beta_schedule"]
        if not 0 < count <= _MOST_MOMENTS:
            raise ValueError(f"num_train_timesteps is {count}")
        first, last = float(config["beta_start"]), float(config["beta_end"])
        if kind == "linear":
            betas = np.linspace(first, last, count, dtype=np.float32)
        elif kind == "scaled_linear":
            betas = np.linspace(math.sqrt(first), math.sqrt(last), count, dtype=np.float32) ** 2
        elif kind == "squaredcos_cap_v2":
            bars = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
            betas = np.minimum(1 - bars[1:] / bars[:-1], _MOST_BETA).astype(np.float32)
        else:
            raise ValueError(f"beta_schedule is {kind!r}")
    return _without_signal_at_the_end(betas) if config.get("rescale_betas_zero_snr") else betas


def _without_signal_at_the_end(betas: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return betas whose last step is noise alone: algorithm 1 of https://arxiv.org/abs/2305.08891."""
    import numpy as np

    roots = np.sqrt(np.cumprod(1 - betas, dtype=np.float32))
    bars = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    return np.asarray(1 - np.concatenate([bars[:1], bars[1:] / bars[:-1]]), np.float32)
