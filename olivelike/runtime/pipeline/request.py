"""Values of pictures: `Request` says what to make, `Batch` what was made.

The fields of a request are declared here alone. Options of `generate`, lines of prompts, orders at a server, records of
pictures, texts for other programs and what `info` tells are derived from them.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from olivelike.errors import SafetyError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike._untrusted import JsonView
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder

Image_co = TypeVar("Image_co", covariant=True)
Other = TypeVar("Other")
SEEDS: Final = 2**64
"""Seeds are below this: what torch's generators take."""
DRAWN_SEEDS: Final = 2**32
"""Seeds that are drawn at random are below this, as A1111's: torch's noise on the CPU depends on 32 bits alone."""
_SIZE: Final = re.compile(r"(\d+)\s*x\s*(\d+)", re.IGNORECASE)
RESAMPLED: Final = ("Lanczos", "Nearest")
"""Upscalers that are no networks: they bring pictures to a size by counting with their pixels."""
RANDOM: Final = -1
"""The seed that draws one, as in A1111."""
RequestFields = dict[str, Any]
"""Fields of a `Request` by their names, as far as they are given."""


def parse_interval(text: str) -> tuple[float, float]:
    """Read `0.2:0.8`. Raises `UsageError` if it is none."""
    try:
        first, end = (float(share) for share in text.split(":"))
    except ValueError:
        raise UsageError(
            f"guidance interval {text!r} is none; write two shares of the steps, such as 0.2:0.8"
        ) from None
    return first, end


def parse_size(text: str) -> tuple[int, int]:
    """Read `512x768`: width, then height. Raises `UsageError` if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--size {text!r} is no size; write width and height such as 512x768")
    return int(match[1]), int(match[2])


def parse_hires(text: str) -> tuple[float, float | None]:
    """Read `1.5` or `1.5:0.6`: how many times as large, and with which strength; `None` leaves that open.

    Raises `UsageError` if it is neither.
    """
    times, colon, strength = text.partition(":")
    try:
        return float(times), float(strength) if colon else None
    except ValueError:
        raise UsageError(f"--hires {text!r} is neither X nor X:STRENGTH; write 1.5 or 1.5:0.6") from None


def parse_flag(text: str) -> bool:
    """Read what is on or off: `true`, `false`, or nothing, which is on. Raises `UsageError` if it is neither."""
    if text.lower() not in ("", "true", "false"):
        raise UsageError(f"{text!r} is neither true nor false")
    return text.lower() != "false"


@dataclass(frozen=True)
class OneOf:
    """Reader of one of some words; it raises `UsageError` for others."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return the word."""
        if text not in self.words:
            raise UsageError(f"{text!r} is none of {', '.join(self.words)}")
        return text


def parse_off(text: str) -> bool:
    """Read a flag that turns off what is on."""
    return not parse_flag(text)


def read_number(text: str) -> float:
    """Return a number that a text says. Raises `ValueError` if it is none, or none to work with."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number to work with")
    return value


def read_whole(text: str) -> int:
    """Return a whole number, which other programs may write with `.0`. Raises `ValueError` if it is none."""
    return int(text.removesuffix(".0"))


@dataclass(frozen=True)
class Bounds:
    """Values that a field may have: in orders at a server, and everywhere if it is no whole number.

    It is a group of constraints as pydantic reads them, without the import, which takes 10 ms of each start.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    max_length: int | None = None

    __is_annotated_types_grouped_metadata__ = True

    def why_not(self, value: float) -> str | None:
        """Return what a value is not, as the end of a sentence; `None` for one within the bounds."""
        words = (
            (self.ge, operator.ge, "at least"), (self.gt, operator.gt, "above"),
            (self.le, operator.le, "at most"), (self.lt, operator.lt, "below"),
        )  # fmt: skip
        given = [(bound, holds, word) for bound, holds, word in words if bound is not None]
        if all(holds(value, bound) for bound, holds, _ in given):
            return None
        if self.ge is not None and self.le is not None:
            return f"not between {self.ge:g} and {self.le:g}"
        return "not " + " and ".join(f"{word} {bound:g}" for bound, _, word in given)

    def __iter__(self) -> Iterator[object]:
        """Yield the constraints of `annotated_types`."""
        from annotated_types import Ge, Gt, Le, Lt, MaxLen

        for name, kind in (("ge", Ge), ("gt", Gt), ("le", Le), ("lt", Lt), ("max_length", MaxLen)):
            if (value := getattr(self, name)) is not None:
                yield kind(value)


class Written(NamedTuple):
    """Form of a field in A1111's text of a picture."""

    name: str
    read: Callable[[str], Any] | None = None
    """Gives the value of a text, or raises `ValueError`; without it a text that has the name is not taken over."""
    write: Callable[[Any], Any] | None = lambda value: value
    """Gives what is written of a value; without it the field is written together with others."""


class Told(NamedTuple):
    """Words for a field where a picture's record is shown, behind its label."""

    text: str | None = None
    """Put together with the record's fields by `str.format`; the value by default."""
    written: Written | None = None
    always: bool = False
    """Write it into files where it is the default too; others came later, and files without them stay as they were."""
    within: bool = False
    """Whether it is told together with another one."""


