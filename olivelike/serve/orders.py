"""What a client may ask for: an `Order`, checked as far as no pipeline is needed for it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from olivelike.runtime.pipeline.request import SEEDS

Finite = Annotated[float, Field(allow_inf_nan=False)]
Strength = Annotated[Finite, Field(ge=-10, le=10)]
AxisField = Literal[
    "seed", "steps", "guidance_scale", "scheduler", "strength", "prompt_sr", "lora", "model", "size", "clip_skip",
    "eta", "guidance_rescale",
]  # fmt: skip
Name = Annotated[str, Field(max_length=300)]
Text = Annotated[str, Field(max_length=20_000)]
UploadId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MOST_CONTROLS: Final = 8
MOST_IMAGE_PROMPTS: Final = 16
"""Pictures of an order that lead, and that are a prompt."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraChoice(_Value):
    """A LoRA on top of a folder."""

    name: Name
    weight: Finite = 1.0
    text_weight: Finite | None = None
    """For the text encoders; by default `weight`."""


class ControlChoice(_Value):
    """A picture that leads, by a ControlNet or a T2I-Adapter of the folder."""

    image: UploadId
    net: Name | None = None
    """Its name; by default the only one."""
    strength: Strength = 1.0
    start: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    end: Annotated[Finite, Field(ge=0, le=1)] = 1.0
    """From which to which share of the steps it leads."""
    preprocessor: Literal["none", "canny"] = "none"
    """`canny` leads by the picture's edges."""


class Axis(_Value):
    """What changes along a side of an X/Y plot."""

    field: AxisField
    """`prompt_sr` puts each value in the place of the first one in the prompts; `lora` adds `NAME:WEIGHT`."""
    values: Annotated[
        tuple[Annotated[str, Field(max_length=2000)] | int | Finite, ...],
        FailFast(),
        Field(min_length=1, max_length=10_000),
    ]


class Order(_Value):
    """Pictures to make; the names are those of a `Request` where it has them."""

    model: Name | None = None
    """Name of a served folder; by default the current one."""
    prompt: Text
    negative_prompt: Text | None = None
    num_images: Annotated[int, Field(ge=1, le=100)] = 1
    batch_size: Annotated[int, Field(ge=1, le=64)] = 1
    steps: Annotated[int, Field(ge=1, le=10_000)] = 50
    guidance_scale: Annotated[Finite, Field(ge=-100, le=1000)] = 7.5
    guidance_rescale: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    guidance_interval: tuple[Finite, Finite] | None = None
    """From which to which share of the steps there is guidance."""
    guidance_calls: Literal["one", "two", "faster"] = "one"
    cache_interval: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The whole UNet runs each so many steps."""
    scheduler: Name | None = None
    fast: bool = False
    """In place of steps, guidance, scheduler and eta that are at their defaults, what a few-step model is made for."""
    eta: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-1, lt=SEEDS)] | None = None
    """`None` and -1 draw one."""
    width: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    height: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    fit: bool = False
    strength: Annotated[Finite, Field(gt=0, le=1)] | None = None
    clip_skip: Annotated[int, Field(ge=0, le=100)] = 0
    prompt_weights: bool = True
    retry_unsafe: Annotated[int, Field(ge=0, le=10)] = 0
    decode_singly: bool = False
    tiled_vae: bool = False
    loras: Annotated[tuple[LoraChoice, ...], FailFast(), Field(max_length=32)] = ()
    """Beside those that tags in the prompt name."""
    init_image: UploadId | None = None
    mask: UploadId | None = None
    """White is painted."""
    mask_blur: Annotated[int, Field(ge=0, le=256)] | None = None
    """Put the initial picture back where the mask is black, with an edge so soft, in pixels; by default it is not."""
    inpaint_area: Literal["whole", "masked"] = "whole"
    """`masked` draws what is around the mask at full size, and puts it back."""
    inpaint_padding: Annotated[int, Field(ge=0, le=1024)] = 32
    """Pixels of the initial picture around a masked area."""
    variation_strength: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    """Share of another seed's noise in the initial noise; all pictures have `seed` then."""
    variation_seed: Annotated[int, Field(ge=-1, lt=SEEDS)] | None = None
    """Of the first picture, those after it count up; `None` and -1 draw one."""
    hires: Annotated[Finite, Field(gt=1, le=8)] | None = None
    """Enlarge what is drawn from a prompt alone so many times, and draw it again at that size."""
    hires_strength: Annotated[Finite, Field(gt=0, le=1)] = 0.7
    controls: Annotated[tuple[ControlChoice, ...], FailFast(), Field(max_length=MOST_CONTROLS)] = ()
    """Pictures that lead; what they lead to is summed."""
    control_guess: bool = False
    """Let them lead the prompt alone; they work without one, too."""
    ip_adapter_images: Annotated[tuple[UploadId, ...], FailFast(), Field(max_length=MOST_IMAGE_PROMPTS)] = ()
    """Pictures that are a prompt beside the text, by the folder's IP-Adapter."""
    ip_adapter_scale: Strength = 1.0
    """How strongly they lead."""
    x: Axis | None = None
    y: Axis | None = None
    sheet: bool = False
    """Lay all pictures out on one sheet too; a plot has one anyway."""
    save: bool = True
    """Whether pictures stay in the gallery; they are dropped an hour after the job otherwise."""
