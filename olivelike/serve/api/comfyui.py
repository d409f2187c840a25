"""ComfyUI's API: programs that draw with ComfyUI send graphs, and the plain ones are drawn here as orders.

Routes are at the root, and again below `/api`, as there. Those below `/api/etn` are of comfyui-tooling-nodes, which the
plugin for Krita asks.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final

import psutil
from fastapi import APIRouter, Depends, Query, Request, Response, WebSocket
from fastapi.responses import JSONResponse

from olivelike import __version__
from olivelike._untrusted import Json
from olivelike.errors import OlivelikeError
from olivelike.serve.api.a1111_samplers import scheduler_of
from olivelike.serve.api.comfyui_graph import Drawing, Scaling, SentMask, SentPicture, read_graph
from olivelike.serve.api.comfyui_nodes import SAMPLER_NAMES, SCHEDULER_NAMES, GraphError, Listed, object_info
from olivelike.serve.api.comfyui_state import ComfyUI, Prompt, history_of, picture_file
from olivelike.serve.api.drawing import find_model, make_order, service_of
from olivelike.serve.api.forms import read_named_files
from olivelike.serve.api.guards import client_of, visitor_of
from olivelike.serve.api.images import flat, from_base64, in_turn, png, require_side, upright
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute, refused
from olivelike.serve.views import ENDED, JobEnded, JobView, ModelView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from PIL import Image

    from olivelike.serve.orders import Order
    from olivelike.serve.service import Service

_ROOT: Final = APIRouter(route_class=StrictRoute, tags=["ComfyUI"])
comfyui_router: Final = APIRouter(route_class=StrictRoute)
_PICTURE: Final = re.compile(r"([0-9a-f]{20})(?:_([1-9]\d{0,4})x([1-9]\d{0,4}))?(?:\.png)?")
_UNSAFE: Final = re.compile(r"[^\w.\- ]", re.ASCII)
_ANNOTATED: Final = re.compile(r"\s*\[(input|output|temp)\]$")
_MOST_NAME: Final = 300
_MOST_KEPT: Final = 16 << 10
"""Bytes of a request whose graph is told of again; one with pictures in base64 has more."""
_VERSION: Final = "0.3.45"
"""Of ComfyUI, from which on prompts may be named by who asks."""
_GREY: Final = (128, 128, 128)
_ROUNDED: Final = [0] * 128 + [255] * 128
"""Values of a mask as `VAEEncodeForInpaint` rounds them."""
_FAMILIES: Final = {
    "sd1": "sd15", "sd2": "sd20", "sdxl": "sdxl", "refiner": "sdxl-refiner", "sd3": "sd3", "flux": "flux",
    "flux2": "flux2", "z_image": "z-image", "qwen_image": "qwen-image",
}  # fmt: skip
"""Kinds of models as comfyui-tooling-nodes calls them, by our families."""
_FOLDERS: Final = {"checkpoints": "models", "loras": "loras", "upscale_models": "upscalers"}
"""Words of `Listed` by ComfyUI's folders of models."""


def comfyui_of(request: Request | WebSocket) -> ComfyUI:
    """Return the state that ComfyUI's API has beside the service."""
    state = request.app.state
    if not hasattr(state, "comfyui"):
        state.comfyui = ComfyUI(state.service)
    found: ComfyUI = state.comfyui
    return found


async def _asked(request: Request) -> Json:
    """Return a body's JSON whatever its `Content-Type`, as ComfyUI does: its own examples send that of a form."""
    found = await request.json()
    if not isinstance(found, dict):
        raise refused("the body is to be a JSON object")
    return found


Asked = Annotated[Json, Depends(_asked)]


async def _listed(service: Service) -> Listed:
    loras = await service.loras()
    return {
        "models": list(service.catalogue.folders()), "loras": [one.name for one in loras],
        "upscalers": list(service.catalogue.upscalers()), "samplers": list(SAMPLER_NAMES),
        "schedulers": list(SCHEDULER_NAMES),
    }  # fmt: skip


@_ROOT.get("/system_stats")
async def system_stats(request: Request) -> Json:
    """Return what the machine is; all of its memory is told as the device's."""
    memory = psutil.virtual_memory()
    providers = ", ".join(service_of(request).settings.providers) or "CPU"
    device = {"name": f"olivelike {providers}", "type": "cpu", "index": 0}
    amounts = {"vram_total": memory.total, "vram_free": memory.available}
    return {
        "system": {
            "os": sys.platform, "ram_total": memory.total, "ram_free": memory.available, "comfyui_version": _VERSION,
            "python_version": sys.version.partition(" ")[0], "pytorch_version": f"none (olivelike {__version__})",
            "embedded_python": False, "argv": [],
        },
        "devices": [{**device, **amounts, "torch_vram_total": 0, "torch_vram_free": 0}],
    }  # fmt: skip