class Asked(NamedTuple):
    """Option or word by which people ask for a field."""

    read: Callable[[str], Any]
    """Gives the value of a text; raises `ValueError` or `UsageError`."""
    help: str
    """Purpose of the option; empty where another option of the command says it."""
    metavar: str | None = None
    """Stands for the value in `--help`."""
    name: str = ""
    """The option's, with hyphens; by default the field's."""
    aliases: tuple[str, ...] = ()
    """Other names in lines, such as those of A1111's script."""
    group: str = "Picture"
    """Title in `--help` under which the option stands."""

    @property
    def is_flag(self) -> bool:
        """Whether it may have no value."""
        return self.read in (parse_flag, parse_off)


class Entered(NamedTuple):
    """Input of the server's page for a field."""

    group: Literal["picture", "control", "image_prompt", "hires", "more"] | None = None
    """Group of its input, behind those that are declared before; `None` is for one with its own place in the page."""
    step: float = 1
    """From one number to the next, as its buttons go."""
    value: Any = None
    """Its first content, where that is not the default."""
    words: tuple[str, ...] = ()
    """For people, of the words that there are to choose from."""
    hint: str = ""
    """What it does, in words of nobody's trade."""
    label: str = ""
    """What it is called there, where its group has the field's own label."""


Need = Literal["guidance", "fresh noise", "caches"]
"""Ability of a family or a folder that a field is about; `resolve_defaults` refuses the field where it is not there."""


class Elsewhere(NamedTuple):
    """Names of a field in other programs' APIs, or words for how it comes of theirs; empty for its own name."""

    a1111: str = ""
    openai: str = ""


def choice(
    default: Any,
    asked: Asked | None = None,
    *,
    label: str | None = None,
    told: Told | None = None,
    entered: Entered | None = None,
    about: str | None = None,
    noun: str | None = None,
    needs: Need | None = None,
    axis: bool = False,
    elsewhere: Elsewhere | None = None,
    most: int | None = None,
) -> Any:
    """Declare a field of a request.

    Args:
        default: what it is where nobody asks for it.
        asked: how it is asked for in words, if it is.
        label: what people call it, wherever they read it: the field's own word, as programs of the kind have it.
        told: how a record tells it, if it does.
        entered: how the server's page asks for it, if it does.
        about: the field without which it means nothing.
        noun: what the field is, in messages on those that are about it.
        needs: the ability of a family or folder without which it means nothing.
        axis: whether it may change along a side of a plot.
        elsewhere: what other programs call it, beside the aliases of lines, whose first is A1111's name.
        most: the largest value that a pipeline takes, where a server takes less, or nothing says.
    """
    told_so = {
        "asked": asked,
        "label": label,
        "told": told,
        "entered": entered,
        "about": about,
        "noun": noun,
        "needs": needs,
        "axis": axis,
    }
    return field(default=default, metadata={**told_so, "elsewhere": elsewhere or Elsewhere(), "most": most})


def seed_or_drawn(asked: int | None) -> int:
    """Return the seed that is asked for, or one at random: for `None` and -1."""
    if asked not in (None, RANDOM):
        return asked
    from secrets import randbelow

    return randbelow(DRAWN_SEEDS)


def read_seed(text: str) -> int:
    """Return the seed that a text of another program says. Raises `ValueError` if it is none."""
    value = read_whole(text)
    if not 0 <= value < SEEDS:
        raise ValueError(f"{text} is no seed")
    return value


def _layer(text: str) -> int:
    return max(read_whole(text), 1)


def _interval(text: str) -> tuple[float, float]:
    first, end = (read_number(share) for share in text.split(":"))
    return first, end


def _no_emphasis(text: str) -> bool:
    if text != "None":
        raise ValueError(f"{text} is no way to weigh words here")
    return False


PreprocessorName = Literal["none", "canny", "scribble_xdog", "invert", "threshold", "blur_gaussian"]
"""What `runtime/pictures/preprocessors.py` makes of a picture that leads."""


@dataclass(frozen=True)
class Control(Generic[Image_co]):
    """A control picture: what its network is, how strongly and when it leads."""

    image: Image_co
    """Picture of the kind that the network is made for, such as edges; stretched to the picture's size."""
    net: str | None = choice(None, label="Model", entered=Entered())
    """Name of the network; `None` is the only one that the pipeline has."""
    strength: float = choice(1.0, label="Control weight", entered=Entered(step=0.05))
    start: float = choice(0.0, label="Starting control step", entered=Entered(step=0.05))
    end: float = choice(1.0, label="Ending control step", entered=Entered(step=0.05))
    """From which to which share of the steps it leads."""
    preprocessor: PreprocessorName = choice("none", label="Preprocessor", entered=Entered())
    """What is made of the picture first."""


