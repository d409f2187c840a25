"""A1111's API, `/sdapi/v1`: what draws. What lists and switches is in `a1111_lists`."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from fastapi import APIRouter, Request, Response

from olivelike._untrusted import Json, JsonView
from olivelike.errors import UsageError
from olivelike.families import FAMILIES
from olivelike.runtime.pipeline.hires import schedule_length
from olivelike.runtime.pipeline.request import hires_fields, names_elsewhere
from olivelike.runtime.schedulers.scheduler_names import find_scheduler
from olivelike.serve.api.a1111_guides import controls_of
from olivelike.serve.api.a1111_lists import lists_router
from olivelike.serve.api.a1111_models import LATENT_MODES, Drawing, Extras, ImageToImage, ManyExtras, TextToImage
from olivelike.serve.api.a1111_samplers import scheduler_of
from olivelike.serve.api.a1111_state import chosen_of, model_of, webui_of
from olivelike.serve.api.drawing import find_model, make_order, require_done, service_of
from olivelike.serve.api.guards import client_of
from olivelike.serve.api.images import (
    UPSCALERS,
    PictureAnswer,
    a1111_mask,
    flat,
    from_base64,
    hires_size,
    in_turn,
    png,
    require_side,
    resized,
    scaled_to,
    upright,
)
from olivelike.serve.api.refusals import BodyRoute, RequestRefusedError, refused
from olivelike.serve.api.upscale_routes import enlarged
from olivelike.serve.orders import Order
from olivelike.serve.service import Service
from olivelike.serve.upscalers import named_upscaler
from olivelike.serve.upscales import Upscale
from olivelike.serve.views import JobView, ModelView, PictureView

if TYPE_CHECKING:
    from PIL import Image

Form = TypeVar("Form", bound=Drawing)

a1111_router: Final = APIRouter(prefix="/sdapi/v1", route_class=BodyRoute, tags=["A1111"])
_UNIT: Final = 8
_THEIRS: Final = names_elsewhere("a1111")
"""A1111's names by those of an order."""
_SHARED: Final = {
    name: theirs
    for name, theirs in _THEIRS.items()
    if theirs in Drawing.model_fields and list(_THEIRS.values()).count(theirs) == 1
}
"""Names that mean the same of every drawing: not `denoising_strength`, which is of one pass or the other."""
_SD: Final = FAMILIES["sd1"].usual
_OURS: Final = re.compile(rf"\b({'|'.join(_THEIRS)})\b")


@a1111_router.post("/txt2img")
async def txt2img(request: Request, asked: TextToImage) -> Response:
    """Draw pictures for a prompt; with `enable_hr`, each again at a larger size, from its enlarged form."""
    service = service_of(request)
    asked, model, warnings = await _settled(request, asked)
    scale, files = asked.scale_alone(), service.catalogue.upscalers()
    known = (*LATENT_MODES, *UPSCALERS, *files)
    if (
        asked.enable_hr
        and (name := asked.hr_upscaler or "Lanczos") not in known
        and named_upscaler(name, files) is None
    ):
        raise refused(f"there is no hr_upscaler {asked.hr_upscaler!r}; there are {', '.join(known)}")
    twice = asked.enable_hr and scale is None
    if twice and asked.prompt_matrix:
        raise refused("script_name 'Prompt matrix' is drawn with a second pass that differs by hr_scale alone")
    led = await controls_of(service, asked.alwayson_scripts, model, client_of(request))
    strength = _strength(asked.second_strength, asked.steps)
    more = led
    if scale is not None:
        by = asked.hr_upscaler or "None"
        more = {
            **led, **hires_fields(scale, strength, hires_steps=asked.second_steps),
            "upscaler": None if by in LATENT_MODES else "Lanczos" if by == "None" else by,
        }  # fmt: skip
    order = _order(request, asked, model, save=asked.save_images and not twice, **more)
    if twice:
        default = model.default_size if model else (_UNIT, _UNIT)
        size = _second_size(service, asked, (order.width or default[0], order.height or default[1]))
        service.check_limits(_second_order(request, asked.again(size), asked))
    job = await _submitted(request, order)
    answering = _Answering(request, asked, order, model, [*warnings, *job.notes])
    job = await _drawn(request, job)
    pictures = job.pictures
    if twice and pictures:
        pictures = await _second_pass(request, asked, pictures, led)
    _keep_model(request, asked, order)
    return await answering.response(pictures, job.sheet)


