"""Requests of A1111's API: null for a default, numbers as text, truth as 0 or 1.

What is done here is a field of a form. `a1111_fields` has all others: those that would make another picture there are
refused with such values, or left out where the operator says so; the rest is named in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field as Bounds, model_validator

from olivelike._untrusted import Json
from olivelike.serve.api.a1111_fields import (
    BATCH_EXTRAS,
    EXTRAS,
    IMAGE_TO_IMAGE,
    OPTIONS,
    PNG_INFO,
    SITUATIONS,
    TEXT_TO_IMAGE,
    UNIT,
    Field,
    Situation,
    asked_for,
    idle,
    in_one,
)
from olivelike.serve.api.a1111_guides import SCRIPT, check_units
from olivelike.serve.api.a1111_samplers import scheduler_of, situations_of
from olivelike.serve.api.refusals import RequestRefusedError, refused
from olivelike.serve.drawing.plot_texts import MATRIX
from olivelike.serve.orders import Finite, Name, PromptMatrix

Side = Annotated[int, Bounds(ge=0, le=1 << 16)]
Share = Annotated[Finite, Bounds(ge=0, le=1)]
_CONTENTS: Final = ("fill", "original", "latent noise", "latent nothing")
"""What `inpainting_fill` numbers."""
_MOST_SHOWN: Final = 40
"""Characters of a value in a message."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())
    listed: ClassVar[Mapping[str, Field]] = {}
    """The list that the fields are on."""
    prefix: ClassVar[str] = ""
    """Before names in messages."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        """Take null for what is not given."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values

    @property
    def unread(self) -> Json:
        """Values that were given beside the fields of the form."""
        return self.model_extra or {}

    def wrong(self, here: set[Situation]) -> Iterator[str]:
        """Return what is given and would make another picture there, in words."""
        for name in asked_for(self.unread, self.listed, here):
            note = self.listed[name].note
            yield f"{self.prefix}{name} {_shown(self.unread[name])}" + (f" ({note})" if note else "")

    def idle(self) -> list[str]:
        """Return the names of what is given and does nothing."""
        return [self.prefix + name for name in idle(self.unread, self.listed)]


class Options(_Form):
    """`/sdapi/v1/options`."""

    listed = OPTIONS
    sd_model_checkpoint: Name = ""
    sd_checkpoint_hash: Name = ""
    CLIP_stop_at_last_layers: Annotated[int, Bounds(ge=0, le=100)] = 0
    samples_format: Name = ""
    eta_ddim: Share = 0

    @property
    def suffix(self) -> str | None:
        """Suffix of the files that are asked for; `None` if none are. Raises `RequestRefusedError` for others."""
        form = self.samples_format.strip().lower()
        if form and form not in FORMATS:
            raise refused(f"{self.prefix}samples_format is one of {', '.join(FORMATS)}")
        return f".{form}" if form else None

    def warnings(self, *, lenient: bool) -> list[str]:
        """Return warnings for the answer. Raises `RequestRefusedError` as `Extras.warnings` does."""
        return _warnings(list(self.wrong(set(SITUATIONS))), self.idle(), lenient=lenient)


class Overrides(Options):
    """`override_settings`, for one request."""

    prefix = "override_settings."