@_ROOT.get("/features")
async def features() -> Json:
    """Return that there are none beyond the plain API."""
    return {}


@_ROOT.get("/extensions")
async def extensions() -> list[str]:
    """Return that ComfyUI's own page has none here."""
    return []


@_ROOT.get("/embeddings")
async def embeddings(request: Request) -> list[str]:
    """Return the textual inversions that the current folder knows."""
    service = service_of(request)
    return [one.name for one in await asyncio.to_thread(service.embeddings, service.current_model)]


@_ROOT.get("/models")
async def model_folders() -> list[str]:
    """Return the kinds of files that are listed here."""
    return list(_FOLDERS)


@_ROOT.get("/models/{kind}")
async def models_of(kind: str, request: Request) -> list[str]:
    """Return the names of one kind."""
    if kind not in _FOLDERS:
        raise RequestRefusedError(404, "not_found", f"there are no {kind[:40]!r} here; there are {', '.join(_FOLDERS)}")
    return list((await _listed(service_of(request)))[_FOLDERS[kind]])


@_ROOT.get("/object_info")
async def all_nodes(request: Request) -> Json:
    """Return the nodes that graphs may have."""
    return object_info(await _listed(service_of(request)))


@_ROOT.get("/object_info/{kind}")
async def one_node(kind: str, request: Request) -> Json:
    """Return one kind of node, or nothing."""
    return object_info(await _listed(service_of(request)), kind)


@_ROOT.post("/prompt")
async def prompt(request: Request, asked: Asked) -> Response:
    """Draw a graph; what becomes of it is told by the socket and `/history`."""
    state = comfyui_of(request)
    try:
        name = _prompt_id(asked.get("prompt_id"), state)
        with state.coming(name):
            number = await _begin(request, asked, name)
    except GraphError as error:
        return JSONResponse(error.answer(), 400)
    return JSONResponse({"prompt_id": name, "number": number, "node_errors": {}})


async def _begin(request: Request, asked: Json, name: str) -> int:
    """Begin to draw a graph, and return its number. Raises `GraphError` for one that is not drawn here."""
    service, state = service_of(request), comfyui_of(request)
    drawing = read_graph(asked.get("prompt"), await _listed(service))
    order = await _order(request, drawing)
    visitor = client_of(request), str(asked.get("client_id") or "")[:_MOST_NAME]
    shown = _wants_previews(asked, drawing) and state.tells(visitor)
    events = service.draw(order, client_of(request), previews=shown)
    try:
        job: str = (await anext(events))["job"]
    except OlivelikeError as error:
        raise drawing.sampling.error("not_drawn_here", str(error)) from None
    state.number += 1
    number = state.number
    state.begin(Prompt(name, number, job, drawing.outline(), visitor, await _kept(request, asked)), events)
    return number


async def _kept(request: Request, asked: Json) -> bytes:
    """Return a graph as the queue and the history tell of it, so that programs know theirs; nothing of a large one."""
    small = len(await request.body()) <= _MOST_KEPT
    return json.dumps(asked["prompt"], separators=(",", ":")).encode() if small else b"{}"


def _wants_previews(asked: Json, drawing: Drawing) -> bool:
    """Tell whether small pictures of steps are sent: ComfyUI sends none unasked, and programs take them for results."""
    more = asked.get("extra_data")
    method = more.get("preview_method") if isinstance(more, dict) else None
    return drawing.shows_previews or method in ("auto", "latent2rgb", "taesd")


def _prompt_id(asked: object, state: ComfyUI) -> str:
    if asked is None:
        return str(uuid.uuid4())
    try:
        name = str(uuid.UUID(str(asked)))
    except ValueError:
        raise GraphError("invalid_prompt_id", "prompt_id must be a valid UUID") from None
    if state.knows(name):
        raise GraphError("invalid_prompt_id", "there is a prompt of this prompt_id already")
    return name


@_ROOT.get("/prompt")
async def waiting(request: Request) -> Json:
    """Return how many graphs are drawn or wait."""
    return comfyui_of(request).status()


