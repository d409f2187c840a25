"""Schedules of flow matching: latents are a mix of picture and noise, and the network predicts the way between the two.

As `StableDiffusion3Pipeline` of diffusers has them: https://arxiv.org/abs/2403.03206, sections 3.1 and 5.3.2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError

if TYPE_CHECKING:
    import torch

    from olivelike._untrusted import JsonView


@cache
def for_the_loop(cls: Any) -> Any:
    """Return a class of diffusers for flow matching, of the same name, with the methods of those for noise."""

    def scale_model_input(self: Any, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
        return sample

    def add_noise(self: Any, original: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.scale_noise(original, timesteps, noise)
        return mixed

    added = {"init_noise_sigma": 1.0, "scale_model_input": scale_model_input, "add_noise": add_noise}
    return type(cls.__name__, (cls,), added)


def shift_by_size(config: JsonView, tokens: int) -> dict[str, float]:
    """Return what `set_timesteps` takes beside the steps, of a schedule that depends on the picture's size.

    Nothing for another schedule. Raises `SourceError` if the config has no line through its two points.

    Args:
        config: Of the scheduler.
        tokens: Patches of a picture, each of which is one to the network.
    """
    if not config.get("use_dynamic_shifting"):
        return {}
    first, last = config["base_image_seq_len"], config["max_image_seq_len"]
    if first == last:
        raise SourceError(
            f"scheduler/scheduler_config.json: base_image_seq_len and max_image_seq_len are both {first}, so nothing "
            "says how the shift grows with the picture; get the file again"
        )
    slope = (config["max_shift"] - config["base_shift"]) / (last - first)
    return {"mu": config["base_shift"] + slope * (tokens - first)}