@a1111_router.post("/img2img")
async def img2img(request: Request, asked: ImageToImage) -> Response:
    """Draw pictures that start from one, or each from one of a batch, all of it or where a mask is white."""
    service = service_of(request)
    asked, model, warnings = await _settled(request, asked)
    strength = _strength(0.75 if asked.denoising_strength is None else asked.denoising_strength, asked.steps)
    # What can be refused is, before a picture is decoded.
    service.check_limits(_order(request, asked, model, strength=strength))
    images, mask, size = await in_turn(lambda: _prepared(asked, service.settings.max_side), request)
    client = client_of(request)
    sent = [(await service.upload(image, client)).id for image in images]
    starts: Json = {"init_image": sent[0]}
    if asked.many:
        asked = asked.model_copy(update={"batch_size": len(sent)})
        starts = {"init_images": sent * asked.n_iter, "different_seeds": True, "num_images": 1, "batch_size": 1}
    order = _order(
        request, asked, model, save=asked.save_images,
        width=size[0], height=size[1],
        mask=None if mask is None else (await service.upload(mask, client)).id,
        strength=strength, **starts, **asked.mask_fields,
        **await controls_of(service, asked.alwayson_scripts, model, client),
    )  # fmt: skip
    job = await _submitted(request, order)
    if not asked.include_init_images:
        asked = asked.model_copy(update={"init_images": None, "mask": None})
    answering = _Answering(request, asked, order, model, [*warnings, *job.notes])
    job = await _drawn(request, job)
    _keep_model(request, asked, order)
    # What begins as one picture is drawn together; the numbers of the files go as the seeds do.
    return await answering.response(sorted(job.pictures, key=_number) if order.init_images else job.pictures, job.sheet)


def _number(picture: PictureView) -> int:
    return int(PurePosixPath(picture.file).name.partition("-")[0])


a1111_router.include_router(lists_router)  # Behind what draws, which is looked for first.


@a1111_router.post("/extra-single-image")
async def extra_single_image(request: Request, asked: Extras) -> Response:
    """Enlarge a picture."""
    told = _told(request, asked)
    return PictureAnswer({"html_info": told, "image": (await _extras(request, asked, [asked.image]))[0]})


@a1111_router.post("/extra-batch-images")
async def extra_batch_images(request: Request, asked: ManyExtras) -> Response:
    """Enlarge pictures."""
    told = _told(request, asked)
    images = await _extras(request, asked, [one.data for one in asked.imageList], ended_early=True)
    return PictureAnswer({"html_info": told, "images": images})


async def _extras(request: Request, asked: Extras, pictures: list[str], *, ended_early: bool = False) -> list[bytes]:
    """Return pictures enlarged; of an interrupted batch, which `ended_early`, those that were done.

    One that was interrupted alone is enlarged without a network, as A1111 goes on with it.
    """
    done: list[bytes] = []

    async def work(one: Upscale) -> None:
        for text in pictures:
            done.append(await _extra(request, asked, text, one.tell))
            one.next()

    if pictures:
        await service_of(request).upscales.start(client_of(request), len(pictures), work).finished()
    if len(done) == len(pictures) or ended_early:
        return done
    plain = asked.model_copy(update={"upscaler_1": "Lanczos", "upscaler_2": "None"})
    return [await _extra(request, plain, text, lambda _done, _total: None) for text in pictures]


def _told(request: Request, asked: Extras) -> str:
    """Return the warnings of a request as A1111 has what it tells of pictures: as HTML."""
    warnings = asked.warnings(lenient=service_of(request).settings.ignore_unsupported)
    return "".join(f"<p>{html.escape(warning)}</p>" for warning in warnings)


async def _settled(request: Request, asked: Form) -> tuple[Form, ModelView | None, list[str]]:
    """Return what is to be drawn, with styles and defaults filled in, the folder that draws it, and warnings.

    Raises as `Drawing.settled` and `_model`.
    """
    service = service_of(request)
    asked, warnings = asked.settled(lenient=service.settings.ignore_unsupported)
    model = _model(request, asked)
    if model is not None:
        asked, left_out = _without_negatives(model, _with_usual(model, await _with_styles(service, asked)))
        warnings += left_out
    return asked, model, warnings


