"""Request of a client: an `Order`, checked as far as no pipeline is needed for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from olivelike._untrusted import JsonView
from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.runtime.pipeline.request import LABELS, PICTURE_FIELDS, Choices, Control, Pictures, axes, with_clip_layer

Finite = Annotated[float, Field(allow_inf_nan=False)]
Strength = Annotated[Finite, Field(ge=-10, le=10)]
MOST_CONTROLS: Final = 8
CONTROL_AXIS: Final = "control_strength"
CONTROL_AXES: Final = {f"{CONTROL_AXIS}_{number}": number for number in range(1, MOST_CONTROLS + 1)}
"""Axes of a plot over the strength of one control picture → its number, from 1."""
AXES: Final = {
    "prompt_sr": "Prompt S/R", "lora": "LoRA:weight", "model": "Model", "schedule": "Schedule type",
    CONTROL_AXIS: "ControlNet weight",
    **{name: f"ControlNet weight ({number})" for name, number in CONTROL_AXES.items()},
}  # fmt: skip
"""Axes of a plot beside a request's fields, with what people call them."""
Name = Annotated[str, Field(max_length=300)]
Text = Annotated[str, Field(max_length=20_000)]
UploadId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MOST_IMAGE_PROMPTS: Final = 16
MOST_REFERENCES: Final = max(family.most_references for family in FAMILIES.values())
"""Pictures of an order that lead, and that are a prompt."""


class _Value(BaseModel, frozen=True):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class LoraChoice(_Value, frozen=True):
    """A LoRA on top of a folder."""

    name: Name
    weight: Finite = 1.0
    text_weight: Finite | None = None
    """For the text encoders; by default `weight`."""


class _Control(_Value, Control[UploadId], frozen=True):
    """A picture that leads by a network of the folder, within bounds."""

    image: UploadId
    net: Name | None = None
    strength: Strength = 1.0
    start: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    end: Annotated[Finite, Field(ge=0, le=1)] = 1.0


class Axis(_Value, frozen=True):
    """Field that changes along a side of a plot."""

    field: Literal[(*axes(), *AXES)]  # type: ignore[valid-type]
    """`prompt_sr` puts each value in the place of the first one in the prompts; `lora` adds `NAME:WEIGHT`;
    `schedule` is the schedule type of the sampler; `control_strength` is that of all control pictures, and
    `control_strength_2` that of the second."""
    values: Annotated[
        tuple[Annotated[str, Field(max_length=2000)] | int | Finite, ...],
        FailFast(),
        Field(min_length=1, max_length=10_000),
    ]


class PromptMatrix(_Value, frozen=True):
    """A1111's script of this name: of `a|b|c`, `a` with each choice of the others, in one grid."""

    negative: bool = False
    """Whether the negative prompt is the one that is parted."""
    at_start: bool = False
    """Put what is chosen in front of the first part."""
    delimiter: Literal["comma", "space"] = "comma"
    different_seeds: bool = False


def _axis_of_before(axis: Any) -> Any:
    if not isinstance(axis, dict) or axis.get("field") != "clip_skip":
        return axis
    layers = [with_clip_layer({"clip_skip": value})["clip_layer"] for value in axis.get("values") or ()]
    return {**axis, "field": "clip_layer", "values": layers}


class Order(_Value, Choices, frozen=True):
    """Pictures to make: what a `Request` has in plain values, and pictures and LoRAs by their names at the server.

    A seed that is `None` or -1 is drawn.
    """

    model: Name | None = None
    """Name of a served folder; by default the current one."""
    prompt: Text
    fast: bool = False
    """In place of steps, guidance, scheduler and eta that are at their defaults, what a few-step model is made for."""
    width: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    height: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    loras: Annotated[tuple[LoraChoice, ...], FailFast(), Field(max_length=32)] = ()
    """Beside those that tags in the prompt name."""
    upscaler: Name | None = None
    """Name of a served network that enlarges: with `hires` between the two passes, else the finished pictures."""
    init_image: UploadId | None = None
    init_images: Annotated[tuple[UploadId, ...], FailFast(), Field(max_length=10_000)] = ()
    """Pictures to start from, one after the other; all else is the same for each."""
    different_seeds: bool = False
    """Whether each of several initial pictures has the seeds behind those of the one before, not the same ones."""
    mask: UploadId | None = None
    """White is painted."""
    controls: Annotated[tuple[_Control, ...], FailFast(), Field(max_length=MOST_CONTROLS)] = ()
    """Pictures that lead; what they lead to is summed."""
    ip_adapter_images: Annotated[tuple[UploadId, ...], FailFast(), Field(max_length=MOST_IMAGE_PROMPTS)] = ()
    """Pictures that are a prompt beside the text, by the folder's IP-Adapter."""
    references: Annotated[tuple[UploadId, ...], FailFast(), Field(max_length=MOST_REFERENCES)] = ()
    """Pictures to work after, for families whose denoiser sees some."""
    x: Axis | None = None
    y: Axis | None = None
    z: Axis | None = None
    """Axes of a plot: columns, rows, and tables of these below each other."""
    prompt_matrix: PromptMatrix | None = None
    sheet: bool = False
    """Lay all pictures out on one sheet too; a plot has one anyway."""
    save: bool = True
    """Whether pictures stay in the gallery; they are dropped an hour after the job otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _of_before(cls, values: Any) -> Any:
        """Read what 0.1.0 called `clip_skip`, in orders and as an axis."""
        if not isinstance(values, dict):
            return values
        axes_of = {side: _axis_of_before(values[side]) for side in ("x", "y", "z") if side in values}
        return {**with_clip_layer(values), **axes_of}

    @model_validator(mode="after")
    def _one_way_to_many(self) -> Self:
        ways = {"a plot": self.axes, "a prompt matrix": self.prompt_matrix, "init_images": self.init_images}
        if len(given := [name for name, value in ways.items() if value]) > 1:
            raise ValueError(f"{' and '.join(given)} are not drawn in one job; leave all but one out")
        if self.init_image and self.init_images:
            raise ValueError("init_image and init_images are given; leave one out")
        return self

    @property
    def uploads(self) -> list[str]:
        """Return all pictures that it names."""
        return [*Pictures.of(self), *self.init_images]

    @property
    def has_heads(self) -> bool:
        """Whether its pictures come on a grid with heads."""
        return bool(self.axes) or self.prompt_matrix is not None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return those that there are, columns first."""
        return tuple(axis for axis in (self.x, self.y, self.z) if axis is not None)


def axis_label(field: str) -> str:
    """Return what people call a field that is an axis."""
    return {**AXES, **LABELS}[field]


def no_upload(name: str) -> SourceError:
    """Return the error for an upload that is gone."""
    return SourceError(f"there is no upload {name[:12]}… any more; send the picture again")


def uploads_of(asked: JsonView) -> Iterator[str]:
    """Yield the uploads that an order in JSON names."""
    for field in (*PICTURE_FIELDS, "init_images"):
        named = asked.get(field) or ()
        for one in [named] if isinstance(named, str) else named:
            yield one if isinstance(one, str) else one["image"]