@dataclass(frozen=True, kw_only=True)
class Pictures(Generic[Image_co]):
    """All pictures that a request names; fields are called as in requests, orders and records."""

    init_image: Image_co | None = None
    mask: Image_co | None = None
    controls: tuple[Control[Image_co], ...] = field(
        default=(), metadata={"lost": "was led by {}, which is", "option": "--control"}
    )
    ip_adapter_images: tuple[Image_co, ...] = field(
        default=(), metadata={"lost": "had {} as a prompt, which is", "option": "--ip-adapter"}
    )
    references: tuple[Image_co, ...] = field(
        default=(), metadata={"lost": "was made after {}, which is", "option": "--reference"}
    )

    @classmethod
    def of(cls, holder: object) -> Pictures[Any]:
        """Return those of a request, an order or a record."""
        return Pictures(**{name: getattr(holder, name) for name in PICTURE_FIELDS})

    def map(self, change: Callable[[Image_co], Other]) -> Pictures[Other]:
        """Return what stands for each picture instead."""
        return Pictures(
            init_image=None if self.init_image is None else change(self.init_image),
            mask=None if self.mask is None else change(self.mask),
            controls=tuple(with_image(one, change(one.image)) for one in self.controls),
            ip_adapter_images=tuple(change(one) for one in self.ip_adapter_images),
            references=tuple(change(one) for one in self.references),
        )

    def __iter__(self) -> Iterator[Image_co]:
        """Yield all."""
        yield from (one for one in (self.init_image, self.mask) if one is not None)
        yield from (one.image for one in self.controls)
        yield from self.ip_adapter_images
        yield from self.references

    def given(self) -> dict[str, Any]:
        """Return the fields that have a picture."""
        return {name: value for name in PICTURE_FIELDS if (value := getattr(self, name))}


NO_PICTURES: Final[Pictures[Any]] = Pictures()
PICTURE_FIELDS: Final = tuple(one.name for one in fields(Pictures))