def _unfinished(request: Request) -> Iterator[tuple[Prompt, JobView]]:
    """Yield the prompts that its sender may see and end, as `ComfyUI.unfinished`."""
    sees = visitor_of(request).sees
    return ((one, job) for one, job in comfyui_of(request).unfinished() if sees(one.visitor[0]))


@_ROOT.get("/queue")
async def queue(request: Request) -> Json:
    """Return the graphs that are drawn, and those that wait."""
    found: dict[str, list[Json | list[object]]] = {"queue_running": [], "queue_pending": []}
    for one, job in _unfinished(request):
        place = "queue_running" if job.state == "drawing" else "queue_pending"
        outputs = [node.id for node in one.drawing.outputs]
        found[place].append([one.number, one.id, json.loads(one.graph), {"client_id": one.visitor[1]}, outputs])
    return found


@_ROOT.post("/queue")
async def change_queue(request: Request, asked: Asked) -> Response:
    """Take graphs out of the queue: those that are named, or all that this client's are and wait."""
    is_meant = _meant(request, asked)
    for one, job in _unfinished(request):
        if job.state == "queued" and is_meant(one):
            _cancel(request, one)
    return Response()


def _meant(request: Request, asked: Json) -> Callable[[Prompt], bool]:
    """Return what tells the graphs that a body means: those to `delete`, and with `clear` all of its sender."""
    named, own = asked.get("delete"), client_of(request) if asked.get("clear") is True else None
    wanted = {str(name) for name in named} if isinstance(named, list) else set()
    return lambda one: one.id in wanted or one.visitor[0] == own


@_ROOT.post("/interrupt")
async def interrupt(request: Request) -> Response:
    """End the graph that is named, or this client's that is drawn."""
    body = await request.json() if await request.body() else {}
    named = body.get("prompt_id") if isinstance(body, dict) else None
    for one, job in _unfinished(request):
        own = named is None and one.visitor[0] == client_of(request)
        if job.state == "drawing" and (own or one.id == named):
            _cancel(request, one)
    return Response()


def _cancel(request: Request, one: Prompt) -> None:
    try:
        service_of(request).cancel(one.job)
    except JobEnded:
        return


@_ROOT.get("/history")
async def history(request: Request, max_items: Annotated[int, Query(ge=1, le=1000)] = 200) -> Json:
    """Return the graphs that have ended, the latest last."""
    return _history(request, list(comfyui_of(request).prompts), max_items)


@_ROOT.get("/history/{name}")
async def history_of_one(name: str, request: Request) -> Json:
    """Return one graph that has ended, or nothing."""
    return _history(request, [name] if name in comfyui_of(request).prompts else [])


def _history(request: Request, names: list[str], most: int = 1) -> Json:
    service, state, sees = service_of(request), comfyui_of(request), visitor_of(request).sees
    seen = [name for name in names if sees(state.prompts[name].visitor[0])][-most:]
    jobs = {name: service.job(state.prompts[name].job) for name in seen}
    return {name: history_of(state.prompts[name], job) for name, job in jobs.items() if job.state in ENDED}


@_ROOT.post("/history")
async def forget(request: Request, asked: Asked) -> Response:
    """Forget graphs that have ended; their pictures stay in the gallery."""
    service, state = service_of(request), comfyui_of(request)
    sees, is_meant = visitor_of(request).sees, _meant(request, asked)
    for one in [one for one in state.prompts.values() if sees(one.visitor[0])]:
        if is_meant(one) and service.job(one.job).state in ENDED:
            del state.prompts[one.id]
    return Response()


@_ROOT.post("/free")
async def free(request: Request, asked: Asked) -> Response:
    """Close the models, once what is drawn is done."""
    if asked.get("unload_models") or asked.get("free_memory"):
        await service_of(request).unload()
    return Response()


@_ROOT.get("/view")
async def view(
    request: Request,
    filename: Annotated[str, Query(max_length=_MOST_NAME)],
    subfolder: Annotated[str, Query(max_length=_MOST_NAME)] = "",
    type: Annotated[str, Query(max_length=20)] = "output",  # noqa: A002  (its name there)
) -> Response:
    """Return a picture that was drawn, or one that was sent, by its name; nothing is looked up in folders."""
    if type == "input":
        upload = comfyui_of(request).file(client_of(request), _file_name(filename, subfolder))
        if upload is None:
            raise RequestRefusedError(404, "not_found", "no picture of this name was sent")
        return _file(await service_of(request).library.upload_bytes(upload), PurePosixPath(filename).name)
    return await _picture(request, filename)