async def _submitted(request: Request, order: Order) -> JobView:
    """Queue an order. Raises what is refused in A1111's words."""
    try:
        return await service_of(request).submit(order, client_of(request))
    except UsageError as error:
        if type(error) is not UsageError:  # A full queue has more to say.
            raise
        raise UsageError(_in_their_words(str(error))) from None


async def _drawn(request: Request, job: JobView) -> JobView:
    """Wait for the pictures of a job; one that was interrupted has those that were done."""
    job = await service_of(request).drawn(job.id)
    try:
        return job if job.state == "cancelled" else require_done(job)
    except RequestRefusedError as error:
        raise RequestRefusedError(error.status, error.code, _in_their_words(str(error))) from None


def _in_their_words(message: str) -> str:
    """Return a message that begins with a field of an order with A1111's names of it and others."""
    return _OURS.sub(lambda match: _THEIRS[match[0]], message) if _OURS.match(message) else message


def _model(request: Request, asked: Drawing) -> ModelView | None:
    """Return the folder that draws; `None` if nothing is served.

    Raises `RequestRefusedError` if there is none of the name that was asked for.
    """
    name = asked.override_settings.sd_model_checkpoint
    found = find_model(service_of(request), name or model_of(request))
    if name and found is None:
        raise RequestRefusedError(404, "not_found", "Model not found")
    return found


def _with_usual(model: ModelView, asked: Form) -> Form:
    """Give what names no steps or guidance those of its folder's family, where they are not Stable Diffusion's.

    For that A1111 has defaults of its own.
    """
    other = {_THEIRS.get(field, field): value for field, value in model.usual.items() if value != _SD.get(field)}
    left_open = {name: value for name, value in other.items() if name not in asked.model_fields_set}
    return asked.model_copy(update=left_open) if left_open else asked


async def _with_styles(service: Service, asked: Form) -> Form:
    """Return a request with the words of its styles in its prompts."""
    if not asked.styles:
        return asked
    prompts = await asyncio.to_thread(service.notebook.applied, asked.styles, asked.prompt, asked.negative_prompt)
    return asked.model_copy(update=dict(zip(("prompt", "negative_prompt"), prompts, strict=True)))


def _without_negatives(model: ModelView, asked: Form) -> tuple[Form, list[str]]:
    """Leave out the negative prompts that programs send to every model, where they mean nothing, with a warning."""
    given = {name: "" for name in ("negative_prompt", "hr_negative_prompt") if getattr(asked, name, "")}
    if not given or "negative_prompt" not in model.absent:
        return asked, []
    return asked.model_copy(update=given), [
        f"{', '.join(given)}: not used, nothing leads {model.name} away from a text"
    ]


def _keep_model(request: Request, asked: Drawing, order: Order) -> None:
    """Let a client go on with the folder of a request whose settings are not to be put back."""
    named = asked.override_settings.sd_model_checkpoint
    if named and order.model and not asked.override_settings_restore_afterwards:
        webui_of(request).choose(client_of(request), model=order.model)


def _order(request: Request, asked: Drawing, model: ModelView | None, **more: Any) -> Order:
    chosen, settings = chosen_of(request), asked.override_settings
    skipped = settings.CLIP_stop_at_last_layers or asked.clip_skip or chosen.clip_skip
    scheduler = scheduler_of(asked.sampler_name or asked.sampler_index, asked.scheduler)
    draws_noise = scheduler is not None and find_scheduler(scheduler).class_name.startswith("DDIM")
    eta = settings.eta_ddim if "eta_ddim" in settings.model_fields_set else chosen.eta_ddim
    sides = [round(side / _UNIT) * _UNIT or None for side in (asked.width, asked.height)]
    width, height = sides if all(sides) else (sides[0] or sides[1], sides[1] or sides[0])
    return make_order(
        _THEIRS,
        **{
            **{name: getattr(asked, theirs) for name, theirs in _SHARED.items()},
            "model": model.name if model else None, "prompt": asked.prompt, "negative_prompt": asked.negative_prompt,
            "num_images": 1 if asked.prompt_matrix else asked.n_iter * asked.batch_size,
            "batch_size": asked.batch_size, "steps": asked.steps, "prompt_matrix": asked.prompt_matrix,
            "scheduler": scheduler, "seed": max(asked.seed, -1),
            "eta": (eta if asked.eta is None else asked.eta) if draws_noise else None,
            "clip_layer": max(skipped, 1), "width": width,
            "height": height, "fit": True,
            "variation_seed": max(asked.subseed, -1) if asked.subseed_strength else None,
            **more,
        },
    )  # fmt: skip


