"""OpenAI's API of pictures: `/v1/images/generations`, `edits`, `variations`, and `/v1/models`.

Fields and answers are those of openai-python's `types/image*`. What diffusion has beyond them comes as further fields,
named as vLLM's are: `seed`, `num_inference_steps`, `guidance_scale`, `negative_prompt`; and ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from olivelike._untrusted import Json, parse_json
from olivelike.errors import OlivelikeError, UsageError
from olivelike.runtime.jobs.job_notes import LARGE
from olivelike.runtime.pipeline.request import CHOICES, names_elsewhere, with_clip_layer
from olivelike.serve.api.drawing import drawn, find_model, make_order, require_done, service_of
from olivelike.serve.api.forms import Files, form_of, read_form
from olivelike.serve.api.guards import client_of, visitor_of
from olivelike.serve.api.images import PictureAnswer, from_base64, in_turn, png, to_base64, upright, where_transparent
from olivelike.serve.api.refusals import BodyRoute, RequestRefusedError, StrictRoute, in_words
from olivelike.serve.orders import Finite, LoraChoice, Order
from olivelike.serve.views import Event, JobEnded, JobView, ModelView, PictureView

if TYPE_CHECKING:
    from olivelike.serve.service import Service

openai_router: Final = APIRouter(prefix="/v1", route_class=StrictRoute, tags=["OpenAI"])

_OPENAIS_OWN: Final = re.compile(r"(gpt-image|chatgpt-image|dall-e)[\w.\-]*")
"""Models whose names programs have built in; they stand for the current folder."""
_SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")
_VARIED: Final = 0.6
"""Strength of a variation."""
_SUFFIXES: Final = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
_STARTED: Final = int(time.time())


class Wanted(BaseModel):
    """Fields of a request for pictures; fields that are not here are ignored."""

    model_config = ConfigDict(extra="ignore")

    prompt: Annotated[str, Field(max_length=32_000)] = ""
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=10)] = 1
    size: str | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    background: Literal["auto", "opaque", "transparent"] | None = None
    quality: str | None = None
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0

    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: Finite | None = None
    scheduler: str | None = None
    strength: Finite | None = None
    seed: int | None = None
    clip_layer: int | None = None
    loras: Annotated[tuple[LoraChoice, ...], Field(max_length=32)] | None = None
    """In a form: as JSON."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        """Take null, and what a form leaves empty, for what is not given."""
        if not isinstance(values, dict):
            return values
        values = with_clip_layer(values)
        for slip, meant in _SLIPS.items():
            if values.get(slip) is not None:
                raise RequestRefusedError(400, "invalid", f"{slip} is no field here: give {meant}", param=meant)
        return {key: value for key, value in values.items() if value is not None and (value != "" or key == "prompt")}

    @field_validator("loras", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_json(value) if isinstance(value, str) else value

    @field_validator("background")
    @classmethod
    def _opaque(cls, value: str | None) -> str | None:
        if value == "transparent":
            raise ValueError("pictures are opaque here")
        return value

    @property
    def as_url(self) -> bool:
        """Whether links are wanted; of a `dall-e` they are where nothing is said."""
        return (self.response_format or ("url" if (self.model or "").startswith("dall-e") else "")) == "url"

    @property
    def width_and_height(self) -> tuple[int, int] | None:
        """The size; `None` for `auto`."""
        if self.size is None or self.size == "auto":
            return None
        match = _SIZE.fullmatch(self.size)
        if match is None:
            raise RequestRefusedError(400, "invalid_size", "size is `auto`, or such as 512x768", param="size")
        return int(match[1]), int(match[2])


class Prompted(Wanted):
    """A request that must have a prompt."""

    prompt: Annotated[str, Field(max_length=32_000)]


_Wanted = TypeVar("_Wanted", bound=Wanted)

_THEIRS: Final = names_elsewhere("openai")
"""Names in this API by those of an order."""
_SHARED: Final = {
    name: theirs for name in sorted(CHOICES) if (theirs := _THEIRS.get(name, name)) in Wanted.model_fields
}
_SLIPS: Final = {
    **{name: theirs for name, theirs in _SHARED.items() if name != theirs},
    **{theirs: _SHARED[name] for name, theirs in names_elsewhere("a1111").items() if name in _SHARED},
    **dict.fromkeys(("width", "height"), "size"),
}
"""Fields of other APIs, and what they are here: without them the picture would be another."""


@openai_router.get("/models")
async def models(request: Request) -> Json:
    """List the folders that are served."""
    return {"object": "list", "data": [_model(model) for model in await service_of(request).models()]}


@openai_router.get("/models/{name}")
async def model(request: Request, name: str) -> Json:
    """Describe a folder."""
    return _model(_chosen(service_of(request), name))


async def generations(request: Request, wanted: Prompted) -> Response:
    """Draw pictures for a prompt."""
    chosen = _chosen(service_of(request), wanted.model)
    asked = wanted.width_and_height
    size = (None, None) if asked is None else _sensible(service_of(request), asked, chosen)
    return await _answer(request, wanted, _order(wanted, chosen, width=size[0], height=size[1]), "image_generation")


openai_router.add_api_route(
    "/images/generations", generations, methods=["POST"], response_model=None, route_class_override=BodyRoute
)


@openai_router.post("/images/edits", response_model=None, openapi_extra=form_of(Prompted, "image", "mask"))
async def edits(request: Request) -> Response:
    """Draw a picture anew, or what its mask leaves transparent."""
    fields, files = await read_form(request)
    wanted = _read(Prompted, fields)
    order = await _from_picture(service_of(request), wanted, files, client_of(request))
    return await _answer(request, wanted, order, "image_edit")


@openai_router.post("/images/variations", response_model=None, openapi_extra=form_of(Wanted, "image"))
async def variations(request: Request) -> Response:
    """Draw a picture anew, most of it as it was."""
    fields, files = await read_form(request)
    wanted = _read(Wanted, fields)
    if wanted.strength is None:
        wanted = wanted.model_copy(update={"strength": _VARIED})
    order = await _from_picture(service_of(request), wanted, {**files, "mask": []}, client_of(request))
    return await _answer(request, wanted, order, "image_edit")


async def _answer(request: Request, wanted: Wanted, order: Order, kind: str) -> Response:
    service = service_of(request)
    if wanted.stream:
        events = service.draw(order, client_of(request), previews=wanted.partial_images > 0)
        name: str = (await anext(events))["job"]
        found = find_model(service, order.model)
        size = (
            (order.width, order.height) if order.width and order.height else found.default_size if found else (512, 512)
        )
        told = _events(service, name, events, wanted, kind, size)
        return StreamingResponse(told, media_type="text/event-stream")
    begun = await service.submit(order, client_of(request))
    usage = await _usage(service, order)  # While it is drawn.
    job = await drawn(request, begun.id)
    pictures = _safe(job)
    data = []
    for picture in pictures:
        entry: Json = {"seed": picture.seed}
        if picture.prompt != wanted.prompt:
            entry["revised_prompt"] = picture.prompt
        if wanted.as_url:
            path = picture.url.removesuffix(".png") + _SUFFIXES[wanted.output_format]
            entry["url"] = str(request.base_url).rstrip("/") + visitor_of(request).link(path)
        else:
            entry["b64_json"] = await _file(service, picture, wanted)
        data.append(entry)
    answer = {
        "created": int(time.time()),
        "data": data,
        "output_format": wanted.output_format,
        "background": "opaque",
        "size": f"{pictures[0].width}x{pictures[0].height}",
        "usage": usage,
    }
    return PictureAnswer(answer)


async def _events(
    service: Service, name: str, events: AsyncGenerator[Event, None], wanted: Wanted, kind: str, size: tuple[int, int]
) -> AsyncIterator[str]:
    """Return server-sent events: some pictures as they grow, and each one that is done."""
    shown = 0
    due = [(place + 1) / (wanted.partial_images + 1) for place in range(wanted.partial_images)]
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if event["type"] == "step" and event.get("preview"):
                    done = event["done"] / event["steps_total"]
                    passed = [share for share in due if share <= done]
                    if passed:
                        due = due[len(passed) :]
                        yield await _partial(event["preview"], wanted, kind, size, shown)
                        shown += 1
        job = service.job(name)
        usage = await _usage(service, job.order)
        for picture in _safe(require_done(job)):
            text, shape = to_base64(await _file(service, picture, wanted)), f"{picture.width}x{picture.height}"
            yield _event(f"{kind}.completed", wanted, b64_json=text, size=shape, usage=usage)
    except (RequestRefusedError, OlivelikeError) as error:
        code = error.code if isinstance(error, RequestRefusedError) else error.word
        value = {"type": "error", "error": {"message": str(error), "type": "server_error", "code": code}}
        yield f"event: error\ndata: {json.dumps(value)}\n\n"
    finally:
        with contextlib.suppress(JobEnded):
            service.cancel(name)  # Its client has left.


async def _partial(preview: str, wanted: Wanted, kind: str, size: tuple[int, int], index: int) -> str:
    data = from_base64(preview, "preview")

    def grow() -> bytes:
        buffer = io.BytesIO()
        quality = 90 if wanted.output_compression is None else wanted.output_compression
        upright(data, "preview").convert("RGB").resize(size).save(buffer, wanted.output_format, quality=quality)
        return buffer.getvalue()

    text, shown = to_base64(await in_turn(grow)), f"{size[0]}x{size[1]}"
    return _event(f"{kind}.partial_image", wanted, b64_json=text, size=shown, partial_image_index=index)


def _event(name: str, wanted: Wanted, **values: Any) -> str:
    quality = wanted.quality if wanted.quality in ("low", "medium", "high") else "auto"
    event = {
        "type": name, "created_at": int(time.time()), "quality": quality, "background": "opaque",
        "output_format": wanted.output_format, **values,
    }  # fmt: skip
    return f"event: {name}\ndata: {json.dumps(event)}\n\n"


async def _from_picture(service: Service, wanted: Wanted, files: Files, client: str) -> Order:
    """Return the order to start from the picture that came, with what is transparent in the mask as ours."""
    chosen = _chosen(service, wanted.model)
    pictures = [data for name, sent in files.items() if re.fullmatch(r"image(\[\d*\])?", name) for data in sent]
    masks = files.get("mask", [])
    masked = wanted.strength != _VARIED and (bool(masks) or chosen.most_references == 0)
    most = chosen.most_references + masked if chosen.most_references and wanted.strength != _VARIED else 1
    if not 1 <= len(pictures) <= most or len(masks) > 1:
        number = "one" if most == 1 else f"1 to {most}"
        raise RequestRefusedError(
            400,
            "invalid_image",
            f"{len(pictures)} pictures were sent as files; {chosen.name} starts from {number}, such as -F image=@FILE",
            param="image",
        )

    def read() -> tuple[tuple[int, int], bytes | None]:
        size = upright(pictures[0], "image").size
        if not masked:
            return size, None
        mask = where_transparent(*((masks[0], "mask") if masks else (pictures[0], "image")))
        if mask is None and masks:
            raise UsageError("the mask is transparent nowhere; what is to be painted must be")
        return size, None if mask is None else png(mask)

    size, mask = await in_turn(read)
    asked = wanted.width_and_height
    width, height = _alike(size, chosen) if asked is None else _sensible(service, asked, chosen)
    sent = [(await service.upload(data, client)).id for data in pictures]
    # What sees pictures beside the text edits those: it starts from one only to keep what is around a mask.
    starts = masked or wanted.strength == _VARIED
    mask_id = None if mask is None else (await service.upload(mask, client)).id
    return _order(
        wanted,
        chosen,
        width=width,
        height=height,
        init_image=sent[0] if starts else None,
        references=tuple(sent[1:] if starts else sent),
        mask=mask_id,
        mask_blur=None if mask is None else 0,
    )


def _order(wanted: Wanted, chosen: ModelView, **more: Any) -> Order:
    shared = {name: getattr(wanted, theirs) for name, theirs in _SHARED.items()}
    return make_order(
        _THEIRS, model=chosen.name, prompt=wanted.prompt, loras=wanted.loras, fit=True, **{**shared, **more}
    )


def _sensible(service: Service, size: tuple[int, int], chosen: ModelView) -> tuple[int, int]:
    """Return a size, or one of its shape that is not so large that a folder takes very long and repeats itself.

    Programs have sizes such as 1024x1024 built in, whatever draws. One that the server bounds is left to be refused.
    """
    bounded = not all(size) or max(size) > service.settings.max_side
    small = size[0] * size[1] <= LARGE * chosen.default_size[0] * chosen.default_size[1]
    return size if bounded or small else _alike(size, chosen, LARGE)


def _alike(size: tuple[int, int], chosen: ModelView, times: float = 1) -> tuple[int, int]:
    """Return a size of a picture's shape, with as many pixels as the folder draws by default, or `times` as many."""
    unit = chosen.size_unit
    share = math.sqrt(times * chosen.default_size[0] * chosen.default_size[1] / (size[0] * size[1]))
    width, height = (max(unit, round(side * share / unit) * unit) for side in size)
    return width, height