def with_image(control: Control[Any], image: Other) -> Control[Other]:
    """Return a control picture as another one that leads in the same way."""
    values = {one.name: getattr(control, one.name) for one in fields(Control)}
    return Control(**{**values, "image": image})


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Recorded:
    """Choices of people for pictures in plain values, as requests, orders at a server and records of pictures have it.

    Files have the fields in this order.
    """

    guidance_rescale: Annotated[float, Bounds(ge=0, le=1)] = choice(
        0.0,
        Asked(float, "From 0 to 1, against overexposure; 0 by default.", "X", group="Prompts and sampling"),
        label="CFG rescale",
        told=Told(written=Written("CFG Rescale", read_number), always=True),
        entered=Entered("more", step=0.05),
        needs="guidance",
        axis=True,
    )
    """Share of section 3.4 of https://arxiv.org/abs/2305.08891, against overexposure."""
    eta: Annotated[float, Bounds(ge=0, le=1)] = choice(
        0.0,
        Asked(float, "DDIM's share of fresh noise; 0 by default.", "X", group="Prompts and sampling"),
        label="Eta",
        told=Told(written=Written("Eta", read_number), always=True),
        entered=Entered("more", step=0.05, hint="Share of fresh noise in each step, with DDIM."),
        needs="fresh noise",
        axis=True,
    )
    """Share of fresh noise in each step of the DDIM scheduler."""
    clip_layer: Annotated[int, Bounds(ge=1, le=100)] = choice(
        1,
        Asked(
            int,
            "Layer of CLIP whose states lead, counted from its end as in A1111; by default the model's own.",
            "N",
            name="clip-skip",
            group="Prompts and sampling",
        ),
        label="Clip skip",
        told=Told(written=Written("Clip skip", _layer)),
        elsewhere=Elsewhere(a1111="CLIP_stop_at_last_layers"),
        entered=Entered(
            "more", hint="Clip skip as A1111 counts: 2 leaves out the last layer of CLIP. SDXL does so anyway."
        ),
        axis=True,
    )
    """Layer of CLIP whose states lead, counted from its end; one behind the model's own is the model's own."""
    guidance_interval: tuple[float, float] | None = choice(
        None,
        Asked(
            parse_interval,
            "Shares of the steps between which guidance leads, such as 0:0.6; the others cost half.",
            "A:B",
            group="Prompts and sampling",
        ),
        label="Guidance interval",
        told=Told(
            "{guidance_interval[0]:g} to {guidance_interval[1]:g} of the steps",
            Written("Guidance interval", _interval, lambda shares: "{:g}:{:g}".format(*shares)),
        ),
        entered=Entered(
            "more",
            hint="Guidance interval: shares of the steps between which CFG leads, such as 0:0.6; the others cost half.",
        ),
        needs="guidance",
        axis=True,
    )
    """From which to which share of the steps guidance leads; the prompt alone does before and behind."""
    cache_interval: Annotated[int, Bounds(ge=1, le=10_000)] = choice(
        1,
        Asked(
            int,
            "Run the whole UNet each N steps, a small part between; for folders with `deepcache`.",
            "N",
            group="Time and memory",
        ),
        label="DeepCache interval",
        told=Told("the whole UNet each {cache_interval} steps", Written("Cache interval", read_whole)),
        entered=Entered("more", hint="DeepCache runs the whole UNet each so many steps, a small part between."),
        needs="caches",
        axis=True,
    )
    """Each so many steps the whole UNet runs; between them its shallow part, which the pass `deepcache` writes."""
    prompt_weights: bool = choice(
        True,
        Asked(
            parse_off,
            "Brackets, BREAK and AND in prompts are text; wildcards and LoRAs are read.",
            name="plain-prompts",
            group="Prompts and sampling",
        ),
        label="Emphasis",
        told=Told(
            "off: brackets in the prompt are text", Written("Emphasis", _no_emphasis, lambda _: "None"), always=True
        ),
        entered=Entered("more", hint="(word:1.2), [a:b:0.5], BREAK and the like mean something in prompts."),
    )
    """Whether `(word:1.2)`, `BREAK` and `AND` in prompts mean what they do in A1111; choices and LoRAs always do."""
    fit: bool = choice(
        False,
        Asked(
            parse_flag,
            "Take the nearest size there is, and crop the initial picture to its shape.",
            group="From pictures",
        ),
        label="Crop and resize",
        told=Told("to the shape of the size", always=True),
        entered=Entered(
            "picture", hint="Takes the nearest size, and crops the picture to its shape; it is stretched otherwise."
        ),
    )
    """Take the nearest size that can be had, and crop `init_image` and `mask` to its shape; they are stretched else."""
    variation_strength: Annotated[float, Bounds(ge=0, le=1)] = choice(
        0.0,
        Asked(
            float,
            "Share of that other one's noise, from 0 to 1; 0 by default.",
            "X",
            aliases=("subseed_strength",),
            group="Prompts and sampling",
        ),
        noun="variation_strength, the share of its noise, above 0",
        label="Variation strength",
        told=Told(written=Written("Variation seed strength", read_number)),
        entered=Entered("more", step=0.05),
        axis=True,
    )
    """Share of another seed's noise in the initial noise, as A1111's `subseed_strength`."""
    variation_seed: Annotated[int, Bounds(ge=-1, lt=SEEDS)] | None = choice(
        None,
        Asked(
            int,
            "Of another picture to vary towards; counts up. By default drawn.",
            "N",
            aliases=("subseed",),
            group="Prompts and sampling",
        ),
        label="Variation seed",
        told=Told(written=Written("Variation seed", read_seed)),
        about="variation_strength",
        entered=Entered("more", hint="A share of the noise is that of another seed; empty draws one."),
        axis=True,
    )
    """Other seed of each prompt's first picture; the next ones have those that follow, and keep `seed`. In a record, of
    this very picture."""
    hires: Annotated[float, Bounds(gt=1, le=8)] | None = choice(
        None,
        Asked(parse_hires, "Draw, enlarge X times, draw again: the share STRENGTH of the steps, 0.7.", "X[:STRENGTH]"),
        label="Hires fix",
        told=Told("upscale by {hires:g}, denoising strength {hires_strength:g}"),
        entered=Entered(
            "hires",
            step=0.25,
            hint="So many times as large: draws, enlarges, and draws again. Empty is off.",
            label="Upscale by",
        ),
        elsewhere=Elsewhere(a1111="hr_scale"),
        axis=True,
    )
    """Enlarge what is drawn from a prompt alone so many times, and draw it again at that size."""
    hires_strength: Annotated[float, Bounds(gt=0, le=1)] = choice(
        0.7,
        label="Hires denoising strength",
        told=Told(within=True),
        entered=Entered("hires", step=0.05),
        about="hires",
        elsewhere=Elsewhere(a1111="denoising_strength"),
        axis=True,
    )
    """Share of the steps that run again then; with `hires_steps`, the share of a schedule that those are."""
    hires_steps: Annotated[int, Bounds(ge=0, le=10_000)] = choice(
        0,
        Asked(
            int,
            "Steps of the second pass, as A1111 counts them; 0, the default, is STRENGTH of --steps.",
            "N",
            aliases=("hr_second_pass_steps",),
        ),
        label="Hires steps",
        told=Told(),
        entered=Entered("hires", hint="How many the second pass runs. 0: the share of Steps that its strength says."),
        about="hires",
        axis=True,
        most=10_000,
    )
    """Steps that run again then, all of them; 0 is the share that `hires_strength` says of `steps`."""
    mask_mode: Literal["masked", "not masked"] = choice(
        "masked",
        Asked(
            OneOf(("masked", "not masked")),
            "Draw what is white in the mask, or not masked: what is black; masked.",
            group="From pictures",
        ),
        label="Mask mode",
        told=Told("Inpaint not masked", Written("Mask mode", write=lambda _: "Inpaint not masked")),
        about="mask",
        entered=Entered("picture", words=("Inpaint masked", "Inpaint not masked")),
    )
    """`not masked` draws what is black in the mask, as A1111's `inpainting_mask_invert`."""
    masked_content: Literal["original", "fill", "latent noise", "latent nothing"] = choice(
        "original",
        Asked(
            OneOf(("original", "fill", "latent noise", "latent nothing")),
            "What is masked begins as the picture, colours around it (fill), latent noise or latent nothing; original.",
            group="From pictures",
        ),
        label="Masked content",
        told=Told(written=Written("Masked content")),
        about="mask",
        entered=Entered(
            "picture",
            words=("Original", "Fill", "Latent noise", "Latent nothing"),
            hint="What the masked part begins as: itself, colours around it, noise, or nothing.",
        ),
        axis=True,
    )
    """What denoising begins with where the mask is white, by A1111's names: the picture itself, colours around it, or
    noise or zeros as latents."""
    inpaint_area: Literal["whole", "masked"] = choice(
        "whole",
        Asked(
            OneOf(("whole", "masked")),
            "With a mask: draw the whole picture, or what is around the mask at full size; whole.",
            group="From pictures",
        ),
        label="Inpaint area",
        told=Told(
            "only masked, with {inpaint_padding} pixels around it",
            Written("Inpaint area", write=lambda _: "Only masked"),
        ),
        about="mask",
        entered=Entered("picture", words=("Whole picture", "Only masked")),
    )
    """`masked` draws what is around the mask at `size`, and puts it back into the picture."""
    mask_blur: Annotated[int, Bounds(ge=0, le=256)] | None = choice(
        None,
        Asked(
            int,
            "Keep the initial picture outside the mask, with an edge so soft, in pixels.",
            "N",
            group="From pictures",
        ),
        label="Mask blur",
        told=Told(written=Written("Mask blur")),
        about="mask",
        entered=Entered("picture", value=4),
        most=1024,
        axis=True,
    )
    """Put the initial picture back where the mask is black, with an edge so soft, in pixels; `None` does not."""
    inpaint_padding: Annotated[int, Bounds(ge=0, le=1024)] = choice(
        32,
        Asked(int, "Pixels around a masked area that are drawn too; 32 by default.", "N", group="From pictures"),
        label="Only masked padding",
        told=Told(within=True),
        about="inpaint_area",
        entered=Entered("picture"),
        elsewhere=Elsewhere(a1111="inpaint_full_res_padding"),
        axis=True,
    )
    """Pixels of the initial picture around a masked area."""
    tiled_vae: bool = choice(
        False,
        Asked(
            parse_flag,
            "Decode and encode part by part: for pictures that memory has no room for.",
            group="Time and memory",
        ),
        label="VAE tiling",
        told=Told("on"),
        entered=Entered("more", hint="Decodes large pictures part by part, in less memory."),
    )
    """Whether the VAE decodes and encodes pictures part by part that are larger than what the denoiser was trained
    on. That takes less memory still: in strips, with the statistics of the whole, or else in overlapping tiles."""
    control_guess: bool = choice(
        False,
        Asked(
            parse_flag, "Control pictures lead the prompt alone; they work without one, too.", group="LoRAs and control"
        ),
        label="Guess mode",
        told=Told("on: the prompt alone was led"),
        entered=Entered(
            "control",
            hint="ControlNet is more important, in A1111: what it says is led, what the negative prompt says is not.",
        ),
        about="controls",
    )
    """Let them lead prompts alone, not negative ones, and outer layers less than inner ones: works without a prompt."""
    ip_adapter_scale: Annotated[float, Bounds(ge=-10, le=10)] = choice(
        1.0,
        Asked(float, ""),
        label="IP-Adapter scale",
        told=Told(),
        about="ip_adapter_images",
        entered=Entered("image_prompt", step=0.05, value=0.6),
        axis=True,
    )
    """Strength of pictures that are a prompt beside the text."""

    def denoising_strength(self, first: float | None) -> float | None:
        """Return what A1111 calls so: of the last pass, `first` without a second one."""
        return first if self.hires is None else self.hires_strength

    def second_steps(self, steps: int) -> int:
        """Return how many steps the second pass runs, where the first has so many."""
        return self.hires_steps or max(1, int(steps * min(self.hires_strength, 1)))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Choices(Recorded):
    """Fields that requests and orders at a server share, with bounds for orders. Defaults are diffusers' pipelines'."""

    negative_prompt: Annotated[str, Bounds(max_length=20_000)] | None = choice(
        None, Asked(str, "What not to show.", "TEXT"), label="Negative prompt", entered=Entered()
    )
    """Text that the pictures are led away from; `None` is the empty text, or zeros where SDXL was trained so."""
    num_images: Annotated[int, Bounds(ge=1, le=100)] = choice(
        1,
        Asked(int, "Pictures for each prompt; 1 by default.", "N"),
        label="Batch count",
        entered=Entered(),
        elsewhere=Elsewhere(a1111="n_iter times batch_size", openai="n"),
        most=100_000,
    )
    """Each has its place in memory before the first one is drawn."""
    batch_size: Annotated[int, Bounds(ge=1, le=64)] = choice(
        1, Asked(int, "Pictures made at once; 1 by default.", "N"), label="Batch size", entered=Entered()
    )
    """Number of pictures that are made at once."""
    steps: Annotated[int, Bounds(ge=1, le=10_000)] = choice(
        50,
        Asked(int, "Steps; by default the model's own, 50 for SD 1.x to XL, or with --fast few.", "N"),
        label="Steps",
        entered=Entered(),
        axis=True,
        elsewhere=Elsewhere(openai="num_inference_steps"),
        most=10_000,
    )
    """At most ten times as many as networks are trained on."""
    guidance_scale: Annotated[float, Bounds(ge=-100, le=1000)] = choice(
        7.5,
        Asked(
            float,
            "How strongly the prompt leads; by default the model's own, 7.5 for SD 1.x to XL; off at 1 and below.",
            "X",
            aliases=("cfg_scale", "cfg-scale", "cfg"),
        ),
        label="CFG scale",
        entered=Entered(),
        axis=True,
    )
    """Strength of the prompt; at 1 and below, the denoiser runs on the prompt alone, in half the time."""
    scheduler: Annotated[str, Bounds(max_length=300)] | None = choice(
        None,
        Asked(
            str,
            "Such as Euler, DPM++ 2M Karras or DDIMScheduler; by default the folder's own.",
            "NAME",
            aliases=("sampler_name", "sampler-name", "sampler"),
        ),
        label="Sampler",
        entered=Entered(),
        axis=True,
    )
    """A class of diffusers or a name of A1111; `None` is the folder's own."""
    seed: Annotated[int, Bounds(ge=-1, lt=SEEDS)] | None = choice(
        None,
        Asked(int, "Of the first picture; those after it count up. By default, or as -1, drawn.", "N"),
        label="Seed",
        entered=Entered(),
        axis=True,
    )
    """Seed of each prompt's first picture; the next ones have the seeds that follow. `None` draws one."""
    strength: Annotated[float, Bounds(gt=0, le=1)] | None = choice(
        None,
        Asked(
            float,
            "Share of the steps that run on the initial picture; 0.8 by default, 1 with a mask.",
            "X",
            aliases=("denoising_strength", "denoising-strength", "denoising"),
            group="From pictures",
        ),
        about="init_image",
        label="Denoising strength",
        entered=Entered(),
        axis=True,
    )
    """Share of the steps that run on `init_image`; 0.8 by default, 1 with a mask."""
    retry_unsafe: Annotated[int, Bounds(ge=0, le=10)] = choice(
        0,
        Asked(int, "Draw a flagged picture again up to N times, with a new seed each; 0 by default.", "N"),
        label="Draw flagged again",
        entered=Entered("more", hint="Up to so many times, with a new seed each."),
    )
    """Number of times that a picture which the safety checker flags is drawn again, with a new seed."""
    guidance_calls: Literal["one", "two", "faster"] = choice(
        "one",
        Asked(
            OneOf(("one", "two", "faster")),
            "Both halves of guidance at once, or in two calls, for less memory; faster finds out. One.",
            group="Time and memory",
        ),
        needs="guidance",
    )
    """Whether the denoiser runs on negative prompts and prompts at once, or one after the other, which takes less
    memory; `faster` finds out which is, once per folder."""
    decode_singly: bool = choice(
        False,
        Asked(parse_flag, "Decode a batch picture by picture: takes less memory.", group="Time and memory"),
        label="Decode singly",
        entered=Entered("more", hint="Decodes a batch picture by picture, in less memory."),
    )
    """Decode the pictures of a batch one after the other, which takes less memory."""

    @property
    def guided(self) -> bool:
        """Whether each step also runs on the negative prompt."""
        return self.guidance_scale > 1

    @property
    def skips_layers(self) -> bool:
        """Whether steps between whole ones run the shallow part of the UNet alone."""
        return self.cache_interval > 1

    def drawn_seeds(self) -> RequestFields:
        """Return both seeds as they are asked for; what is `None` or -1 is drawn at random where it is needed."""
        seed = seed_or_drawn(self.seed)
        varied = None if self.variation_seed == RANDOM else self.variation_seed
        if varied is None and self.variation_strength:
            varied = seed_or_drawn(None)
        return {"seed": seed, "variation_seed": varied}

    def seeds_of(self, number: int, seed: int | None, varied: int | None) -> tuple[int, int | None]:
        """Return seed and variation seed of the picture that is so many behind one that has these."""
        assert seed is not None
        if not self.variation_strength:
            return (seed + number) % SEEDS, None
        assert varied is not None
        return seed, (varied + number) % SEEDS