def _strength(asked: float, steps: int) -> float:
    """Return the share of the steps that is run: one of them at least, as there, where less is asked for."""
    strength = max(asked, 1 / steps)
    return strength if int(steps * strength) else min(1.0, math.nextafter(strength, 1))


def _prepared(asked: ImageToImage, most: int) -> tuple[list[bytes], bytes | None, tuple[int, int]]:
    """Return initial pictures, mask and size as A1111 makes them of a request; size and mask are those of the first."""
    assert asked.init_images
    first, *others = asked.init_images
    image = _initial(first)
    width, height = asked.width or image.width, asked.height or image.height
    size = max(_UNIT, round(width / _UNIT) * _UNIT), max(_UNIT, round(height / _UNIT) * _UNIT)
    mask = None
    if asked.mask:
        mask = a1111_mask(from_base64(asked.mask, "mask"), image.size)
    if max(size) > most:
        raise refused(f"a side of more than {most} pixels")
    whole = mask is not None and asked.inpaint_full_res

    def made(one: Image.Image) -> bytes:
        if whole and one.size != image.size:
            raise refused("init_images: with inpaint_full_res the mask is of one size; give pictures of that")
        return png(one if whole else resized(one, size, asked.resize_mode))

    if mask is not None and not whole:
        mask = resized(mask, size, asked.resize_mode)
    images = [made(image), *(made(_initial(text)) for text in others)]
    return images, None if mask is None else png(mask), size


def _initial(text: str) -> Image.Image:
    return flat(upright(from_base64(text, "init_images"), "init_images"))


async def _second_pass(
    request: Request, asked: TextToImage, pictures: list[PictureView], led: JsonView
) -> list[PictureView]:
    """Draw each picture again at the larger size."""
    service = service_of(request)
    size = _second_size(service, asked, (pictures[0].width, pictures[0].height))
    found = []
    for picture in pictures:
        large = await enlarged(service, await service.picture_bytes(picture.id), size, asked.hr_upscaler or "Lanczos")
        again = asked.again(size).model_copy(
            update={
                "prompt": asked.hr_prompt or picture.prompt, "seed": picture.seed,
                "subseed": (picture.record or {}).get("variation_seed") or -1,
            }
        )  # fmt: skip
        second = _second_order(
            request, again, asked, init_image=(await service.upload(large, client_of(request))).id, **led
        )
        job = await _drawn(request, await _submitted(request, second))
        found += job.pictures
        if job.state == "cancelled":
            break
    return found


def _second_size(service: Service, asked: TextToImage, first: tuple[int, int]) -> tuple[int, int]:
    size = hires_size(first, asked.hr_scale, asked.hr_resize_x, asked.hr_resize_y)
    if max(size) > service.settings.max_side:
        raise refused(f"hr_scale, hr_resize_x, hr_resize_y: a side of more than {service.settings.max_side} pixels")
    return size


def _second_order(request: Request, again: TextToImage, asked: TextToImage, **more: Any) -> Order:
    # As many run as there, of a schedule that is longer.
    runs = asked.second_steps
    steps = schedule_length(runs, asked.second_strength) if runs else again.steps
    strength = _strength(runs / steps, steps)
    again = again.model_copy(update={"steps": steps})
    return _order(request, again, _model(request, again), save=asked.save_images, strength=strength, **more)


def _enlarges(asked: Drawing) -> TypeGuard[TextToImage]:
    return isinstance(asked, TextToImage) and asked.enable_hr


class _Answering:
    """The answer to a request that draws; its pictures have the format that is chosen as it comes."""

    def __init__(
        self, request: Request, asked: Drawing, order: Order, model: ModelView | None, warnings: list[str]
    ) -> None:
        self._service, self._asked, self._order, self._model = service_of(request), asked, order, model
        self._warnings = warnings
        self._suffix = asked.override_settings.suffix or chosen_of(request).suffix
        self._kept = asked.kept  # While it is drawn.

    async def response(self, pictures: list[PictureView], grid: PictureView | None) -> Response:
        """Return it; a grid comes first, as A1111's prompt matrix has it."""
        shown = [grid, *pictures] if grid else pictures
        data = [await self._service.picture_bytes(one.id, self._suffix) for one in shown if self._asked.send_images]
        info = {**_info(self._model, self._asked, self._order, pictures), "warnings": self._warnings}
        if grid:
            info |= {"index_of_first_image": 1, "infotexts": [grid.parameters or "", *info["infotexts"]]}
        return PictureAnswer({"images": data, "parameters": self._kept, "info": json.dumps(info)})


