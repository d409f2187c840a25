"""A1111's API, `/sdapi/v1`: what draws. What lists and switches is in `a1111_lists`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request

from olivelike.errors import SourceError
from olivelike.runtime.schedulers.scheduler_names import find_scheduler, written_schedule
from olivelike.serve.api.a1111_lists import WebUI, lists_router, webui_of
from olivelike.serve.api.a1111_models import (
    LATENT_MODES,
    SAMPLER_ALIASES,
    SCHEDULE_NAMES,
    Drawing,
    Extras,
    ImageToImage,
    ManyExtras,
    TextToImage,
    refused,
)
from olivelike.serve.api.controlnet import controls_of
from olivelike.serve.api.drawing import find_model, make_order, require_done, service_of
from olivelike.serve.api.guards import client_of
from olivelike.serve.api.images import (
    UPSCALERS,
    a1111_mask,
    filled,
    flat,
    from_base64,
    hires_size,
    in_turn,
    png,
    resized,
    to_base64,
    upright,
    upscaled,
)
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute

if TYPE_CHECKING:
    from PIL import Image

    from olivelike.serve.orders import Order
    from olivelike.serve.service import Service
    from olivelike.serve.views import JobView, PictureView

a1111_router: Final = APIRouter(prefix="/sdapi/v1", route_class=StrictRoute, tags=["A1111"])
a1111_router.include_router(lists_router)
_UNIT: Final = 8


@a1111_router.post("/txt2img")
async def txt2img(request: Request, asked: TextToImage) -> dict[str, Any]:
    """Draw pictures for a prompt; with `enable_hr`, each again at a larger size, from its enlarged form."""
    service, webui = service_of(request), webui_of(request)
    asked.require_possible()
    scale, known = asked.latent_scale(), (*LATENT_MODES, *UPSCALERS)
    if asked.enable_hr and (asked.hr_upscaler or "Lanczos") not in known:
        raise refused(f"there is no hr_upscaler {asked.hr_upscaler!r}; there are {', '.join(known)}")
    twice = asked.enable_hr and scale is None
    led = await controls_of(service, asked.alwayson_scripts)
    more = led if scale is None else {**led, "hires": scale, "hires_strength": asked.second_strength}
    order = _order(service, webui, asked, save=asked.save_images and not twice, **more)
    if twice:
        found = find_model(service, order.model or service.current_model)
        default = found.default_size if found else (_UNIT, _UNIT)
        size = _second_size(service, asked, (order.width or default[0], order.height or default[1]))
        service.check_limits(_second_order(service, webui, _again(asked, size), asked))
    job = await _drawn(service, order, asked, client_of(request))
    pictures = job.pictures
    if twice and pictures:
        pictures = await _second_pass(request, asked, pictures, led)
    return await _answer(service, webui, asked, order, pictures)


@a1111_router.post("/img2img")
async def img2img(request: Request, asked: ImageToImage) -> dict[str, Any]:
    """Draw pictures that start from one, all of it or where a mask is white."""
    service, webui = service_of(request), webui_of(request)
    asked.require_possible()
    # What can be refused is, before a picture is decoded.
    service.check_limits(_order(service, webui, asked, strength=asked.denoising_strength))
    image, mask, size = await in_turn(lambda: _prepared(asked, service.settings.max_side))
    whole = mask is None or not asked.inpaint_full_res
    order = _order(
        service, webui, asked, save=asked.save_images,
        width=size[0], height=size[1],
        init_image=(await service.upload(image)).id,
        mask=None if mask is None else (await service.upload(mask)).id,
        mask_blur=asked.mask_blur if mask is not None else None,
        inpaint_area="whole" if whole else "masked", inpaint_padding=asked.inpaint_full_res_padding,
        strength=asked.denoising_strength, **await controls_of(service, asked.alwayson_scripts),
    )  # fmt: skip
    job = await _drawn(service, order, asked, client_of(request))
    if not asked.include_init_images:
        asked = asked.model_copy(update={"init_images": None, "mask": None})
    return await _answer(service, webui, asked, order, job.pictures)


@a1111_router.post("/extra-single-image")
async def extra_single_image(request: Request, asked: Extras) -> dict[str, Any]:
    """Enlarge a picture."""
    return {"html_info": "", "image": await _enlarged(request, asked, asked.image)}


@a1111_router.post("/extra-batch-images")
async def extra_batch_images(request: Request, asked: ManyExtras) -> dict[str, Any]:
    """Enlarge pictures."""
    return {"html_info": "", "images": [await _enlarged(request, asked, one.data) for one in asked.imageList]}


async def _drawn(service: Service, order: Order, asked: Drawing, client: str) -> JobView:
    """Draw an order; one that was interrupted has the pictures that were done."""
    before = service.current_model
    try:
        job = await service.finished((await service.submit(order, client)).id)
    finally:
        if before and order.model and asked.override_settings_restore_afterwards:
            with contextlib.suppress(SourceError):  # Its folder may be gone.
                service.set_model(before)
    return job if job.state == "cancelled" else require_done(job)


def _order(service: Service, webui: WebUI, asked: Drawing, **more: Any) -> Order:
    name = asked.override_settings.get("sd_model_checkpoint")
    found = find_model(service, str(name)) if name else None
    if name and found is None:
        raise RequestRefusedError(404, "not_found", "Model not found")
    skipped = asked.override_settings.get("CLIP_stop_at_last_layers", asked.clip_skip or webui.clip_skip)
    scheduler = _scheduler(asked.sampler_name or asked.sampler_index, asked.scheduler)
    draws_noise = scheduler is not None and find_scheduler(scheduler).class_name.startswith("DDIM")
    sides = [round(side / _UNIT) * _UNIT or None for side in (asked.width, asked.height)]
    width, height = sides if all(sides) else (sides[0] or sides[1], sides[1] or sides[0])
    return make_order(
        **{
            "model": found.name if found else None, "prompt": asked.prompt, "negative_prompt": asked.negative_prompt,
            "num_images": asked.n_iter * asked.batch_size, "batch_size": asked.batch_size, "steps": asked.steps,
            "guidance_scale": asked.cfg_scale, "scheduler": scheduler, "seed": max(asked.seed, -1),
            "eta": asked.eta if draws_noise else None, "clip_skip": _clip_skip(skipped), "width": width,
            "height": height, "fit": True, "variation_strength": asked.subseed_strength,
            "variation_seed": max(asked.subseed, -1) if asked.subseed_strength else None, **more,
        }
    )  # fmt: skip


def _clip_skip(counted: Any) -> int:
    """Return how many layers are left out; A1111 counts the last one that is used, from 1."""
    if not isinstance(counted, int) or isinstance(counted, bool):
        raise refused("CLIP_stop_at_last_layers is no number")
    return max(counted, 1) - 1


def _scheduler(sampler: str | None, schedule: str | None) -> str | None:
    """Return our name for a sampler and a schedule type; `None` for the folder's own."""
    if not sampler:
        return None
    named = next((name for name, aliases in SAMPLER_ALIASES.items() if sampler in aliases), sampler)
    label = SCHEDULE_NAMES.get((schedule or "automatic").lower(), schedule)
    if named in SAMPLER_ALIASES:  # Others end in their schedule, as before A1111 1.9, or are classes of diffusers.
        label = written_schedule(named, label)
        named = f"{named} {label}" if label else named
    find_scheduler(named)
    return named