class Drawing(_Form):
    """Fields that both ways to draw take."""

    prompt: str = ""
    negative_prompt: str = ""
    seed: int = -1
    subseed: int = -1
    subseed_strength: Share = 0
    sampler_name: Name | None = None
    sampler_index: Name | None = None
    scheduler: Name | None = None
    batch_size: Annotated[int, Bounds(ge=1, le=64)] = 1
    n_iter: Annotated[int, Bounds(ge=1, le=100)] = 1
    steps: Annotated[int, Bounds(ge=1, le=10_000)] = 50
    cfg_scale: Annotated[Finite, Bounds(ge=-1000, le=1000)] = 7.0
    width: Side = 0
    height: Side = 0
    eta: Share | None = None
    clip_skip: Annotated[int, Bounds(ge=0, le=100)] | None = None
    """SD.Next's; counted from 1."""
    denoising_strength: Share | None = None
    override_settings: Overrides = Overrides()
    override_settings_restore_afterwards: bool = True
    styles: Annotated[list[Name], Bounds(max_length=100)] = []
    alwayson_scripts: Json = {}
    script_name: Name | None = None
    script_args: Annotated[list[Any], Bounds(max_length=100)] = []
    send_images: bool = True
    save_images: bool = False
    do_not_save_samples: bool = False
    do_not_save_grid: bool = False

    @property
    def prompt_matrix(self) -> PromptMatrix | None:
        """A1111's script of this name, if it is asked for. Raises `RequestRefusedError` for arguments that it refuses.

        They come in the order of its form: `scripts/prompt_matrix.py`.
        """
        if (self.script_name or "").casefold() != MATRIX.casefold():
            return None
        args = [*self.script_args[:4], *_MATRIX_ARGS[len(self.script_args) :]]
        at_start, different_seeds, kind, delimiter = args
        if kind not in ("positive", "negative") or delimiter not in ("comma", "space"):
            raise refused('script_args: its third is "positive" or "negative", its fourth "comma" or "space"')
        return PromptMatrix(
            negative=kind == "negative", at_start=bool(at_start), delimiter=delimiter,
            different_seeds=bool(different_seeds),
        )  # fmt: skip

    @property
    def samplers(self) -> set[str | None]:
        """Schedulers that it is drawn with, by our names."""
        return {scheduler_of(self.sampler_name or self.sampler_index, self.scheduler)}

    @property
    def situations(self) -> set[Situation]:
        """Situations, of `SITUATIONS`, that the request is in."""
        return {found for scheduler in self.samplers for found in situations_of(scheduler)}

    @property
    def kept(self) -> Json:
        """All fields that A1111 has, as it answers with them: what is done, and its defaults of all else."""
        done = self.model_dump(exclude=set(self.unread) | {"override_settings"})
        settings = self.override_settings.model_dump(exclude_unset=True)
        return {**{name: field.default for name, field in self.listed.items()}, **done, "override_settings": settings}

    def settled(self, *, lenient: bool) -> tuple[Self, list[str]]:
        """Return what is to be drawn, and warnings for the answer.

        Raises `RequestRefusedError` for what is not done here, unless it may be left out: `lenient`.
        """
        units = check_units(self.alwayson_scripts)
        here, settled, scripts = self.situations, self, {}
        found = [*self.wrong(here), *self.override_settings.wrong(here), *_wrong_of(units, here)]
        for name, script in self.alwayson_scripts.items():
            if name.lower() == SCRIPT:
                scripts[name] = script
            else:
                found.append(f"alwayson_scripts.{name} (always on script not found)")
        other_script = bool(self.script_name) and self.prompt_matrix is None
        if other_script:
            found.append(f"script_name {self.script_name!r} ({MATRIX} is done)")
        if self.cfg_scale < 1:
            found.append(f"cfg_scale {self.cfg_scale:g} (at 1 the prompt alone leads, and below is nothing)")
        if "noise" in here and self.eta not in (None, 1):
            found.append(f"eta {self.eta:g} (ancestral and SDE samplers have 1)")
        warnings = _warnings(found, [*self._idle_names(), *_idle_of(units)], lenient=lenient)
        if found:
            least = {"cfg_scale": 1.0} if self.cfg_scale < 1 else {}
            script = {"script_name": None} if other_script else {}
            settled = self.model_copy(update={"alwayson_scripts": scripts, **least, **script})
        return settled, warnings

    def _idle_names(self) -> list[str]:
        unused = self.samplers == {None} and self.eta not in (None, 0, 1)
        return [*self.idle(), *self.override_settings.idle(), *(["eta"] if unused else [])]