def _file(data: bytes, name: str) -> Response:
    """Return a picture with the name that programs save it under."""
    plain = _UNSAFE.sub("_", name)
    kind = "image/jpeg" if data.startswith(b"\xff\xd8") else "image/png"
    return Response(data, media_type=kind, headers={"Content-Disposition": f'filename="{plain}"'})


async def _picture(request: Request, name: str) -> Response:
    match, service = _PICTURE.fullmatch(name), service_of(request)
    if match is None:
        raise RequestRefusedError(404, "not_found", "there is no picture of this name")
    size, saved = None, PurePosixPath(service.library.find(match[1]).path)
    if match[2]:
        size = int(match[2]), int(match[3])
        require_side(size, service.settings.most_enlarged)
        saved = saved.with_stem(f"{saved.stem}_{match[2]}x{match[3]}")
    return _file(await picture_file(service, match[1], size, request), saved.name)


@_ROOT.post("/upload/image")
async def upload_image(request: Request) -> Json:
    """Keep a picture under its name, for this client's graphs, a day long."""
    fields, files = await read_named_files(request)
    if not files.get("image"):
        raise refused("image: send a picture's file")
    name, data = files["image"][0]
    folder = fields.get("subfolder", "")
    if not name or len(name) + len(folder) > _MOST_NAME:
        raise refused("image: give the file a name")
    upload = await service_of(request).upload(data, client_of(request))
    comfyui_of(request).keep_file(client_of(request), _file_name(name, folder), upload.id)
    return {"name": name, "subfolder": folder, "type": "input"}


def _file_name(name: str, folder: str = "") -> str:
    """Return what a file that was sent is kept under; it is a key, and no path is made of it."""
    plain = _ANNOTATED.sub("", name).replace("\\", "/")
    return f"{folder.strip('/')}/{plain}" if folder else plain


@_ROOT.websocket("/ws")
async def socket(websocket: WebSocket) -> None:
    """Tell a program what becomes of its graphs."""
    name = websocket.query_params.get("clientId", "")[:_MOST_NAME] or uuid.uuid4().hex
    await websocket.accept()
    await comfyui_of(websocket).listen(websocket, (client_of(websocket), name))