def _prepared(asked: ImageToImage, most: int) -> tuple[bytes, bytes | None, tuple[int, int]]:
    """Return initial picture, mask and size as A1111 makes them of a request."""
    assert asked.init_images
    image = flat(upright(from_base64(asked.init_images[0], "init_images"), "init_images"))
    width, height = asked.width or image.width, asked.height or image.height
    size = max(_UNIT, round(width / _UNIT) * _UNIT), max(_UNIT, round(height / _UNIT) * _UNIT)
    mask = None
    if asked.mask:
        mask = a1111_mask(from_base64(asked.mask, "mask"), image.size, invert=asked.inpainting_mask_invert)
    if max(size) > most:
        raise refused(f"a side of more than {most} pixels")
    if mask is None or not asked.inpaint_full_res:
        image = resized(image, size, asked.resize_mode)
        mask = None if mask is None else resized(mask, size, asked.resize_mode)
    if mask is not None and asked.inpainting_fill == 0:
        image = filled(image, mask)
    return png(image), None if mask is None else png(mask), size


def _second_picture(data: bytes, size: tuple[int, int], upscaler: str) -> bytes:
    return png(upscaled(upright(data, "picture"), size, upscaler))


async def _second_pass(
    request: Request, asked: TextToImage, pictures: list[PictureView], led: Mapping[str, Any]
) -> list[PictureView]:
    """Draw each picture again at the larger size."""
    service, webui = service_of(request), webui_of(request)
    size = _second_size(service, asked, (pictures[0].width, pictures[0].height))
    found = []
    for picture in pictures:
        data = await service.picture_bytes(picture.id)
        large = await in_turn(partial(_second_picture, data, size, asked.hr_upscaler or "Lanczos"))
        again = _again(asked, size).model_copy(
            update={
                "prompt": asked.hr_prompt or picture.prompt, "seed": picture.seed,
                "subseed": (picture.record or {}).get("variation_seed") or -1,
            }
        )  # fmt: skip
        second = _second_order(service, webui, again, asked, init_image=(await service.upload(large)).id, **led)
        job = await _drawn(service, second, again, client_of(request))
        found += job.pictures
        if job.state == "cancelled":
            break
    return found


