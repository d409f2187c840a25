"""Settings of diffusers' schedulers: defaults of each class, and what it takes over from the config of another one."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.model.architecture import Config

TABLE: Final = Path(__file__).parents[1] / "data" / "published" / "schedulers.json"
"""Settings that each class fills in and accepts, by release; `tools/make_assets_shelf.py` asks diffusers for them."""
SIGMAS: Final = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
"""Settings for the spacing of noise levels; at most one is on."""
TYPE: Final = "schedule_type"
"""Setting of ours: a schedule type of A1111 that no class of diffusers has a setting for."""
LEAVES_OUT: Final = "leaves_out_least"
"""Setting of ours: whether such a type has one level more, of which the last is left out."""

_MODEL_FACTS = frozenset(
    {
        "beta_end", "beta_schedule", "beta_start", "clip_sample", "clip_sample_range", "dynamic_thresholding_ratio",
        "num_train_timesteps", "original_inference_steps", "prediction_type", "rescale_betas_zero_snr",
        "sample_max_value", "set_alpha_to_one", "sigma_max", "sigma_min", "steps_offset", "thresholding",
        "timestep_scaling", "timestep_type", "trained_betas",
    }
)  # fmt: skip
"""Settings that say how the network was trained: every scheduler of it has them."""

_HABITS = frozenset({"timestep_spacing", "final_sigmas_type", "interpolation_type", *SIGMAS})
"""Settings that another class takes over where they are not just the first one's defaults."""


@cache
def scheduler_table() -> Any:
    """Return the table: of each class in `classes`, a row for all releases that are alike, the latest last."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def taken_over(class_name: str, config: Config, parameters: Collection[str], own_defaults: Config) -> Json:
    """Return the settings that a class gets for a checkpoint; its own defaults are those that are left.

    Args:
        class_name: Of diffusers.
        config: The checkpoint's `scheduler_config.json`.
        parameters: Settings that the class has.
        own_defaults: Settings of the class that the config is for; empty if that is unknown.
    """
    settings = {key: value for key, value in config.items() if key in parameters}
    if class_name == config.get("_class_name"):
        return settings
    settings = {
        key: value
        for key, value in settings.items()
        if key in _MODEL_FACTS or (key in _HABITS and (key not in own_defaults or own_defaults[key] != value))
    }
    # The default is for networks of pixels: it would cut latents off at 1.
    settings.setdefault("clip_sample", False)
    return settings