@_ROOT.get("/etn/model_info/{kind}")
async def model_info(
    kind: str,
    request: Request,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Json:
    """Return what each folder is; all are checkpoints to programs."""
    models = await service_of(request).models() if kind == "checkpoints" else []
    shown: Json = {
        one.name: {
            "base_model": _FAMILIES.get(one.family, "unknown"), "is_inpaint": one.inpaints,
            "is_refiner": one.family == "refiner", "type": "eps",
        }
        for one in models[offset : offset + limit]
    }  # fmt: skip
    if "limit" in request.query_params:
        shown["_meta"] = {"offset": offset, "count": len(shown), "total": len(models)}
    return shown


@_ROOT.get("/etn/languages")
async def languages() -> list[Json]:
    """Return that nothing is translated."""
    return []


@_ROOT.post("/etn/workflow/{what}")
async def shared_workflows(what: str) -> Json:
    """Answer who wants to hear of shared workflows: there are none."""
    if what not in ("subscribe", "unsubscribe"):
        raise RequestRefusedError(404, "not_found", "workflows are not shared here")
    return {"status": "success"}


@_ROOT.put("/etn/image/{name}")
async def put_image(name: str, request: Request) -> Response:
    """Keep a picture for this client's graphs, a day long."""
    upload = await service_of(request).upload(await request.body(), client_of(request))
    comfyui_of(request).keep_file(client_of(request), f"etn/{name[:_MOST_NAME]}", upload.id)
    return JSONResponse({"status": "success"}, 201)


@_ROOT.get("/etn/image/{name}")
async def get_image(name: str, request: Request) -> Response:
    """Return a picture that was drawn."""
    return await _picture(request, name)


comfyui_router.include_router(_ROOT)
comfyui_router.include_router(_ROOT, prefix="/api", include_in_schema=False)


async def _order(request: Request, drawing: Drawing) -> Order:
    """Return what a graph draws as an order. Raises `GraphError` for what the folder does not draw."""
    service = service_of(request)
    model = find_model(service, drawing.model)
    if model is None:  # It went after the lists were read.
        raise drawing.sampling.refused(f"the model {drawing.model!r} is gone")
    scheduler = _scheduler(drawing, model)
    _check_shift(service, drawing, model)
    fields = {name: value for name, value in drawing.fields.items() if name not in model.absent}
    if drawing.init is not None and not model.takes_pictures:
        raise drawing.sampling.refused(f"{model.name} has no encoder, and can't start from a picture")
    try:
        if drawing.scaling is not None:
            require_side((drawing.scaling.width, drawing.scaling.height), service.settings.most_enlarged)
        init, mask = await _sent(request, drawing)
        return make_order(model=model.name, scheduler=scheduler, fit=True, init_image=init, mask=mask, **fields)
    except (OlivelikeError, RequestRefusedError) as error:
        raise drawing.sampling.error("not_drawn_here", str(error)) from None


def _scheduler(drawing: Drawing, model: ModelView) -> str | None:
    sampler, schedule = drawing.sampler
    if "fast" in model.absent:  # Of flow matching: its folder's own is Euler with its own shift.
        if sampler != "Euler" or schedule not in ("simple", "normal"):
            raise drawing.sampling.refused(f"{model.name} is drawn with euler and simple or normal here")
        return None
    try:
        return scheduler_of(sampler, schedule)
    except RequestRefusedError as error:
        raise drawing.sampling.refused(str(error)) from None


def _check_shift(service: Service, drawing: Drawing, model: ModelView) -> None:
    if drawing.shift is None:
        return
    node, asked = drawing.shift
    own = service.catalogue.shift(model.name)
    if own is None or abs(own - asked) > 0.01 * max(own, 1):
        raise node.refused(f"{model.name} has {'no shift' if own is None else f'the shift {own:g}'} of its own")


async def _sent(request: Request, drawing: Drawing) -> tuple[str | None, str | None]:
    """Return the uploads of the picture to start from, and of the mask, as the graph makes them."""
    service = service_of(request)
    most = service.settings.max_side
    if drawing.init is None:
        return None, None
    init, asked = drawing.init, drawing.mask
    data = await _bytes(request, init)
    whole = None if asked is None else await _bytes(request, asked.picture)

    def made() -> tuple[bytes, bytes | None]:
        image = _scaled(flat(upright(data, "picture")), init.scalings, most)
        if max(image.size) > most:
            raise refused(f"a side of more than {most} pixels")
        if asked is None or whole is None:
            return png(image), None
        mask = _read_mask(upright(whole, "mask"), asked, image.size, most)
        if asked.emptied:
            image.paste(_GREY, mask=mask.point(_ROUNDED))
        return png(image), png(_grown(mask, asked.grown))

    (image, mask), client = await in_turn(made, request), client_of(request)
    return (await service.upload(image, client)).id, None if mask is None else (await service.upload(mask, client)).id


async def _bytes(request: Request, sent: SentPicture) -> bytes:
    if sent.how == "base64":
        return from_base64(sent.name, "the picture")
    if len(sent.name) > _MOST_NAME:
        raise refused(f"a picture's name has more than {_MOST_NAME} characters")
    name = f"etn/{sent.name}" if sent.how == "cache" else _file_name(sent.name)
    upload = comfyui_of(request).file(client_of(request), name)
    if upload is None:
        raise refused(f"no picture {sent.name[:100]!r} was sent; POST /upload/image takes one")
    return await service_of(request).library.upload_bytes(upload)


def _scaled(image: Image.Image, scalings: tuple[Scaling, ...], most: int) -> Image.Image:
    from PIL import Image, ImageOps

    for one in scalings:
        size = one.of(*image.size)
        if max(size) > most:
            raise refused(f"a side of more than {most} pixels")
        method = Image.Resampling.NEAREST if one.nearest else Image.Resampling.LANCZOS
        if min(size) > 0:
            image = ImageOps.fit(image, size, method) if one.crop else image.resize(size, method)
    return image


def _read_mask(image: Image.Image, asked: SentMask, size: tuple[int, int], most: int) -> Image.Image:
    """Return a mask that is white where to paint, of a picture's size."""
    from PIL import ImageOps

    if asked.channel == "alpha":
        mask = ImageOps.invert(image.convert("RGBA").getchannel("A"))
    else:
        mask = image.convert("RGB").getchannel(asked.channel[0].upper())
    mask = _scaled(mask, asked.picture.scalings, most)
    mask = ImageOps.invert(mask) if asked.inverted else mask
    return mask if mask.size == size else mask.resize(size)


def _grown(mask: Image.Image, pixels: int) -> Image.Image:
    from PIL import ImageFilter

    for _ in range(pixels // 2):  # One wide filter gives the same, in time that grows with its area.
        mask = mask.filter(ImageFilter.MaxFilter(3))
    return mask
