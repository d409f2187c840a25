"""Recipes as clients get them: what made a picture, and what of it the page's form can't take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from olivelike._untrusted import Json
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.left_out import left_out
from olivelike.runtime.pictures.picture_record import LATENT, PictureRecord, UsedFile, record_from_json
from olivelike.runtime.pictures.preprocessors import NONE, PREPROCESSORS
from olivelike.runtime.pictures.recipe_text import take_hires
from olivelike.runtime.pictures.recipes import read_recipe_text
from olivelike.runtime.pipeline.request import Control, Recorded, read_number
from olivelike.runtime.schedulers.scheduler_names import listed_name, sampler_alone
from olivelike.serve.drawing.plot_texts import take_script
from olivelike.serve.upscalers import named_upscaler
from olivelike.serve.views import RecipeView, UploadView, record_of

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.request import PreprocessorName

_UNABLE: Final = tuple(one.name for one in fields(Recorded) if one.metadata["entered"] is None)
"""Fields of a record that the page's form has no place for."""
_UNIT: Final = re.compile(r"ControlNet \d{1,2}")
_PAIR: Final = re.compile(r"([A-Za-z][A-Za-z /]{0,40}):\s*(\([^()]*\)|[^,]*)")
_View = TypeVar("_View", RecipeView, UploadView)


class RecipeQuestion(BaseModel):
    """A text that somebody pasted, or the record of a picture that is known here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(max_length=1 << 20)] | None = None
    record: Json | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.record is None):
            raise ValueError("give a text, or the record of a picture")
        return self


def recipe_view(record: PictureRecord) -> RecipeView:
    """Return a recipe as clients get it."""
    return RecipeView(record=record_of(record.to_json()) or {}, left_out=left_out_on_the_page(record))


def left_out_on_the_page(record: PictureRecord) -> str | None:
    """Return a sentence on what of a recipe the page does not take over; `None` if it takes all."""
    return left_out(replace(record, other=_units(record.other)[1]), unable=_UNABLE)


def read_question(asked: RecipeQuestion) -> RecipeView:
    """Read what is asked about. Raises `UsageError`, with the reason, if it is no recipe."""
    try:
        if asked.text is not None:
            return recipe_view(read_recipe_text(asked.text, "the text")[1])
        told = {"format": "olivelike/picture/1", **(asked.record or {})}
        return recipe_view(record_from_json(json.dumps(told), "the record"))
    except (SourceError, RecursionError) as error:
        raise UsageError(str(error)) from error


def for_the_form(view: _View, upscalers: Iterable[str]) -> _View:
    """Return a recipe that the form can send; what is left out says what was changed for that.

    A1111's units of ControlNets are control pictures whose image is null.
    """
    view = _with_what_is_here(_with_script(view), upscalers)
    fields, rest = _units((view.record or {}).get("other") or {})
    return view.model_copy(update={"record": {**(view.record or {}), **fields, "other": rest}}) if fields else view


def _with_script(view: _View) -> _View:
    """Return a recipe whose plot or prompt matrix is apart."""
    if view.record is None:
        return view
    record = record_from_json(json.dumps(view.record), "the record")
    settings = dict(record.other)
    if not (script := take_script(settings)):
        return view
    record = replace(record, other=settings)
    told = {"record": record_of(record.to_json()), "left_out": left_out_on_the_page(record), "script": script}
    return view.model_copy(update=told)


def _units(settings: Mapping[str, str]) -> tuple[Json, dict[str, str]]:
    """Return fields of a record for the units that A1111's settings tell of, and the other settings.

    Forms are those of sd-webui-controlnet's `internal_controlnet/external_code.py` and, before that, of its
    `scripts/infotext.py`: `Module: canny, Model: NAME [HASH], Weight: 1, Guidance Start: 0, ...`, and with the words
    `preprocessor` and `starting/ending: (0, 1)`.
    """
    controls: list[Json] = []
    scales: list[float] = []
    rest, guesses = dict(settings), False
    for name in (name for name in settings if _UNIT.fullmatch(name)):
        told = {key.casefold(): value.strip() for key, value in _PAIR.findall(settings[name])}
        module = (told.get("module") or told.get("preprocessor") or NONE).casefold().partition(" (")[0]
        first, _, last = told.get("starting/ending", "").strip("()").partition(",")
        try:
            weight = read_number(told["weight"])
            if module.startswith("ip-adapter"):
                scales.append(weight)
            else:
                control = Control(
                    None, told["model"].partition(" [")[0], weight,
                    read_number(told.get("guidance start") or first), read_number(told.get("guidance end") or last),
                    cast("PreprocessorName", module if module in PREPROCESSORS else NONE),
                )  # fmt: skip
                given = [read_number(told[key]) for key in ("threshold a", "threshold b") if key in told]
                own = given if control.preprocessor in PREPROCESSORS and min(given, default=0) >= 0 else []
                controls.append({**asdict(control), "thresholds": own})
        except (KeyError, ValueError):
            continue
        del rest[name]
        if module not in (NONE, *PREPROCESSORS) and not module.startswith("ip-adapter"):
            rest[f"{name} preprocessor"] = module
        guesses = guesses or told.get("control mode") == "My prompt is more important"
    found: Json = {"controls": controls, "control_guess": guesses} if controls else {}
    if scales:
        found |= {"ip_adapter_images": [None] * len(scales), "ip_adapter_scale": scales[0]}
    return found, rest


def _with_what_is_here(view: _View, upscalers: Iterable[str]) -> _View:
    """Return a recipe with the nearest sampler and upscaler.

    A sampler without the schedule type that stands there is taken alone, and one that is not here not at all. A1111's
    Hires fix is by the network that enlarged there if it is one of `upscalers`; if not, the latents are enlarged.
    """
    if view.record is None:
        return view
    settings = dict(view.record.get("other") or {})
    changes: dict[str, Any] = _sampler(view.record.get("scheduler"), settings)
    upscaler, hires = settings.get("Hires upscaler", ""), take_hires(settings, view.record.get("steps"))
    enlarged = None if hires or "Postprocess upscale by" in settings else settings.get("Postprocess upscaler")
    if enlarged is not None and (name := named_upscaler(enlarged, upscalers)):
        del settings["Postprocess upscaler"]
        changes["upscaler"] = UsedFile(f"{name}.onnx")
    if not hires and not changes:
        return view
    without = ""
    if hires:
        name = named_upscaler(upscaler, upscalers)
        changes |= {**hires, "upscaler": UsedFile(f"{name}.onnx") if name else None}
        if name is None and upscaler != LATENT:
            settings["Hires upscaler"] = upscaler
            without = "; no file of the server's --upscaler-dir is that upscaler, so the latents are enlarged"
    record = replace(record_from_json(json.dumps(view.record), "the record"), **changes, other=settings)
    told = f"{left_out_on_the_page(record)}{without}" if without else left_out_on_the_page(record)
    return view.model_copy(update={"record": record_of(record.to_json()), "left_out": told})


def _sampler(name: str | None, settings: Json) -> Json:
    """Return the nearest sampler that draws, as a change of a record, and move the rest to the other settings."""
    if name is None:
        return {}
    try:
        listed = listed_name(name)
    except UsageError:
        alone, kind = sampler_alone(name)
        settings |= {"Schedule type": kind} if alone else {"Sampler": name}
        return {"scheduler": alone}
    return {} if listed == name else {"scheduler": listed}
