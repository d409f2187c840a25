"""Jobs, pictures and models as the server tells of them, and why it takes none or leaves one as it is."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from olivelike._untrusted import Json
from olivelike.errors import UsageError
from olivelike.runtime.pipeline.request import with_clip_layer
from olivelike.serve.lora_cards import LoraCard
from olivelike.serve.orders import Order

JobState = Literal["queued", "drawing", "done", "failed", "cancelled"]
ENDED: Final = frozenset({"done", "failed", "cancelled"})
"""States that last, and the events that tell of them."""

Event = Json
"""`type`, `job`, and what the type has: JSON."""


class QueueFull(UsageError):  # noqa: N818  (named after the state)
    """No more jobs, or enlargements, are taken until others are done."""

    def __init__(self, waiting: int, seconds: int, what: str = "jobs") -> None:
        super().__init__(f"{waiting} {what} wait already, the most that are taken; try again when one is done")
        self.seconds = seconds


class JobEnded(UsageError):  # noqa: N818
    """Nothing can be done to a job that has ended."""


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class PictureView(_View):
    """A picture in the gallery."""

    id: str
    job: str | None
    """Whose it is, as far as that is known."""
    url: str
    file: str = ""
    """Below the gallery; its name is the one that the picture has wherever it is saved."""
    thumb: str
    width: int
    height: int
    seed: int | None
    prompt: str
    first_seed: int | None
    """Seed of its first attempt."""
    attempts: int
    sheet: bool = False
    """Whether it is all pictures of a job on one."""
    flagged: bool | None
    """Whether the safety checker made it black; `None` if none looked."""
    favourite: bool = False
    created: str
    record: Json | None
    parameters: str | None
    """A1111's text."""


class DeletedView(_View):
    """What became of pictures that were to be deleted: the id of each is in one of these."""

    deleted: tuple[str, ...]
    missing: tuple[str, ...]
    not_yours: tuple[str, ...]
    """Another key's, or of nobody who is known here."""
    failed: tuple[str, ...]
    """Whose file the operating system does not delete."""
    why: str | None
    """A sentence on those that are there still, if any are."""


class ErrorView(_View):
    """Why something failed."""

    code: str
    message: str


class JobView(_View):
    """A job as it is now."""

    id: str
    kind: Literal["pictures", "run"]
    state: JobState
    position: int | None
    """In the queue; 0 runs next."""
    client: str
    created: str
    started: str | None
    finished: str | None
    order: Order | None
    """With its seed; of a job of pictures."""
    run: Json | None
    """Request and findings of a run; `None` for a job of pictures."""
    opening: str | None = None
    """Model that is opened for it now."""
    step: int
    """Done so far, of all batches."""
    steps_total: int
    batch: int
    batches: int
    eta_seconds: float | None
    """Until it is done, once it is drawn."""
    pictures: list[PictureView]
    sheet: PictureView | None
    notes: list[str]
    error: ErrorView | None


class ModelView(_View):
    """A folder that is served."""

    name: str
    title: str
    """As A1111 shows it: the name with the hash."""
    family: str
    text_width: int | None = None
    """Numbers of each vector of a prompt that its UNet takes."""
    default_size: tuple[int, int]
    size_unit: int
    """Sides are multiples of it."""
    scheduler: str | None
    """Its own, a class of diffusers."""
    hash: str | None
    """First ten digits of the checkpoint's SHA-256."""
    sha256: str | None
    inpaints: bool
    """Whether its UNet needs an initial picture and a mask."""
    takes_pictures: bool
    """Whether it can start from a picture."""
    takes_negative_prompt: bool
    usual: Mapping[str, int | float] = {}
    """Fields of an order whose default is that of its family → that."""
    absent: tuple[str, ...] = ()
    """Fields of an order that have no meaning for it."""
    most_references: int = 0
    """Most pictures that it may be given to work after."""
    has_safety_checker: bool
    controlnets: tuple[str, ...] = ()
    """Names of its networks that control pictures name."""
    ip_adapter: str | None = None
    """Name of what makes a prompt of a picture."""
    made_for: str = ""
    """Target and precision, such as `cpu in fp32, w8 in unet`."""
    size: int = 0
    """Bytes of its files."""
    examples: tuple[str, ...] = ()
    """Prompts to begin with, of models that are known to draw little else."""
    loaded: bool
    state: Literal["ready", "missing"]
    """`missing` if the folder is gone or damaged."""


LISTED_GUIDES: Final = ("controlnets", "ip_adapter")
"""Fields of a model for its guides: those that control pictures name, and that which takes pictures as a prompt."""


class LoraView(_View):
    """A LoRA that prompts may name."""

    name: str
    alias: str
    path: str
    """Below its folder."""
    family: str | None
    """Family of the networks that it fits, such as `sd1`; `None` if it can't be read."""
    card: LoraCard
    families: tuple[str, ...] = ()
    """Families whose denoisers its layers may be of, by their names; none if it has no such layers."""
    few_steps: Json | None = None
    """Steps, guidance and scheduler that *Few steps* takes with it, by an order's fields; `None` if it is of no few."""
    text_width: int | None = None
    """Numbers of each vector of a prompt that its layers take; `None` if it has none that do."""
    broken: bool = False
    """Whether it can't be read as a LoRA."""
    size: int
    """Bytes of its file."""
    thumbnail: str | None


class RecipeView(_View):
    """Recipe that a picture was made by."""

    record: Json
    left_out: str | None
    """A sentence on what of it the page does not take over."""
    script: Json | None = None
    """Axes of the plot that it is the grid of, with their values as one text; a prompt matrix is one without."""


class UploadView(_View):
    """A picture that a client sent."""

    id: str
    width: int
    height: int
    record: Json | None
    parameters: str | None
    left_out: str | None = None
    """A sentence on what of the recipe the page does not take over."""
    script: Json | None = None
    """As a recipe's."""
    unread: str | None = None
    """Why there is no record though there is a recipe."""


def iso(seconds: float | None) -> str | None:
    """Return a time since 1970 in ISO 8601, in UTC."""
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")


def record_of(text: str | None) -> Json | None:
    """Return what made a picture, of its JSON."""
    return dict(with_clip_layer(json.loads(text))) if text else None
