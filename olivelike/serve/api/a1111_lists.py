"""A1111's API, `/sdapi/v1`: what there is, what is chosen, and how far the picture is."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from olivelike._untrusted import Json
from olivelike.errors import OlivelikeError
from olivelike.runtime.pictures.picture_reading import read_picture_data
from olivelike.runtime.pictures.picture_record import a1111_parameters
from olivelike.runtime.schedulers.scheduler_names import SAMPLERS, draws_for
from olivelike.serve.api.a1111_guides import SCRIPT
from olivelike.serve.api.a1111_models import LATENT_MODES, Options, PngInfo
from olivelike.serve.api.a1111_samplers import SAMPLER_ALIASES, SCHEDULE_NAMES, schedules_for
from olivelike.serve.api.a1111_state import chosen_of, model_of, webui_of
from olivelike.serve.api.drawing import find_model, service_of
from olivelike.serve.api.guards import client_of
from olivelike.serve.api.images import UPSCALERS, from_base64, in_turn, png, to_base64, upright
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute, refused

lists_router: Final = APIRouter(route_class=StrictRoute)


@lists_router.get("/options")
async def options(request: Request) -> Json:
    """Return the options that exist here."""
    chosen, found = chosen_of(request), find_model(service_of(request), model_of(request))
    return {
        "sd_model_checkpoint": found.title if found else None,
        "sd_checkpoint_hash": (found.sha256 or found.hash) if found else None,
        "sd_vae": "Automatic",
        "CLIP_stop_at_last_layers": chosen.clip_skip,
        "samples_format": chosen.suffix.removeprefix("."),
        "eta_ddim": chosen.eta_ddim,
        "enable_emphasis": True,
        "live_previews_image_format": "png",
        "randn_source": "CPU",
    }


@lists_router.post("/options")
async def set_options(request: Request, asked: Options) -> dict[str, list[str]] | None:
    """Set options for this client alone; answer with what has no effect, if any has none."""
    service, chosen = service_of(request), chosen_of(request)
    warnings, suffix, name = (
        asked.warnings(lenient=service.settings.ignore_unsupported),
        asked.suffix,
        asked.sd_model_checkpoint,
    )
    found = find_model(service, name)
    if name and found is None:
        raise RequestRefusedError(404, "not_found", "Model not found")
    webui_of(request).choose(
        client_of(request),
        model=chosen.model if found is None else found.name,
        suffix=suffix or chosen.suffix,
        clip_skip=asked.CLIP_stop_at_last_layers or chosen.clip_skip,
        eta_ddim=asked.eta_ddim if "eta_ddim" in asked.model_fields_set else chosen.eta_ddim,
    )
    return {"warnings": warnings} if warnings else None


@lists_router.get("/sd-models")
async def sd_models(request: Request) -> list[Json]:
    """List the folders that can draw."""
    return [
        {
            "title": one.title, "model_name": one.name, "hash": one.hash, "sha256": one.sha256, "filename": one.name,
            "config": None,
        }
        for one in await service_of(request).models()
        if one.state == "ready"
    ]  # fmt: skip


@lists_router.get("/samplers")
async def samplers(request: Request) -> list[Json]:
    """List the samplers that the current folder is drawn with."""
    return [{"name": name, "aliases": SAMPLER_ALIASES[name], "options": {}} for name in _samplers(_made_for(request))]


@lists_router.get("/schedulers")
async def schedulers(request: Request) -> list[Json]:
    """List the schedule types that one of these samplers has."""
    made_for = _made_for(request)
    drawn = {kind for sampler in _samplers(made_for) for kind in schedules_for(sampler, made_for)}
    return [
        {"name": name, "label": label, "aliases": None, "default_rho": None, "need_inner_model": False}
        for name, label in SCHEDULE_NAMES.items()
        if name in drawn
    ]


def _made_for(request: Request) -> str | None:
    """Return the current folder's own class of schedulers."""
    found = find_model(service_of(request), model_of(request))
    return found.scheduler if found else None


def _samplers(made_for: str | None) -> list[str]:
    return [name for name in SAMPLERS if draws_for(name, made_for)]


@lists_router.get("/upscalers")
async def upscalers(request: Request) -> list[Json]:
    """List what enlarges pictures."""
    files = {
        name: path.name for name, path in service_of(request).catalogue.upscalers().items() if name not in UPSCALERS
    }
    return [
        {"name": name, "model_name": None, "model_path": files.get(name), "model_url": None, "scale": 4}
        for name in (*UPSCALERS, *files)
    ]


@lists_router.get("/latent-upscale-modes")
async def latent_upscale_modes() -> list[dict[str, str]]:
    """List the ways to enlarge latents between two passes."""
    return [{"name": name} for name in LATENT_MODES]


@lists_router.get("/loras")
async def loras(request: Request) -> Response:
    """List the LoRAs that prompts may name."""
    found = await service_of(request).loras_with_metadata()
    shown = [{"name": one.name, "alias": one.alias, "path": one.path, "metadata": told} for one, told in found]
    return await asyncio.to_thread(JSONResponse, shown)  # Of hundreds there are megabytes.


@lists_router.get("/embeddings")
async def embeddings(request: Request) -> Json:
    """List the textual inversions that the current folder knows."""
    service = service_of(request)
    loaded = {
        one.name: {
            "step": None, "sd_checkpoint": None, "sd_checkpoint_name": None, "shape": one.width, "vectors": one.vectors,
        }
        for one in service.embeddings(model_of(request))
    }  # fmt: skip
    return {"loaded": loaded, "skipped": {}}