class TextToImage(Drawing):
    """`/sdapi/v1/txt2img`."""

    listed = TEXT_TO_IMAGE
    enable_hr: bool = False
    hr_scale: Annotated[Finite, Bounds(ge=1, le=8)] = 2.0
    hr_upscaler: Name | None = None
    hr_second_pass_steps: Annotated[int, Bounds(ge=0, le=10_000)] = 0
    hr_resize_x: Side = 0
    hr_resize_y: Side = 0
    hr_checkpoint_name: Name | None = None
    hr_sampler_name: Name | None = None
    hr_scheduler: Name | None = None
    hr_prompt: str = ""
    hr_negative_prompt: str = ""

    @property
    def samplers(self) -> set[str | None]:
        """Schedulers that it is drawn with, by our names."""
        return super().samplers | ({self.second_scheduler} if self.enable_hr else set())

    @property
    def second_scheduler(self) -> str | None:
        """The scheduler of the second pass, by our name."""
        sampler, schedule = _named(self.hr_sampler_name), _named(self.hr_scheduler)
        prefix = "hr_" if sampler or schedule else ""
        return scheduler_of(sampler or self.sampler_name or self.sampler_index, schedule or self.scheduler, prefix)

    @property
    def situations(self) -> set[Situation]:
        """Situations, of `SITUATIONS`, that the request is in."""
        second: set[Situation] = {"hires"} if self.enable_hr else set()
        return super().situations | second

    @property
    def second_strength(self) -> float:
        """Share of a schedule that the steps of the second pass are."""
        return 0.75 if self.denoising_strength is None else self.denoising_strength

    @property
    def second_steps(self) -> int:
        """Steps that the second pass runs; 0 is one, at a strength of nothing."""
        return (self.hr_second_pass_steps or self.steps) if self.second_strength else 0

    def scale_alone(self) -> float | None:
        """Return how many times as large it is drawn again; `None` if it is not, or differs in more than its size.

        Raises `RequestRefusedError` for one that differs so, and is made of latents.
        """
        if not self.enable_hr:
            return None
        other = (
            "hr_resize_x", "hr_resize_y", "hr_checkpoint_name", "hr_sampler_name", "hr_scheduler", "hr_prompt",
            "hr_negative_prompt",
        )  # fmt: skip
        if given := [name for name in other if _named(getattr(self, name))]:
            if self.hr_upscaler not in LATENT_MODES:
                return None
            raise refused(f"{given[0]} with hr_upscaler {self.hr_upscaler!r} is not done here; take Lanczos")
        return self.hr_scale

    def again(self, size: tuple[int, int]) -> TextToImage:
        """Return what the second pass asks for, at a size."""
        again = self.model_copy(
            update={
                "prompt": self.hr_prompt or self.prompt,
                "negative_prompt": self.hr_negative_prompt or self.negative_prompt,
                "sampler_name": _named(self.hr_sampler_name) or self.sampler_name or self.sampler_index,
                "scheduler": _named(self.hr_scheduler) or self.scheduler,
                "n_iter": 1, "batch_size": 1, "width": size[0], "height": size[1],
            }
        )  # fmt: skip
        if model := _named(self.hr_checkpoint_name):
            settings = self.override_settings.model_copy(update={"sd_model_checkpoint": model})
            again = again.model_copy(update={"override_settings": settings})
        return again


class ImageToImage(Drawing):
    """`/sdapi/v1/img2img`."""

    listed = IMAGE_TO_IMAGE
    init_images: list[str] | None = None
    denoising_strength: Share | None = 0.75
    resize_mode: Literal[0, 1, 2, 3] = 0
    mask: str | None = None
    mask_blur: Annotated[int, Bounds(ge=0, le=256)] | None = None
    mask_blur_x: Annotated[int, Bounds(ge=0, le=256)] = 4
    mask_blur_y: Annotated[int, Bounds(ge=0, le=256)] = 4
    inpainting_fill: Literal[0, 1, 2, 3] = 0
    inpaint_full_res: bool = True
    inpaint_full_res_padding: Annotated[int, Bounds(ge=0, le=1024)] = 0
    inpainting_mask_invert: bool = False
    include_init_images: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_numbers(cls, values: Any) -> Any:
        """Take modes as the numbers that they are, in whatever form they come."""
        if not isinstance(values, dict):
            return values
        modes = {name: _whole(values[name]) for name in ("resize_mode", "inpainting_fill") if name in values}
        return {**values, **modes}

    @property
    def situations(self) -> set[Situation]:
        """Situations, of `SITUATIONS`, that the request is in."""
        here: set[Situation] = {"picture", "mask"} if self.mask else {"picture"}
        return super().situations | here

    @property
    def many(self) -> bool:
        """Whether it is a batch of several initial pictures, each drawn once a round."""
        return len(self.init_images or ()) > 1

    @property
    def mask_fields(self) -> Json:
        """Fields of an order about the mask; softness of its edge counts in pixels."""
        blur = self.mask_blur_x if self.mask_blur is None else self.mask_blur
        return {
            "mask_blur": blur if self.mask else None,
            "mask_mode": "not masked" if self.mask and self.inpainting_mask_invert else "masked",
            "masked_content": _CONTENTS[self.inpainting_fill] if self.mask else "original",
            "inpaint_area": "masked" if self.mask and self.inpaint_full_res else "whole",
            "inpaint_padding": self.inpaint_full_res_padding,
        }

    def settled(self, *, lenient: bool) -> tuple[Self, list[str]]:
        """Return what is to be drawn, and warnings, as of any drawing."""
        if not self.init_images:
            raise RequestRefusedError(404, "not_found", "Init image not found")
        if 1 < len(self.init_images) > self.batch_size:
            raise refused(
                f"init_images: {len(self.init_images)} pictures are a batch, and batch_size is {self.batch_size}; give "
                "as much, or fewer pictures"
            )
        if self.resize_mode == 3:
            raise refused("resize_mode 3: latents are not resized here; take 0, 1 or 2")
        if self.mask and self.mask_blur is None and self.mask_blur_x != self.mask_blur_y:
            raise refused("mask_blur_x, mask_blur_y: edges are equally soft both ways here; give mask_blur")
        return super().settled(lenient=lenient)


