"""ControlNets and IP-Adapters as A1111's extension has them: its units in `alwayson_scripts`, and its lists.

Names are those of https://github.com/Mikubill/sd-webui-controlnet (`scripts/external_code.py`, `scripts/api.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from olivelike._untrusted import Json
from olivelike.runtime.pictures.preprocessors import (
    NONE,
    PREPROCESSORS,
    check_preprocessor,
    preprocessed,
    thresholds_of,
)
from olivelike.serve.api.a1111_state import model_of
from olivelike.serve.api.drawing import find_model, service_of
from olivelike.serve.api.images import from_base64, in_turn, png, to_base64, upright
from olivelike.serve.api.refusals import StrictRoute, refused
from olivelike.serve.orders import MOST_CONTROLS, MOST_IMAGE_PROMPTS, Finite, Name, Strength
from olivelike.serve.service import Service
from olivelike.serve.views import ModelView

SCRIPT: Final = "controlnet"
"""Name of the script, in small letters."""
_MODULES: Final = (NONE, *PREPROCESSORS)
_PICTURES: Final = (
    "ip-adapter-auto",
    "ip-adapter_clip_h",
    "ip-adapter_clip_g",
    "ip-adapter_clip_sd15",
    "ip-adapter_clip_sdxl",
    "ip-adapter_clip_sdxl_plus_vith",
)
"""Modules of units whose picture is a prompt: which image encoder there is, the folder says."""
_MOST_UNITS: Final = 100
"""Units of a request, those that are not enabled among them."""
_MODES: Final = ("Balanced", "My prompt is more important", "ControlNet is more important")
_VERSION: Final = 2
"""Version of the extension's API."""

guides_router: Final = APIRouter(prefix="/controlnet", route_class=StrictRoute, tags=["A1111"])


Threshold = Annotated[Finite, Field(le=255)]
"""Of a module; below 0 it is the module's own."""


class Unit(BaseModel):
    """One picture that leads."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    enabled: bool = True
    image: str | Json = ""
    """Base64, or a map with it as `image`; older clients call it `input_image`."""
    mask: str | None = None
    module: Name = NONE
    model: Name = "None"
    weight: Strength = 1.0
    threshold_a: Threshold = -1
    threshold_b: Threshold = -1
    guidance_start: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    guidance_end: Annotated[Finite, Field(ge=0, le=1)] = 1.0
    control_mode: int | Name = 0
    guessmode: bool = False

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            raise ValueError("is no map")
        given = {key: value for key, value in values.items() if value is not None}
        return {**given, "image": given.get("image") or given.get("input_image") or ""}

    @property
    def guesses(self) -> bool:
        """Whether it leads the prompt alone and less at the edges, as the extension's last mode does."""
        return self.guessmode or self.control_mode in (2, _MODES[2])

    @property
    def is_prompt(self) -> bool:
        """Whether its picture is a prompt, by an IP-Adapter."""
        return self.module.lower() in _PICTURES

    @property
    def net(self) -> str | None:
        """Name of its network, without the hash that the extension writes behind it."""
        return None if self.model in ("", "None") else self.model.partition(" [")[0]


async def controls_of(service: Service, scripts: Json, model: ModelView | None, client: str) -> Json:
    """Return fields of an order for the units of a request that `model` draws.

    Raises `RequestRefusedError` for what is not here.
    """
    if not (units := _units(scripts)):
        return {}
    _check_adapter(model, units)
    controls: list[Json] = []
    shown: list[str] = []
    for unit in units:
        text = unit.image.get("image") if isinstance(unit.image, dict) else unit.image
        module = unit.module.lower()
        thresholds = () if unit.is_prompt else thresholds_of(module, (unit.threshold_a, unit.threshold_b))
        usual = not thresholds or thresholds == PREPROCESSORS[module].thresholds
        if not usual:
            check_preprocessor(module)
        made = await in_turn(partial(_pixels, str(text), NONE if usual else module, thresholds))
        sent = (await service.upload(made, client)).id
        if unit.is_prompt:
            shown.append(sent)
            continue
        controls.append(
            {
                "image": sent,
                "net": unit.net,
                "strength": unit.weight,
                "start": unit.guidance_start,
                "end": unit.guidance_end,
                # With thresholds of its own the picture was made already: orders have the usual ones.
                "preprocessor": module if usual else NONE,
            }
        )
    found: Json = {}
    if controls:
        found = {"controls": controls, "control_guess": any(unit.guesses for unit in units if not unit.is_prompt)}
    if shown:
        found |= {"ip_adapter_images": shown, "ip_adapter_scale": next(unit.weight for unit in units if unit.is_prompt)}
    return found


def _pixels(text: str, module: str, thresholds: Sequence[float]) -> bytes:
    """Return what a module makes of a picture in base64, as a PNG in RGB."""
    return png(preprocessed(upright(from_base64(text, "image"), "image").convert("RGB"), module, thresholds))


def check_units(scripts: Json) -> list[Json]:
    """Return what units have beside the fields that are read here.

    Raises `RequestRefusedError` for a unit that is not here. Other scripts are not looked at.
    """
    return [unit.model_extra or {} for unit in _units(scripts)]