@dataclass(frozen=True)
class Request(Choices):
    """Pictures to make."""

    prompts: tuple[str, ...]
    """Each gets `num_images` pictures; an empty one is allowed."""
    _: KW_ONLY
    seeds: tuple[int, ...] | None = None
    """The seed of each prompt's first picture, in place of one for all."""
    variation_seeds: tuple[int, ...] | None = None
    """Variation seed of each prompt's first picture, in place of one for all."""
    size: tuple[int, int] | None = choice(
        None,
        Asked(parse_size, "In pixels; by default the initial picture's, or what the denoiser was trained on.", "WxH"),
        label="Size",
        entered=Entered(),
        axis=True,
    )
    """Width and height in pixels; `None` is that of `init_image`, or what the denoiser was trained on."""
    init_image: Image | None = choice(None, noun="an initial picture")
    """Picture to start from."""
    mask: Image | None = choice(None, noun="a mask")
    """Picture that is white where to paint. Needs `init_image`; stretched to the picture's size."""
    upscaler: Path | None = choice(
        None,
        Asked(
            Path,
            "ONNX super-resolution model: enlarges pictures, or with --hires between the two; there also Lanczos, "
            "Nearest; without, the latents.",
            "FILE",
            aliases=("hr_upscaler", "hires-upscaler", "hires_upscaler"),
        ),
        label="Upscaler",
        entered=Entered(
            "hires", hint="With Hires fix it enlarges between the two passes; without, the finished picture."
        ),
        axis=True,
    )
    """ONNX file of a super-resolution network: for `hires`, or for the finished pictures; for `hires` also a word of
    `RESAMPLED`, and `None` enlarges the latents."""
    controls: tuple[Control[Image], ...] = choice((), noun="a picture that leads")
    """Pictures that lead; what they lead to is summed."""
    ip_adapter_images: tuple[Image, ...] = choice((), noun="a picture that is a prompt")
    """Pictures that are a prompt beside the text, by an IP-Adapter; of any shape, their middle counts."""
    references: tuple[Image, ...] = choice((), noun="a picture to work after")
    """Pictures that the denoiser sees beside the text, to edit or join them; for families that were trained so."""

    def __post_init__(self) -> None:
        """Take text for the path too."""
        from olivelike._files import hold_paths

        hold_paths(self, "upscaler")

    def with_seeds(self) -> Request:
        """Return it with both seeds, drawn where they are open."""
        drawn = self.drawn_seeds()
        if (drawn["seed"], drawn["variation_seed"]) == (self.seed, self.variation_seed):
            return self
        return replace(self, **drawn)

    @property
    def seeded_prompts(self) -> list[tuple[str, int]]:
        """Prompt and seed of each picture; a request without `seed` has none yet."""
        return [(prompt, seed) for prompt, seed, _ in self._pictures()]

    @property
    def variations(self) -> list[int]:
        """The variation seed of each picture; empty if they have none."""
        return [varied for _, _, varied in self._pictures() if varied is not None]

    def _pictures(self) -> Iterator[tuple[str, int, int | None]]:
        seeds = self.seeds or (self.seed,) * len(self.prompts)
        varied = self.variation_seeds or (self.variation_seed,) * len(self.prompts)
        for prompt, seed, other in zip(self.prompts, seeds, varied, strict=True):
            for number in range(self.num_images):
                yield prompt, *self.seeds_of(number, seed, other)