class Extras(_Form):
    """`/sdapi/v1/extra-single-image` and, with `imageList`, `extra-batch-images`."""

    listed = EXTRAS
    resize_mode: Literal[0, 1] = 0
    show_extras_results: bool = True
    upscaling_resize: Annotated[Finite, Bounds(gt=0, le=8)] = 2
    upscaling_resize_w: Annotated[int, Bounds(ge=1, le=1 << 16)] = 512
    upscaling_resize_h: Annotated[int, Bounds(ge=1, le=1 << 16)] = 512
    upscaling_crop: bool = True
    upscaler_1: Name = "None"
    upscaler_2: Name = "None"
    extras_upscaler_2_visibility: Share = 0
    image: str = ""

    @model_validator(mode="before")
    @classmethod
    def _as_number(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "resize_mode" not in values:
            return values
        return {**values, "resize_mode": _whole(values["resize_mode"])}

    def warnings(self, *, lenient: bool) -> list[str]:
        """Return warnings for the answer.

        Raises `RequestRefusedError` for what is not done here, unless it may be left out: `lenient`.
        """
        return _warnings(list(self.wrong(set())), self.idle(), lenient=lenient)


class FileData(_Form):
    """A picture of a batch."""

    data: str
    name: str = ""


class ManyExtras(Extras):
    """`/sdapi/v1/extra-batch-images`."""

    listed = BATCH_EXTRAS
    imageList: Annotated[list[FileData], Bounds(max_length=32)]  # noqa: N815  (as A1111 writes it)


class PngInfo(_Form):
    """`/sdapi/v1/png-info`."""

    listed = PNG_INFO
    image: str


_MATRIX_ARGS: Final = (False, False, "positive", "comma")
FORMATS: Final = ("png", "jpg", "jpeg", "webp")
LATENT_MODES: Final = ("Latent",)
"""A1111's ways to enlarge latents: bilinear."""


_UNIT: Final = "alwayson_scripts.ControlNet."
"""Before names of units in messages."""


def _wrong_of(units: list[Json], here: set[Situation]) -> list[str]:
    return list(
        {name: f"{_UNIT}{name} {_shown(unit[name])}" for unit in units for name in asked_for(unit, UNIT, here)}.values()
    )


def _idle_of(units: list[Json]) -> list[str]:
    return [_UNIT + name for name in dict.fromkeys(name for unit in units for name in idle(unit, UNIT))]


def _warnings(wrong: list[str], idle_names: list[str], *, lenient: bool) -> list[str]:
    """Return warnings of what is left out and of what does nothing.

    Raises `RequestRefusedError` for what is not done here, in words, unless it may be left out.
    """
    text = in_one(wrong, characters=200)
    if wrong and not lenient:
        raise refused(
            f"not done here, and without it the picture would be another: {text}; leave it out, or have the server "
            "started with --ignore-unsupported"
        )
    return [
        *([f"left out, since it is not done here: {text}"] if wrong else []),
        *([f"without effect here: {in_one(idle_names)}"] if idle_names else []),
    ]


def _named(value: Any) -> Any:
    """Return a value of the second pass; `None` for what means that of the first."""
    return None if value in ("", 0, "None", "Use same checkpoint", "Use same sampler", "Use same scheduler") else value


def _whole(value: Any) -> Any:
    """Return a whole number that came as text or with a point as such; all else as it is."""
    try:
        number = float(value)
        return int(number) if number.is_integer() else value
    except (TypeError, ValueError, OverflowError):
        return value


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "…"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
