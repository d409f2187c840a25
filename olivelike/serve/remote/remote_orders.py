"""Requests of `generate --server` to a server: an order for each line of prompts, and the pictures to start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from olivelike._untrusted import Json, JsonView, read_bytes
from olivelike.errors import UsageError
from olivelike.runtime.jobs.control_files import ControlFile, recorded_controls, recorded_image_prompt
from olivelike.runtime.jobs.job_notes import image_notes, model_notes, recorded_fields
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pictures import PictureRecord, UsedFile, read_picture_record
from olivelike.runtime.pictures.picture_reading import find_used, open_image
from olivelike.runtime.pipeline.request import CHOICES, Choices, Request, RequestFields
from olivelike.runtime.prompts.syntax import take_lora_tags

if TYPE_CHECKING:
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
    used: tuple[UsedFile | None, UsedFile | None]
    """Initial picture and mask, by their names here."""
    notes: tuple[str, ...]
    led_by: tuple[UsedFile, ...] = ()
    """Control pictures, likewise."""
    shown: tuple[UsedFile, ...] = ()
    """Pictures that are a prompt, likewise."""

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
    server: Server,
    model: str,
    lines: Sequence[PromptLine],
    fields: RequestFields,
    *,
    made_before: Path | None = None,
    init_image: Path | None = None,
    mask: Path | None = None,
    controls: Sequence[ControlFile] = (),
    ip_adapter_images: Sequence[Path] = (),
    loras: Sequence[str] = (),
    save: bool = True,
    fast: bool = False,
) -> RemotePlan:
    """Make orders of prompts and options, with seeds of their own, and send the server the pictures to start from.

    Raises `UsageError` for a value that can't be had, `SourceError` if a file is missing or damaged, and what
    `Server` raises.

    Args:
        model: its name at the server.
        loras: `NAME` or `NAME:WEIGHT`, of the server's own.
        save: whether the pictures stay in the server's gallery too.
        fast: let the server take what a few-step model is made for.
        lines: as for `plan_jobs`, and so `fields`, `made_before`, `init_image`, `mask`, `controls` and
            `ip_adapter_images`.
    """
    before = read_picture_record(made_before) if made_before is not None else None
    chosen = [_lora(text) for text in loras]
    if before is not None and made_before is not None:
        init_image = init_image or find_used(before.init_image, made_before)
        mask = mask or find_used(before.mask, made_before)
        controls = controls or recorded_controls(before, made_before)
        ip_adapter_images = ip_adapter_images or recorded_image_prompt(before, made_before)
        lines = lines or [PromptLine(before.prompt)]
        files = {
            "init_image": init_image, "mask": mask, "controls": controls, "ip_adapter_images": ip_adapter_images,
        }  # fmt: skip
        fields = {**recorded_fields(before, [name for name, file in files.items() if file]), **fields}
    if not lines:
        raise UsageError("there is no prompt; give one, such as 'a red circle'")
    used: list[UsedFile | None] = [None, None]
    sent: dict[str, str] = {}
    for place, (name, path) in enumerate((("init_image", init_image), ("mask", mask))):
        if path is not None:
            _, used[place] = open_image(path)  # What is no picture is refused here.
            sent[name] = server.upload(read_bytes(path, _MOST_BYTES))
    led_by = [control.open()[1] for control in controls]
    led = [
        {
            "image": server.upload(read_bytes(Path(str(one.image)), _MOST_BYTES)), "net": one.net,
            "strength": one.strength, "start": one.start, "end": one.end, "preprocessor": one.preprocessor,
        }
        for one in controls
    ]  # fmt: skip
    shown = [open_image(path)[1] for path in ip_adapter_images]
    prompts = [server.upload(read_bytes(path, _MOST_BYTES)) for path in ip_adapter_images]
    notes = []
    if before is not None:
        notes = [*image_notes(before, (used[0], used[1])), *_model_notes(server, model, before)]
        if before.loras and not chosen and not any(take_lora_tags(line.prompt)[1] for line in lines):
            named = ", ".join(lora.name for lora in before.loras)
            raise UsageError(f"the picture was made with LoRAs that are not given: {named}; give them with --lora")
    base = replace(Request(()), **fields).drawn_seeds()
    orders = []
    for line in lines:
        asked = {**fields, **base, **line.fields}
        asked |= replace(Request(()), **asked).drawn_seeds()
        if "upscaler" in asked or (before is not None and before.upscaler is not None):
            raise UsageError("servers enlarge by no files (--upscaler): draw without --server, or leave it out")
        if (size := asked.pop("size", None)) is not None:
            asked["width"], asked["height"] = cast("tuple[int, int]", size)
        body = {"model": model, "prompt": line.prompt, **asked, **sent, "loras": chosen, "save": save, "fast": fast}
        if led:
            body["controls"] = led
        if prompts:
            body["ip_adapter_images"] = prompts
        orders.append(RemoteOrder(body, line.place))
    return RemotePlan(model, tuple(orders), (used[0], used[1]), tuple(notes), tuple(led_by), tuple(shown))


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