def with_meaning(fields_of: RequestFields, given: Collection[str]) -> RequestFields:
    """Return fields without those about another one that is neither given nor among them with a value."""
    about = {one.name: one.metadata["about"] for one in fields(Request) if one.metadata.get("about")}
    return {
        name: value
        for name, value in fields_of.items()
        if name not in about or about[name] in given or fields_of.get(about[name])
    }


def check_meaning(request: Request) -> None:
    """Refuse a field that is given without the one that it is about. Raises `UsageError`."""
    nouns = {one.name: one.metadata["noun"] for one in fields(Request) if one.metadata.get("noun")}
    for one in fields(Request):
        about = one.metadata.get("about")
        if about in nouns and getattr(request, one.name) != one.default and not getattr(request, about):
            raise UsageError(f"{one.name} is given without {nouns[about]}; give one, or drop it")


LABELS: Final[Mapping[str, str]] = {
    one.name: one.metadata["label"] for one in fields(Request) if one.metadata.get("label")
}
"""What people call fields, wherever they read it."""
CHOICES: Final = frozenset(one.name for one in fields(Choices))
"""Names of fields that a request and an order have alike."""


def asked_fields() -> Iterator[tuple[str, Asked]]:
    """Yield the fields of a request that can be asked for in words, each with how; the usual ones first."""
    for one in sorted(fields(Request), key=lambda one: one.name in Recorded.__dataclass_fields__):
        if (asked := one.metadata.get("asked")) is not None:
            yield one.name, asked._replace(name=asked.name or one.name.replace("_", "-"))