def _info(found: ModelView | None, asked: Drawing, order: Order, pictures: list[PictureView]) -> Json:
    """Return what A1111's `Processed.js` has; of an interrupted request, what was asked for."""
    first = pictures[0] if pictures else None
    record = (first.record if first else None) or {}
    prompts = [one.prompt for one in pictures] or [asked.prompt]
    seeds = [one.seed for one in pictures] or [asked.seed]
    subseeds = [(one.record or {}).get("variation_seed") or one.seed for one in pictures] or seeds
    return {
        "prompt": prompts[0],
        "all_prompts": prompts,
        "negative_prompt": asked.negative_prompt,
        "all_negative_prompts": [asked.negative_prompt] * len(prompts),
        "seed": seeds[0],
        "all_seeds": seeds,
        "subseed": subseeds[0],
        "all_subseeds": subseeds,
        "subseed_strength": asked.subseed_strength,
        "width": first.width if first else order.width,
        "height": first.height if first else order.height,
        "sampler_name": record.get("sampler") or asked.sampler_name or asked.sampler_index or "",
        "cfg_scale": asked.cfg_scale,
        "steps": asked.steps,
        "batch_size": asked.batch_size,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": found.name if found else None,
        "sd_model_hash": found.hash if found else None,
        "sd_vae_name": None,
        "sd_vae_hash": None,
        "seed_resize_from_w": -1,
        "seed_resize_from_h": -1,
        "denoising_strength": asked.second_strength if _enlarges(asked) else record.get("strength"),
        "extra_generation_params": {"Schedule type": record["schedule"]} if record.get("schedule") else {},
        "index_of_first_image": 0,
        "infotexts": [one.parameters or "" for one in pictures] or [""],
        "styles": asked.styles,
        "job_timestamp": "".join(mark for mark in (first.created if first else "") if mark.isdigit())[:14],
        "clip_skip": order.clip_layer,
        "is_using_inpainting_conditioning": False,
        "version": record.get("version"),
    }


async def _extra(request: Request, asked: Extras, text: str, tell: Callable[[int, int], None]) -> bytes:
    """Return a picture in base64 enlarged."""
    if await request.is_disconnected():
        raise refused("the client has left")
    service = service_of(request)
    files = service.catalogue.upscalers()
    known = (*UPSCALERS, *files)
    for field, name in (("upscaler_1", asked.upscaler_1), ("upscaler_2", asked.upscaler_2)):
        if name not in known and named_upscaler(name, files) is None:
            raise refused(
                f"{field}: there is no upscaler {name!r}; there are {', '.join(known)}, and more where the server is "
                "started with --upscaler-dir"
            )
    data, size = await in_turn(lambda: _to_enlarge(asked, text, service.settings.most_enlarged))
    large = data if asked.upscaler_1 == "None" else await enlarged(service, data, size, asked.upscaler_1, tell)
    if asked.upscaler_2 == "None" or not asked.extras_upscaler_2_visibility:
        return large
    whole = await in_turn(lambda: upright(large, "picture").size)
    other = await enlarged(service, data, whole, asked.upscaler_2)
    return await in_turn(lambda: _blended(large, other, asked.extras_upscaler_2_visibility))


def _to_enlarge(asked: Extras, text: str, most: int) -> tuple[bytes, tuple[int, int]]:
    """Return a picture that was sent, and the size that it is to have."""
    image = flat(upright(from_base64(text, "image"), "image"))
    size = asked.upscaling_resize_w, asked.upscaling_resize_h
    size = scaled_to(image.size, size, crop=asked.upscaling_crop)
    if asked.resize_mode == 0:
        size = round(image.width * asked.upscaling_resize), round(image.height * asked.upscaling_resize)
    require_side(size, most)
    return png(image), (max(size[0], 1), max(size[1], 1))


def _blended(first: bytes, second: bytes, share: float) -> bytes:
    from PIL import Image

    return png(Image.blend(upright(first, "picture"), upright(second, "picture"), share))