def _read(kind: type[_Wanted], fields: Mapping[str, str]) -> _Wanted:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        message, param = in_words(error.errors())
        raise RequestRefusedError(400, "invalid", message, param=param) from None


def _chosen(service: Service, name: str | None) -> ModelView:
    """Return the folder that a name means: the current one for none, and for the names of OpenAI's own."""
    own = name is None or (find_model(service, name) is None and _OPENAIS_OWN.fullmatch(name))
    found = find_model(service, service.current_model if own or name is None else name)
    if found is None:
        raise RequestRefusedError(
            404, "model_not_found", f"there is no model {name!r} here; see /v1/models", param="model"
        )
    return found


def _model(found: ModelView) -> Json:
    return {"id": found.name, "object": "model", "created": _STARTED, "owned_by": "olivelike"}


def _safe(job: JobView) -> list[PictureView]:
    """Return the pictures that are not flagged. Raises `RequestRefusedError` if there are none."""
    if not job.pictures:
        raise RequestRefusedError(409, "cancelled", "all of the job was skipped")
    safe = [picture for picture in job.pictures if not picture.flagged]
    if not safe:
        raise RequestRefusedError(400, "moderation_blocked", "the safety checker flagged all pictures")
    return safe


async def _file(service: Service, picture: PictureView, wanted: Wanted) -> bytes:
    suffix = _SUFFIXES[wanted.output_format]
    return await service.picture_bytes(picture.id, suffix, quality=wanted.output_compression)


async def _usage(service: Service, order: Order | None) -> Json:
    """Return the prompt's tokens; pictures have none here."""
    count = await service.tokens(order.model, order.prompt) if order else 0
    details = {"text_tokens": count, "image_tokens": 0}
    return {"input_tokens": count, "input_tokens_details": details, "output_tokens": 0, "total_tokens": count}