def _units(scripts: Json) -> list[Unit]:
    units: list[Unit] = []
    for script in (script for name, script in scripts.items() if name.lower() == SCRIPT):
        listed = script.get("args", []) if isinstance(script, dict) else None
        if not isinstance(listed, list):
            raise refused("alwayson_scripts.ControlNet has no list of args")
        if len(listed) > _MOST_UNITS:
            raise refused(f"alwayson_scripts.ControlNet has {len(listed)} args; take at most {_MOST_UNITS}")
        for number, one in enumerate(listed):
            try:
                units.append(Unit.model_validate(one))
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, ("args", number, *first["loc"])))
                raise refused(f"alwayson_scripts.ControlNet.{place}: {first['msg']}") from None
    units = [unit for unit in units if unit.enabled]
    prompts = sum(unit.is_prompt for unit in units)
    for kind, count, most in (
        ("ControlNet units", len(units) - prompts, MOST_CONTROLS),
        ("units of an IP-Adapter", prompts, MOST_IMAGE_PROMPTS),
    ):
        if count > most:
            raise refused(f"{count} {kind} are given; take at most {most}")
    for unit in units:
        _check(unit)
    if len({unit.guesses for unit in units if not unit.is_prompt}) > 1:
        raise refused("control_mode is one for all units here")
    if len({unit.weight for unit in units if unit.is_prompt}) > 1:
        raise refused("weight is one for all units of an IP-Adapter here")
    return units


def _check(unit: Unit) -> None:
    if not unit.image:
        raise refused("a ControlNet unit has no image")
    if unit.mask:
        raise refused("masks of ControlNet units are not taken here")
    if unit.is_prompt and (unit.guidance_start, unit.guidance_end) != (0.0, 1.0):
        raise refused("a picture of an IP-Adapter leads all steps here; leave guidance_start and guidance_end out")
    if unit.module.lower() not in (*_MODULES, *_PICTURES):
        known = ", ".join((*_MODULES, *_PICTURES))
        raise refused(f"there is no ControlNet module {unit.module!r}; there are {known}")
    if unit.control_mode not in (0, 2, _MODES[0], _MODES[2]):
        raise refused(f"control_mode {unit.control_mode!r} is not done here; there are {_MODES[0]} and {_MODES[2]}")


def _check_adapter(view: ModelView | None, units: list[Unit]) -> None:
    """Refuse units of an IP-Adapter that a folder has not."""
    known = view.ip_adapter if view is not None else None
    for unit in units:
        if unit.is_prompt and unit.net not in (None, known):
            raise refused(f"there is no IP-Adapter {unit.net!r}; there is {known or 'none'}")


@guides_router.get("/version")
async def version() -> dict[str, int]:
    """Return the version of the extension's API."""
    return {"version": _VERSION}


@guides_router.get("/model_list")
async def model_list(request: Request) -> dict[str, list[str]]:
    """List the ControlNets and T2I-Adapters of the current folder, and its IP-Adapter."""
    view = find_model(service_of(request), model_of(request))
    if view is None:
        return {"model_list": []}
    return {"model_list": [*view.controlnets, *([view.ip_adapter] if view.ip_adapter else [])]}


@guides_router.get("/module_list")
async def module_list(request: Request) -> dict[str, list[str]]:
    """List what can be made of a picture before it leads."""
    return {"module_list": await _modules(request)}


class Detection(BaseModel):
    """Pictures of which control pictures are made."""

    model_config = ConfigDict(extra="ignore")
    controlnet_module: Name = NONE
    controlnet_input_images: Annotated[list[str], Field(min_length=1, max_length=MOST_CONTROLS)] = Field(
        validation_alias=AliasChoices("controlnet_input_images", "controlnet_images")
    )
    """`webuiapi` calls them `controlnet_images`."""
    controlnet_threshold_a: Threshold = -1
    controlnet_threshold_b: Threshold = -1


@guides_router.post("/detect")
async def detect(asked: Detection) -> dict[str, list[str] | str]:
    """Return what a module makes of pictures, at their own size."""
    name = asked.controlnet_module.lower()
    if name not in _MODULES:
        raise refused(f"controlnet_module: there is no {asked.controlnet_module!r}; there are {', '.join(_MODULES)}")
    check_preprocessor(name)
    thresholds = (asked.controlnet_threshold_a, asked.controlnet_threshold_b)
    found = []
    for text in asked.controlnet_input_images:
        data = from_base64(text, "controlnet_input_images")
        found.append(to_base64(await in_turn(partial(_detected, data, name, thresholds))))
    return {"images": found, "info": "Success"}


def _detected(data: bytes, name: str, thresholds: Sequence[float]) -> bytes:
    return png(preprocessed(upright(data, "controlnet_input_images"), name, thresholds))


@guides_router.get("/control_types")
async def control_types(request: Request) -> Json:
    """Return all modules and models as one type."""
    models = (await model_list(request))["model_list"]
    found = {
        "module_list": await _modules(request), "model_list": ["None", *models], "default_option": "none",
        "default_model": models[0] if models else "None",
    }  # fmt: skip
    return {"control_types": {"All": found}}


async def _modules(request: Request) -> list[str]:
    """Return what can be made of a picture, for the current folder."""
    view = find_model(service_of(request), model_of(request))
    return [*_MODULES, *(_PICTURES if view is not None and view.ip_adapter else ())]
