"""Requests of `generate --server` to a server: an order for each line of prompts, and the pictures to start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from olivelike._untrusted import Json, JsonView, read_bytes
from olivelike.errors import UsageError
from olivelike.runtime.jobs.job_notes import image_notes, model_notes
from olivelike.runtime.pipeline.request import CHOICES, Choices, Pictures, Request
from olivelike.runtime.prompts.syntax import take_lora_tags

if TYPE_CHECKING:
    from olivelike.runtime.jobs.job_plan import Asked
    from olivelike.runtime.pictures import PictureRecord, UsedFile
    from olivelike.serve.remote.client import Server

_MOST_BYTES: Final = 256 << 20
"""Size of a picture that is sent; servers take less."""


@dataclass(frozen=True)
class RemoteOrder:
    """Request that one line of prompts makes of a server."""

    body: JsonView
    """An `Order`."""
    place: str | None
    """File and line, for messages."""

    @property
    def batches(self) -> int:
        """Count of batches that it takes."""
        return -(-int(self.body.get("num_images", 1)) // int(self.body.get("batch_size", 1)))


@dataclass(frozen=True)
class RemotePlan:
    """All that a server is asked for, and what only this side knows of it."""

    model: str
    orders: tuple[RemoteOrder, ...]
    used: Pictures[UsedFile]
    """Pictures, by their names here."""
    notes: tuple[str, ...]

    @property
    def pictures(self) -> int:
        """Count of pictures that there will be."""
        return sum(int(order.body.get("num_images", 1)) for order in self.orders)


def spread(plan: RemotePlan) -> RemotePlan:
    """Return a plan with an order for each batch, so that several workers draw one line's pictures at once."""
    orders: list[RemoteOrder] = []
    for order in plan.orders:
        choices = Choices(**{name: value for name, value in order.body.items() if name in CHOICES})
        for first in range(0, choices.num_images, choices.batch_size):
            seed, varied = choices.seeds_of(first, choices.seed, choices.variation_seed)
            more = {"seed": seed, "num_images": min(choices.batch_size, choices.num_images - first)}
            more |= {} if varied is None else {"variation_seed": varied}
            orders.append(replace(order, body={**order.body, **more}))
    return replace(plan, orders=tuple(orders))


def plan_orders(
    server: Server, model: str, given: Asked[Path], *, loras: Sequence[str] = (), save: bool = True, fast: bool = False
) -> RemotePlan:
    """Make orders of what is asked for, with seeds of their own, and send the server the pictures to start from.

    Raises `UsageError` for a value that can't be had, and what `Server` raises.

    Args:
        model: its name at the server.
        loras: `NAME` or `NAME:WEIGHT`, of the server's own.
        save: whether the pictures stay in the server's gallery too.
        fast: let the server take what a few-step model is made for.
    """
    before, lines = given.before, given.lines
    chosen = [_lora(text) for text in loras]
    if not lines:
        raise UsageError("there is no prompt; give one, such as 'a red circle'")
    sent = given.pictures.map(lambda path: server.upload(read_bytes(path, _MOST_BYTES))).given()
    if "controls" in sent:
        sent["controls"] = [asdict(control) for control in sent["controls"]]
    notes = []
    if before is not None:
        notes = [*image_notes(before, given.used), *_model_notes(server, model, before)]
        if before.loras and not chosen and not any(take_lora_tags(line.prompt)[1] for line in lines):
            named = ", ".join(lora.name for lora in before.loras)
            raise UsageError(f"the picture was made with LoRAs that are not given: {named}; give them with --lora")
    base = replace(Request(()), **given.fields).drawn_seeds()
    orders = []
    for line in lines:
        asked = {**given.fields, **base, **line.fields}
        asked |= replace(Request(()), **asked).drawn_seeds()
        if (upscaler := asked.get("upscaler") or _upscaler_of(before)) is not None:
            asked["upscaler"] = _upscaler(str(upscaler))
        if (size := asked.pop("size", None)) is not None:
            asked["width"], asked["height"] = cast("tuple[int, int]", size)
        body = {"model": model, "prompt": line.prompt, **asked, **sent, "loras": chosen, "save": save, "fast": fast}
        orders.append(RemoteOrder(body, line.place))
    return RemotePlan(model, tuple(orders), given.used, tuple(notes))


def _upscaler_of(before: PictureRecord | None) -> str | None:
    return before.upscaler.name if before is not None and before.upscaler is not None else None


def _upscaler(text: str) -> str:
    if "/" in text or "\\" in text:
        raise UsageError(f"--upscaler {text!r}: a server has its own upscalers, by name; write NAME")
    return text.removesuffix(".onnx")


def _lora(text: str) -> Json:
    name, colon, weight = text.rpartition(":")
    try:
        choice = {"name": name, "weight": float(weight)} if colon else {"name": text}
    except ValueError:
        choice = {"name": text}
    if not choice["name"] or "/" in text or "\\" in text:
        raise UsageError(f"--lora {text!r}: a server has its own LoRAs, by name; write NAME or NAME:WEIGHT")
    return choice


def _model_notes(server: Server, model: str, before: PictureRecord) -> Iterator[str]:
    found = server.get("/api/models")
    views = found.get("models", []) if isinstance(found, dict) else found
    hashes = {view["name"]: view.get("sha256") or view.get("hash") for view in views}
    yield from model_notes(before, model, hashes.get(model) or "")