@lists_router.get("/scripts")
async def scripts() -> dict[str, list[str]]:
    """List the scripts: there is that for guides."""
    return {"txt2img": [SCRIPT], "img2img": [SCRIPT]}


@lists_router.get("/cmd-flags")
async def cmd_flags() -> Json:
    """Return the flags that programs look at."""
    return {"api": True, "nowebui": False, "medvram": False, "lowvram": False}


async def _nothing() -> list[Any]:
    """List what there is none of here."""
    return []


@lists_router.get("/prompt-styles")
async def prompt_styles(request: Request) -> list[Json]:
    """Return the styles that requests may name."""
    found = await asyncio.to_thread(service_of(request).notebook.styles)
    return [one.model_dump() for one in found]


for _path in (
    "sd-vae", "sd-modules", "hypernetworks", "face-restorers", "realesrgan-models",
    "script-info", "extensions",
):  # fmt: skip
    lists_router.get(f"/{_path}", name=_path)(_nothing)


async def _done() -> None:
    """Answer what needs nothing done: folders and LoRAs are looked up whenever they are listed."""


for _path in ("refresh-checkpoints", "refresh-vae", "refresh-loras", "refresh-embeddings", "reload-checkpoint"):
    lists_router.post(f"/{_path}", name=_path)(_done)


@lists_router.post("/unload-checkpoint")
async def unload_checkpoint(request: Request) -> Json:
    """Give back the memory that open folders take."""
    await service_of(request).unload()
    return {}


@lists_router.get("/memory")
async def memory() -> Json:
    """Return how much memory there is, in bytes."""
    import psutil

    found = psutil.virtual_memory()
    return {
        "ram": {"free": found.available, "used": found.total - found.available, "total": found.total},
        "cuda": {"error": "unavailable"},
    }


@lists_router.post("/png-info")
async def png_info(asked: PngInfo) -> Json:
    """Return what a picture says of itself."""
    data = from_base64(asked.image.strip(), "image")
    found = await in_turn(lambda: read_picture_data(data, "image"))
    items = {"parameters": found.parameters} if found.parameters else {}
    if found.record and found.own:
        items["olivelike"] = found.record.to_json()
    return {
        "info": found.parameters or "",
        "items": items,
        "parameters": a1111_parameters(found.record) if found.record else {},
    }


@lists_router.post("/interrogate")
async def interrogate() -> None:
    """Refuse to describe a picture."""
    raise refused("interrogate: pictures are not described here; png-info tells what made one")


@lists_router.get("/progress")
async def progress(request: Request, *, skip_current_image: bool = False) -> Json:
    """Return how far the job is that this client waits for."""
    service, webui = service_of(request), webui_of(request)
    job = service.job_of(client_of(request))
    state: Json = {
        "skipped": False, "interrupted": False, "stopping_generation": False, "job": "", "job_count": 0,
        "job_timestamp": "0", "job_no": 0, "sampling_step": 0, "sampling_steps": 0,
    }  # fmt: skip
    if job is None and (one := next(service.upscales.running(client_of(request)), None)):
        state |= {"job": one.id, "job_count": one.total, "job_no": one.done}
        eta = one.eta or 0.0
        return {"progress": one.progress, "eta_relative": eta, "state": state, "current_image": None, "textinfo": None}
    if job is None:
        return {"progress": 0.0, "eta_relative": 0.0, "state": state, "current_image": None, "textinfo": None}
    each = max(1, job.steps_total // max(1, job.batches))
    state |= {
        "job": job.id, "job_count": max(1, job.batches), "job_no": max(0, job.batch - 1), "sampling_steps": each,
        "job_timestamp": "".join(mark for mark in job.created if mark.isdigit())[:14],
        "sampling_step": job.step - max(0, job.batch - 1) * each,
    }  # fmt: skip
    text = f"{job.position} jobs before this one" if job.position else None
    if job.opening is not None:
        text = f"Loading model {job.opening}"
    image = None if skip_current_image or job.state == "queued" else await _shown(webui.preview(service, job.id))
    return {
        "progress": min(0.01 + job.step / max(1, job.steps_total), 1.0) if job.state == "drawing" else 0.0,
        "eta_relative": job.eta_seconds or 0.0,
        "state": state,
        "current_image": image,
        "textinfo": text,
    }


@lists_router.post("/interrupt")
async def interrupt(request: Request) -> Json:
    """End what this client waits for: the job that is drawn, else the first of its own, and what is enlarged."""
    service = service_of(request)
    for one in [*service.upscales.running(client_of(request))]:
        one.cancel()
    with contextlib.suppress(OlivelikeError):  # It may end by itself meanwhile.
        if job := service.job_of(client_of(request)):
            service.cancel(job.id)
    return {}


@lists_router.post("/skip")
async def skip(request: Request) -> None:
    """End the batch that is drawn for this client."""
    service = service_of(request)
    with contextlib.suppress(OlivelikeError):
        if job := service.job_of(client_of(request)):
            service.skip(job.id)


async def _shown(preview: str | None) -> str | None:
    if preview is None:
        return None
    data = from_base64(preview, "preview")
    return to_base64(await in_turn(lambda: png(upright(data, "preview"))))