def _second_size(service: Service, asked: TextToImage, first: tuple[int, int]) -> tuple[int, int]:
    size = hires_size(first, asked.hr_scale, asked.hr_resize_x, asked.hr_resize_y)
    if max(size) > service.settings.max_side:
        raise refused(f"hires: a side of more than {service.settings.max_side} pixels")
    return size


def _again(asked: TextToImage, size: tuple[int, int]) -> TextToImage:
    """Return what the second pass asks for."""
    again = asked.model_copy(
        update={
            "prompt": asked.hr_prompt or asked.prompt,
            "negative_prompt": asked.hr_negative_prompt or asked.negative_prompt,
            "sampler_name": asked.hr_sampler_name or asked.sampler_name or asked.sampler_index,
            "scheduler": asked.hr_scheduler or asked.scheduler,
            "steps": asked.hr_second_pass_steps or asked.steps,
            "n_iter": 1, "batch_size": 1, "width": size[0], "height": size[1],
        }
    )  # fmt: skip
    if asked.hr_checkpoint_name and asked.hr_checkpoint_name != "Use same checkpoint":
        again.override_settings = {**asked.override_settings, "sd_model_checkpoint": asked.hr_checkpoint_name}
    return again


def _second_order(service: Service, webui: WebUI, again: TextToImage, asked: TextToImage, **more: Any) -> Order:
    return _order(service, webui, again, save=asked.save_images, strength=asked.second_strength, **more)


async def _answer(
    service: Service, webui: WebUI, asked: Drawing, order: Order, pictures: list[PictureView]
) -> dict[str, Any]:
    form = str(asked.override_settings.get("samples_format", webui.samples_format)).lower()
    suffix = f".{form}" if form in ("png", "jpg", "jpeg", "webp") else ".png"
    images = [to_base64(await service.picture_bytes(one.id, suffix)) for one in pictures] if asked.send_images else []
    info = json.dumps(_info(service, asked, order, pictures))
    return {"images": images, "parameters": asked.model_dump(), "info": info}


def _info(service: Service, asked: Drawing, order: Order, pictures: list[PictureView]) -> dict[str, Any]:
    """Return what A1111's `Processed.js` has; of an interrupted request, what was asked for."""
    found = find_model(service, order.model or service.current_model or "")
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
        "subseed_strength": order.variation_strength,
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
        "denoising_strength": order.hires_strength if order.hires else record.get("strength"),
        "extra_generation_params": {"Schedule type": record["schedule"]} if record.get("schedule") else {},
        "index_of_first_image": 0,
        "infotexts": [one.parameters or "" for one in pictures] or [""],
        "styles": asked.styles,
        "job_timestamp": "".join(mark for mark in (first.created if first else "") if mark.isdigit())[:14],
        "clip_skip": order.clip_skip + 1,
        "is_using_inpainting_conditioning": False,
        "version": record.get("version"),
    }


async def _enlarged(request: Request, asked: Extras, text: str) -> str:
    if await request.is_disconnected():
        raise refused("the client has left")
    most = service_of(request).settings.max_side
    for name in (asked.upscaler_1, asked.upscaler_2):
        if name not in UPSCALERS:
            raise refused(f"there is no upscaler {name!r}; there are {', '.join(UPSCALERS)}")
    if asked.gfpgan_visibility or asked.codeformer_visibility:
        raise refused("faces are not restored here")
    return to_base64(await in_turn(lambda: png(_enlarge(asked, upright(from_base64(text, "image"), "image"), most))))


def _enlarge(asked: Extras, image: Image.Image, most: int) -> Image.Image:
    from PIL import Image as Images

    image = flat(image)
    size = asked.upscaling_resize_w, asked.upscaling_resize_h
    if asked.resize_mode == 0:
        size = round(image.width * asked.upscaling_resize), round(image.height * asked.upscaling_resize)
    elif not asked.upscaling_crop:
        share = min(size[0] / image.width, size[1] / image.height)
        size = round(image.width * share), round(image.height * share)
    if max(size) > most:
        raise refused(f"a side of more than the {most} pixels that --max-size allows")
    size = max(size[0], 1), max(size[1], 1)
    large = image if asked.upscaler_1 == "None" else upscaled(image, size, asked.upscaler_1)
    if asked.upscaler_2 == "None" or not asked.extras_upscaler_2_visibility:
        return large
    other = upscaled(image, large.size, asked.upscaler_2)
    return Images.blend(large, other, asked.extras_upscaler_2_visibility)
