"""Whether a pipeline can make what is asked for, and what a request leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.model.guides import CONTROL_KINDS, GUIDES
from olivelike.runtime.pictures.pixels import seen_size
from olivelike.runtime.pipeline.cheap_steps import check_cheap_steps
from olivelike.runtime.pipeline.guides_in_use import check_control_sizes, check_guides
from olivelike.runtime.pipeline.hires import check_hires, hires_size, second_pass
from olivelike.runtime.pipeline.latents import begin_batch
from olivelike.runtime.pipeline.masked_area import ASPECT_TOLERANCE, check_mask, part_of_picture
from olivelike.runtime.pipeline.request import (
    RESAMPLED,
    SEEDS,
    Request,
    ResolvedRequest,
    check_meaning,
    fields_about,
    fields_that_need,
    least_values,
    most_values,
    ranges,
)
from olivelike.runtime.schedulers.class_settings import check_scheduler

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder

_STRENGTH: Final = 0.8
_PROMPT: Final = tuple(kind.name for kind in GUIDES.values() if kind.is_prompt)


def resolve_defaults(
    request: Request, folder: PipelineFolder, once_checked: Callable[[ResolvedRequest], object] = lambda _: None
) -> ResolvedRequest:
    """Check a request against a pipeline and fill in what it leaves open: seed, size and strength.

    Raises `UsageError` for the first value that can't be had, an unknown scheduler among them, and `SourceError` if the
    folder lacks the network that encodes the initial picture. `once_checked` is called before
    noise and schedule are made, so that networks open meanwhile.
    """
    check_values(request)
    check_meaning(request)
    check_mask(request)
    if request.upscaler is not None and str(request.upscaler) not in RESAMPLED:
        from olivelike.runtime.pictures.upscaling import check_upscaler

        check_upscaler(request.upscaler)
    check_hires(request)
    _check_absent(request, folder)
    if request.references:
        from olivelike.runtime.pipeline.references import check_references

        check_references(request, folder)
    request = check_guides(request, folder)
    size = _size(request, folder)
    _check_shapes(request, size)
    for drawn in {size, hires_size(replace(request, size=size), folder)} if request.controls else ():
        check_control_sizes(drawn, request, folder)
    strength = request.strength
    if strength is None and request.init_image is not None:
        strength = _STRENGTH if request.mask is None else 1.0
    if strength is not None and request.init_image is not None and int(request.steps * strength) < 1:
        raise UsageError(
            f"strength {strength:g} of {request.steps} steps leaves no step; "
            f"take at least strength {1 / request.steps:.2g}, or more steps"
        )
    seed, *_ = request.seeds or (request.seed,)
    varied, *_ = request.variation_seeds or (request.variation_seed,)
    if (seed, varied) != (request.seed, request.variation_seed):
        request = replace(request, seed=seed, variation_seed=varied)
    seeds = request.drawn_seeds()
    syntax = request.prompt_weights and folder.family.prompt_syntax
    found = {**seeds, "size": size, "strength": strength, "prompt_weights": syntax}
    cropped = _cropped(request, size)
    asked = {one.name: getattr(cropped, one.name) for one in fields(Request)}
    resolved = fitted_into_memory(ResolvedRequest(**{**asked, **found}).marked(folder), folder)
    enlarges = resolved.hires is not None and resolved.upscaler is not None
    if resolved.init_image is not None or resolved.references or enlarges:
        folder.model("vae_encoder")
    _check_layers(request, folder)
    check_cheap_steps(resolved, folder)
    check_scheduler(resolved.scheduler, folder.scheduler, flow=folder.is_of_flow)
    once_checked(resolved)
    begin_batch(resolved, folder, ())
    if resolved.hires is not None:
        begin_batch(second_pass(resolved, folder), folder, (), begun=True)
    part_of_picture(resolved)
    return resolved


def check_values(request: Request) -> None:
    """Raise `UsageError` for a count, seed or share that no pipeline takes."""
    _check_counts(request)
    _check_ranges(request)


def fitted_into_memory(request: ResolvedRequest, folder: PipelineFolder) -> ResolvedRequest:
    """Return the request with the VAE on parts of pictures where there is no room for whole ones now."""
    if request.tiled_vae or not _exceeds_memory(request, folder):
        return request
    return request.resolved_with(tiled_vae=True)


def _exceeds_memory(request: ResolvedRequest, folder: PipelineFolder) -> bool:
    """Tell whether the VAE has no room for a whole picture that is larger than the denoiser was trained on."""
    width, height = request.size
    size = round(width * (request.hires or 1)), round(height * (request.hires or 1))
    if size[0] * size[1] <= folder.default_size[0] * folder.default_size[1]:
        return False
    import psutil

    at_once = 1 if request.decode_singly else min(request.batch_size, len(request.seeded_prompts))
    return folder.decoder_memory(size, at_once) > psutil.virtual_memory().available


def absent_fields(folder: PipelineFolder) -> tuple[str, ...]:
    """Return the fields without a meaning: those that are refused, and those that are not used, as lines say."""
    unused = [] if folder.family.prompt_syntax else ["prompt_weights"]
    if not folder.family.takes_negatives and not folder.takes_guidance:
        unused.append("guidance_scale")
    if not folder.has_shallow_denoiser:
        unused += fields_that_need("caches")
    return (*dict.fromkeys((*refused_fields(folder), *unused)), *(["fast"] if folder.is_of_flow else []))


def refused_fields(folder: PipelineFolder) -> Mapping[str, str]:
    """Return why fields are refused, as ends of sentences: what the family says, and what follows from its facts."""
    family = folder.family
    found = dict(family.refused)
    if not family.takes_negatives:
        found |= dict.fromkeys(fields_that_need("guidance"), "there is no guidance that runs in steps of its own")
    if folder.is_of_flow:
        found |= dict.fromkeys(fields_that_need("fresh noise"), "its scheduler draws no fresh noise")
    if not family.caches:
        why = "its denoiser has no part that steps between whole ones could do without"
        found |= dict.fromkeys(fields_that_need("caches"), why)
    if family.guides.isdisjoint(kind.name for kind in CONTROL_KINDS):
        titles = " or ".join(kind.title for kind in CONTROL_KINDS)
        found |= dict.fromkeys(fields_about("controls"), f"there is no {titles} for it here")
    if family.guides.isdisjoint(_PROMPT):
        titles = " or ".join(GUIDES[name].title for name in _PROMPT)
        found |= dict.fromkeys(fields_about("ip_adapter_images"), f"there is no {titles} for it here")
    if not family.most_references:
        found["references"] = "its denoiser sees no pictures beside the text"
    return found


def _check_absent(request: Request, folder: PipelineFolder) -> None:
    """Raise `UsageError` for a field that is given and has no meaning for the folder."""
    for name, why in refused_fields(folder).items():
        value: Any = getattr(request, name)
        if value and value != type(request).__dataclass_fields__[name].default:
            raise UsageError(f"{name} has no meaning for {folder.family.title}: {why}; leave it out")


def _check_counts(request: Request) -> None:
    if not request.prompts:
        raise UsageError('no prompt is given; an empty one, "", is allowed')
    for name, least in least_values().items():
        if (value := getattr(request, name)) is not None and value < least:
            raise UsageError(f"{name} is {value}; it must be at least {least}")
    for name, most in most_values().items():
        if (value := getattr(request, name)) is not None and value > most:
            raise UsageError(f"{name} is {value}; it must be at most {most:,}")
    if request.seeds is not None and len(request.seeds) != len(request.prompts):
        raise UsageError(f"{len(request.prompts)} prompts have {len(request.seeds)} seeds; give each one, or none")


def _check_layers(request: Request, folder: PipelineFolder) -> None:
    """Check `clip_layer` against the configs; where they do not tell, the networks do once they are open."""
    for part in folder.texts:
        layers = folder.config(part.component).get("num_hidden_layers")
        if isinstance(layers, int) and (back := part.layers_back(request.clip_layer)) > part.back and back >= layers:
            raise UsageError(
                f"clip_layer leaves no layer: {folder.model(part.component)} has {layers}; take at most "
                f"{layers + part.shortened}"
            )


def _check_ranges(request: Request) -> None:
    seeds = (request.seed, request.variation_seed, *(request.seeds or ()), *(request.variation_seeds or ()))
    for seed in seeds:
        if seed is not None and not 0 <= seed < SEEDS:
            raise UsageError(f"seed {seed} is not between 0 and {SEEDS - 1}")
    for name, bounds in ranges().items():
        if (value := getattr(request, name)) is not None and (why := bounds.why_not(value)):
            raise UsageError(f"{name} {value:g} is {why}")


def _check_shapes(request: Request, size: tuple[int, int]) -> None:
    """Refuse control pictures of another shape than what is drawn, unless they are to fit."""
    for control in request.controls:
        across, down = seen_size(control.image)
        if not request.fit and abs(across / down * size[1] / size[0] - 1) > ASPECT_TOLERANCE:
            raise UsageError(
                f"the control picture's size {across}x{down} has another shape than the {size[0]}x{size[1]} that are "
                "drawn; give a size of its shape, or crop it (--fit, fit=True takes its middle)"
            )


def _size(request: Request, folder: PipelineFolder) -> tuple[int, int]:
    image = request.init_image
    if image is None and request.controls:
        image = request.controls[0].image
    if image is None and request.references:
        from olivelike.runtime.pipeline.references import within_area

        image = within_area(request.references[0])
    given = request.size or (seen_size(image) if image is not None else folder.default_size)
    unit = folder.size_unit
    if given[0] % unit or given[1] % unit:
        unit = folder.least_unit
    if request.size is not None:
        width, height = request.size
        if width < unit or height < unit or width % unit or height % unit:
            near = _nearest(request.size, unit)
            if request.fit and width > 0 and height > 0:
                return near
            finest = folder.vae_factor
            advice = (
                f", and with `convert: {{any_size: true}}` there are multiples of {finest}" if unit > finest else ""
            )
            raise UsageError(
                f"size {width}x{height}: this pipeline makes sides that are multiples of {unit} pixels; "
                f"the nearest is {near[0]}x{near[1]}{advice}"
            )
        return request.size
    if image is None or request.inpaint_area == "masked":
        return folder.default_size
    turned = seen_size(image)
    if request.fit:
        return _nearest(turned, unit)
    width, height = (side - side % unit for side in turned)
    if not width or not height:
        named = "initial" if request.init_image else "control" if request.controls else "reference"
        raise UsageError(
            f"the {named} picture's size {turned[0]}x{turned[1]} is below "
            f"{unit} pixels, the least that this pipeline makes; give a size to enlarge it to"
        )
    return width, height


def _nearest(size: tuple[int, int], unit: int) -> tuple[int, int]:
    width, height = (max(unit, round(side / unit) * unit) for side in size)
    return width, height


def _cropped(request: Request, size: tuple[int, int]) -> Request:
    """Return the request with its pictures in the shape of the size: the middle of each, if it is to fit."""
    if request.fit and request.controls:
        controls = (replace(control, image=_crop(control.image, size)) for control in request.controls)
        request = replace(request, controls=tuple(controls))
    if not request.fit or request.init_image is None or request.inpaint_area == "masked":
        return request
    mask = request.mask
    return replace(
        request, init_image=_crop(request.init_image, size), mask=None if mask is None else _crop(mask, size)
    )


def _crop(image: Image, size: tuple[int, int]) -> Image:
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    share = min(upright.width / size[0], upright.height / size[1])
    width, height = (max(1, round(side * share)) for side in size)
    left, top = (upright.width - width) // 2, (upright.height - height) // 2
    return upright.crop((left, top, left + width, top + height))
