"""Pictures that lead by T2I-Adapters: features that are added to the UNet's on its way down, the same in all steps.

As diffusers' `StableDiffusionXLAdapterPipeline`: `adapter_conditioning_scale` is the strength, and
`adapter_conditioning_factor` the share of the steps up to which they lead; several add up (`MultiAdapter`).
https://arxiv.org/abs/2302.08453
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError, UsageError
from olivelike.model.families import ADAPTER_PICTURE, T2I_ADAPTERS, adapter_feature, is_adapter_feature

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from PIL.Image import Image

    from olivelike.model.architecture import Config
    from olivelike.runtime.pipeline.request import Control
    from olivelike.runtime.sessions.session import Call, Network


@dataclass(frozen=True, eq=False)
class Leading:
    """A picture that leads."""

    control: Control

    def is_active(self, step: int, steps: int) -> bool:
        """Say whether it leads a step, counted from 0, of so many: from beginning to end of it."""
        return step / steps >= self.control.start and (step + 1) / steps <= self.control.end


@dataclass(frozen=True, eq=False)
class AdapterLead(Leading):
    """A picture that leads by a T2I-Adapter."""

    features: Mapping[str, torch.Tensor]
    """By input of the UNet, of shape (1, channels, height, width), float32, times the strength."""


def check_adapter_size(size: tuple[int, int], config: Config, where: Path) -> None:
    """Check that a T2I-Adapter with this config, from there, takes pictures of a size.

    Raises `UsageError` if it does not, and `SourceError` if the config is none of a T2I-Adapter.
    """
    from olivelike.families.supported import check_network
    from olivelike.model.adapter_features import downscale_factor

    try:
        check_network(T2I_ADAPTERS[0], "T2IAdapter", config)
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from error
    unit = downscale_factor(config)
    if size[0] % unit or size[1] % unit:
        raise UsageError(
            f"size {size[0]}x{size[1]}: a T2I-Adapter of this pipeline takes sides that are multiples of {unit} "
            "pixels; take such a size, or drop its control picture"
        )


def adapter_lead(
    control: Control, network: Network, image: Image, size: tuple[int, int], config: Config
) -> AdapterLead:
    """Run a T2I-Adapter on a picture, at the size that is drawn."""
    from diffusers.image_processor import VaeImageProcessor

    from olivelike.model.adapter_features import downscale_factor, given_features

    width, height = size
    channels = network.input(ADAPTER_PICTURE).dims[1]
    colours = {"do_convert_grayscale": True} if channels == 1 else {"do_convert_rgb": True}
    processor: Any = VaeImageProcessor(vae_scale_factor=downscale_factor(config), do_normalize=False, **colours)
    pixels = processor.preprocess(image, width=width, height=height)
    shapes: dict[str, tuple[int, ...]] = {
        adapter_feature(number): (1, one.channels, -(-height // one.scale), -(-width // one.scale))
        for number, one in enumerate(given_features(config))
    }
    call = network.prepare({ADAPTER_PICTURE: tuple(pixels.shape)}, shapes)
    call.inputs[ADAPTER_PICTURE].copy_(pixels)
    call.run()
    return AdapterLead(control, {name: call.outputs[name].float() * control.strength for name in shapes})


class AdapterInputs:
    """What T2I-Adapters give, in the inputs of the UNet's call: written when others lead than before."""

    def __init__(self) -> None:
        self._written: tuple[Mapping[str, torch.Tensor], list[AdapterLead]] | None = None

    def fill(self, unet: Call, leads: Sequence[AdapterLead]) -> None:
        """Put the sum of features into all rows; zeros where none lead."""
        before = self._written
        if before is not None and before[0] is unet.inputs and before[1] == list(leads):
            return
        for name, target in unet.inputs.items():
            if not is_adapter_feature(name):
                continue
            target.zero_()
            if given := [lead.features[name] for lead in leads]:
                target.copy_(sum(given[1:], given[0]))
        self._written = unet.inputs, list(leads)