@lru_cache(maxsize=1)
def _bounds() -> dict[str, tuple[type, Bounds]]:
    """Return type and bounds of the fields that have some."""
    found = {}
    for name, hint in get_type_hints(Choices, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            for one in getattr(part, "__metadata__", ()):
                found[name] = part.__origin__, one
    return found


@lru_cache(maxsize=1)
def least_values() -> Mapping[str, float]:
    """Return the least value of each count: whole numbers of at least 0 or 1, seeds aside."""
    return {
        name: one.ge for name, (kind, one) in _bounds().items() if kind is int and one.ge is not None and one.ge >= 0
    }


@lru_cache(maxsize=1)
def most_values() -> Mapping[str, int]:
    """Return the largest value that a pipeline takes of each field that has one."""
    return {one.name: one.metadata["most"] for one in fields(Request) if one.metadata.get("most")}


@lru_cache(maxsize=1)
def ranges() -> Mapping[str, Bounds]:
    """Return the bounds of each field that is no whole number, which a pipeline has as a server does."""
    return {name: one for name, (kind, one) in _bounds().items() if kind is float}


def fields_about(name: str) -> tuple[str, ...]:
    """Return a field, and those that mean nothing without it."""
    return name, *(one.name for one in fields(Request) if one.metadata.get("about") == name)


def fields_that_need(ability: Need) -> tuple[str, ...]:
    """Return the fields that mean nothing to a family or folder without an ability."""
    return tuple(one.name for one in fields(Request) if one.metadata.get("needs") == ability)


def axes() -> Iterator[str]:
    """Yield the fields that may change along a side of a plot."""
    return (one.name for one in fields(Request) if one.metadata.get("axis"))


@lru_cache(maxsize=1)
def _options() -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Return the options of the command line by the fields that they ask for, and a pattern of these in messages.

    A field of one word is meant where a message begins with it, behind the place of a line.
    """
    options = {name: f"--{asked.name}" for name, asked in asked_fields() if asked.help}
    options |= {one.name: one.metadata["option"] for one in fields(Pictures) if "option" in one.metadata}
    whole, first = ("|".join(name for name in options if ("_" in name) is more) for more in (True, False))
    return re.compile(rf"(?<![\w./'-])({whole})(?![\w/'-]|\.\w)|(?:^|(?<=:\d: ))({first})\b"), options


def in_options(message: str) -> str:
    """Return a message with options in place of the fields that it names."""
    pattern, options = _options()
    return pattern.sub(lambda one: options[one[0]], message)


def names_elsewhere(api: Literal["a1111", "openai"]) -> dict[str, str]:
    """Return what another program's API calls fields, by their names here, where it is something else."""
    declared = {
        one.name: getattr(one.metadata["elsewhere"], api) for one in fields(Request) if "elsewhere" in one.metadata
    }
    aliases = {name: asked.aliases[0] for name, asked in asked_fields() if asked.aliases} if api == "a1111" else {}
    return {**aliases, **{name: theirs for name, theirs in declared.items() if theirs}}


def with_clip_layer(given: JsonView) -> JsonView:
    """Return fields in which `clip_skip`, as 0.1.0 called it and diffusers counts, from 0, is `clip_layer`."""
    if (skipped := given.get("clip_skip")) is None:
        return given
    layer = skipped + 1 if isinstance(skipped, int) else skipped
    return {**{name: value for name, value in given.items() if name != "clip_skip"}, "clip_layer": layer}


def hires_fields(times: float, strength: float | None, **more: int) -> RequestFields:
    """Return the fields of Hires fix, with `more` of them; a strength of `None` is left open."""
    return {"hires": times, **({} if strength is None else {"hires_strength": strength}), **more}


def with_hires(given: RequestFields) -> RequestFields:
    """Return fields that were asked for in words, `hires` without the strength that was said with it."""
    return {**given, **hires_fields(*given["hires"])} if "hires" in given else given


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ResolvedRequest(Request):
    """A request with nothing left open, as `resolve_defaults` returns it."""

    seed: int
    size: tuple[int, int]
    resolved_for: PipelineFolder | None = field(default=None, init=False, compare=False, repr=False)
    """Folder that it was checked against, as its files are then; what `replace` makes of it was not."""

    def resolved_with(self, **changes: Any) -> ResolvedRequest:
        """Return it with changes that no pipeline refuses."""
        return replace(self, **changes).marked(self.resolved_for)

    def marked(self, folder: PipelineFolder | None) -> ResolvedRequest:
        """Say against which folder it was checked."""
        object.__setattr__(self, "resolved_for", folder)
        return self

    def without(self, pictures: int) -> ResolvedRequest:
        """Return what a request with a seed for each picture makes after so many of them."""
        if not pictures:
            return self
        assert self.seeds is not None
        varied = None if self.variation_seeds is None else self.variation_seeds[pictures:]
        return self.resolved_with(prompts=self.prompts[pictures:], seeds=self.seeds[pictures:], variation_seeds=varied)


@dataclass(frozen=True)
class Picture:
    """One picture and what made it."""

    image: Image
    """RGB; black if it was flagged."""
    prompt: str
    seed: int
    """The seed that makes this very picture."""
    first_seed: int
    """The seed of its first attempt; the same, unless that was flagged and drawn again."""
    flagged: bool | None
    """Whether the safety checker flagged it; `None` if none ran."""
    attempts: int = 1
    """Drawings until this one, all but the last of them flagged."""
    variation_seed: int | None = None
    """The seed whose noise has a share in it; `None` if there is none."""


@dataclass(frozen=True)
class Batch:
    """Pictures that were made at once."""

    number: int
    """From 1."""
    total: int
    """Batches of the request."""
    pictures: tuple[Picture, ...]
    seconds: float
    scheduler: str
    """Class of diffusers, or the sampler that it has none for."""

    @property
    def passed(self) -> int:
        """Number of pictures that are not flagged."""
        return sum(not picture.flagged for picture in self.pictures)


@dataclass(frozen=True)
class Result:
    """All pictures of a request."""

    request: ResolvedRequest
    scheduler: str
    """Class of diffusers, or the sampler that it has none for."""
    pictures: tuple[Picture, ...]
    seconds: float


def require_safe(pictures: int, flagged: Sequence[int], retries: int) -> None:
    """Refuse pictures that are still flagged after the retries that were allowed; none allowed, none refused.

    Raises `SafetyError` if there are any.
    """
    if retries and flagged:
        raise SafetyError(
            f"the safety checker flagged {len(flagged)} of {pictures} pictures in all {retries + 1} attempts "
            f"(first seeds: {', '.join(map(str, flagged))}); "
            "change the prompt, or allow more attempts"
        )
