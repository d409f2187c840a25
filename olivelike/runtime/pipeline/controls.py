"""Pictures that lead: ControlNets run before the UNet in each step, and give it what is added on its way up.

As diffusers' `StableDiffusionControlNetPipeline`: strengths, shares of the steps, guess mode, several at once by their
sum (`MultiControlNetModel`). https://arxiv.org/abs/2302.05543
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import did_you_mean
from olivelike.errors import MissingError, UsageError
from olivelike.model.families import (
    CONTROL_PICTURE,
    CONTROLNETS,
    IP_ADAPTER,
    LEADERS,
    STRENGTH,
    T2I_ADAPTERS,
    first_of_kind,
    is_adapter_feature,
)
from olivelike.runtime.pipeline.adapter_leads import Leading, adapter_lead, check_adapter_size
from olivelike.runtime.pipeline.vae import upright

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Control, Request, ResolvedRequest
    from olivelike.runtime.sessions.session import Call, Network

_FIRST_SHARE: Final = 0.1
"""Of the outermost residual in guess mode; the shares grow evenly in logarithm to 1, that of the middle."""
MOST_STRENGTH: Final = 10
"""Of a control picture, either way."""
_EDGES: Final = (100, 200)
"""Thresholds of the Canny detector, as in A1111's extension and diffusers' guide."""


def check_controls(request: Request, folder: PipelineFolder) -> Request:
    """Check the pictures that lead; return the request with the name of each one's ControlNet or T2I-Adapter.

    Raises `UsageError` for what can't be had, and `SourceError` if the folder's UNet takes no residuals.
    """
    if not request.controls:
        if request.control_guess:
            raise UsageError("control_guess is given without a picture that leads; give one, or drop it")
        return request
    names = folder.leading
    if not names:
        raise UsageError(
            f"{folder.path} has no ControlNet, which a control picture needs; name one under `controlnets:`, or a "
            "T2I-Adapter under `t2i_adapters:`, in its workflow and run it again"
        )
    checked = tuple(_checked(control, names) for control in request.controls)
    request = replace(request, controls=checked)
    folder.led_denoiser(used := leaders(request, folder))
    if request.control_guess and CONTROLNETS[0] not in used:
        raise UsageError("control_guess is about ControlNets, and only T2I-Adapters lead; drop it")
    if request.cache_interval > 1:
        raise UsageError(
            "cache_interval leaves out the layers that a ControlNet leads, or a T2I-Adapter; take cache_interval 1 "
            "with control pictures"
        )
    if request.inpaint_area == "masked":
        raise UsageError(
            "inpaint_area masked draws a part of the picture, and a control picture leads all of it; take inpaint_area "
            "whole"
        )
    return request


def leaders(request: Request, folder: PipelineFolder) -> list[str]:
    """Return which of `LEADERS` lead the UNet to a request's pictures."""
    names = folder.leading if request.controls else {}
    used = {first_of_kind(names[control.net]) for control in request.controls if control.net is not None}
    return [leader for leader in LEADERS if leader in used or (leader == IP_ADAPTER and request.ip_adapter_images)]


def check_control_sizes(size: tuple[int, int], request: Request, folder: PipelineFolder) -> None:
    """Check that pictures of a size can be led. Raises `UsageError` if a T2I-Adapter has no features for it."""
    for component in {folder.leading[control.net] for control in request.controls if control.net is not None}:
        if component in T2I_ADAPTERS:
            check_adapter_size(size, folder.config(component), folder.path / component / "config.json")


def _checked(control: Control, names: Mapping[str, str]) -> Control:
    kinds = {"T2I-Adapters" if component in T2I_ADAPTERS else "ControlNets": None for component in names.values()}
    if control.net is None and len(names) > 1:
        raise UsageError(
            f"the pipeline has {len(names)} {' and '.join(kinds)}; say which one a control picture is for: "
            f"{', '.join(names)}"
        )
    net = control.net or next(iter(names))
    if net not in names:
        by_component = {component: name for name, component in names.items()}
        if net not in by_component:
            kind = " or ".join(kind.removesuffix("s") for kind in kinds)
            raise UsageError(f"the pipeline has no {kind} {net!r}; {did_you_mean(net, names, ' and '.join(kinds))}")
        net = by_component[net]
    if not abs(control.strength) <= MOST_STRENGTH:
        raise UsageError(
            f"the strength of a control picture, {control.strength:g}, is no number from {-MOST_STRENGTH} to "
            f"{MOST_STRENGTH}; 1 is what its network was trained for"
        )
    if not 0 <= control.start < control.end <= 1:
        raise UsageError(
            f"a control picture leads from {control.start:g} to {control.end:g}: these are no two shares of the steps, "
            "the first below the second, both between 0 and 1"
        )
    if control.preprocessor == "canny" and find_spec("cv2") is None:
        raise MissingError("edges (canny) are found by OpenCV; run `pip install 'olivelike[canny]'`")
    return replace(control, net=net)


def find_edges(image: Image) -> Image:
    """Return the edges of a picture, white on black, by the Canny detector, in RGB."""
    import cv2
    import numpy as np
    from PIL import Image as Images

    edges = cv2.Canny(np.asarray(upright(image).convert("L")), *_EDGES)
    return Images.fromarray(edges).convert("RGB")


@dataclass(frozen=True, eq=False)
class Lead(Leading):
    """A picture that leads, and its ControlNet."""

    network: Network
    pixels: torch.Tensor
    """Of shape (1, 3, height, width), from 0 to 1."""
    is_pooled: bool
    """Whether its residuals are means over the picture, which lead prompts alone."""


def make_leads(
    request: ResolvedRequest, folder: PipelineFolder, networks: Mapping[str, Network]
) -> tuple[Leading, ...]:
    """Prepare the pictures that lead a request, at its size; `networks` lead, by their names.

    T2I-Adapters run here, once for all steps.
    """
    from diffusers.image_processor import VaeImageProcessor

    processor: Any = VaeImageProcessor(vae_scale_factor=folder.vae_factor, do_convert_rgb=True, do_normalize=False)
    leads: list[Leading] = []
    for control in request.controls:
        assert control.net is not None
        component = folder.leading[control.net]
        image = find_edges(control.image) if control.preprocessor == "canny" else upright(control.image)
        if component in T2I_ADAPTERS:
            config = folder.config(component)
            leads.append(adapter_lead(control, networks[control.net], image, request.size, config))
            continue
        pixels = processor.preprocess(image, width=request.size[0], height=request.size[1])
        pooled = bool(folder.config(component).get("global_pool_conditions"))
        leads.append(Lead(control, networks[control.net], pixels, pooled))
    return tuple(leads)


class ControlCalls:
    """Calls of ControlNets for rows that go through the UNet at once.

    Args:
        leads: all pictures that lead.
        negatives: how many of the rows, the first ones, are of negative prompts.
        guess: let prompts alone be led, by shares that grow towards the middle.
    """

    def __init__(self, leads: Sequence[Lead], negatives: int, *, guess: bool) -> None:
        self._guess = guess or leads[0].is_pooled
        self._skipped = negatives if self._guess else 0

    def fill(
        self, unet: Call, sample: torch.Tensor, moment: torch.Tensor, leading: Mapping[str, torch.Tensor],
        leads: Sequence[Lead],
    ) -> None:  # fmt: skip
        """Put the residuals of a step into the inputs of the UNet's call.

        Args:
            unet: its inputs are what ControlNets give, and others.
            sample: latents of all rows, as the UNet takes them.
            moment: the timestep.
            leading: what else leads the rows, by the names of inputs.
            leads: those that are active in this step.
        """
        residuals = {
            name: value for name, value in unet.inputs.items() if is_residual(name) and not is_adapter_feature(name)
        }
        rows = slice(self._skipped, len(sample))
        if not leads or rows.start >= rows.stop:
            for value in residuals.values():
                value.zero_()
            return
        for number, lead in enumerate(leads):
            call = self._run(lead, residuals, sample[rows], moment, {name: v[rows] for name, v in leading.items()})
            shares = self._shares(lead, len(residuals))
            for (name, target), share in zip(residuals.items(), shares, strict=True):
                given = call.outputs[name] if share == 1 else call.outputs[name] * share
                if number:
                    target[rows].add_(given)
                else:
                    target[: rows.start].zero_()
                    target[rows].copy_(given)

    def _run(
        self, lead: Lead, residuals: Mapping[str, torch.Tensor], sample: torch.Tensor, moment: torch.Tensor,
        leading: Mapping[str, torch.Tensor],
    ) -> Call:  # fmt: skip
        network, rows = lead.network, len(sample)
        known = network.session.inputs
        given = {
            "sample": sample, **{name: value for name, value in leading.items() if name in known},
            CONTROL_PICTURE: lead.pixels.expand(rows, -1, -1, -1),
        }  # fmt: skip
        shapes = {name: tuple(value.shape) for name, value in given.items()}
        shapes |= {name: (1,) * len(network.input(name).dims) for name in ("timestep", STRENGTH) if name in known}
        sizes = {
            name: (rows, value.shape[1], *((1, 1) if lead.is_pooled else value.shape[2:]))
            for name, value in residuals.items()
        }
        call = network.prepare(shapes, sizes)
        for name, value in given.items():
            call.inputs[name].copy_(value)
        timestep = call.inputs["timestep"]
        timestep.copy_(moment if timestep.is_floating_point() else moment.round())
        if STRENGTH in call.inputs:
            call.inputs[STRENGTH].fill_(lead.control.strength)
        call.run()
        return call

    def _shares(self, lead: Lead, count: int) -> list[float]:
        """Return what each residual is multiplied by here; the middle's is the last."""
        own = 1.0 if STRENGTH in lead.network.session.inputs else lead.control.strength
        if not self._guess or lead.is_pooled:
            return [own] * count
        return [own * _FIRST_SHARE ** (1 - number / (count - 1)) for number in range(count)]


def is_residual(name: str) -> bool:
    """Say whether an input of a UNet is what a ControlNet or a T2I-Adapter gives."""
    return name.endswith("_additional_residual")
