"""ControlNets as A1111's extension for them has it: its units in `alwayson_scripts`, and its lists.

Names are those of https://github.com/Mikubill/sd-webui-controlnet (`scripts/external_code.py`, `scripts/api.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from olivelike.serve.api.drawing import service_of
from olivelike.serve.api.images import from_base64, in_turn, png, upright
from olivelike.serve.api.refusals import RequestRefusedError, StrictRoute
from olivelike.serve.orders import Finite, Name

if TYPE_CHECKING:
    from olivelike.serve.service import Service

SCRIPT: Final = "controlnet"
"""Name of the script, in small letters."""
_MODULES: Final = ("none", "canny")
_MODES: Final = ("Balanced", "My prompt is more important", "ControlNet is more important")
_VERSION: Final = 2
"""Of the extension's API."""

controlnet_router: Final = APIRouter(prefix="/controlnet", route_class=StrictRoute, tags=["A1111"])


class ControlNetUnit(BaseModel):
    """One picture that leads."""

    model_config = ConfigDict(extra="ignore")
    enabled: bool = True
    image: str | dict[str, Any] = ""
    """Base64, or a map with it as `image`; older clients call it `input_image`."""
    mask: str | None = None
    module: str = "none"
    model: Name = "None"
    weight: Finite = 1.0
    guidance_start: Annotated[Finite, Field(ge=0, le=1)] = 0.0
    guidance_end: Annotated[Finite, Field(ge=0, le=1)] = 1.0
    control_mode: int | str = 0
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
        """Whether it leads the prompt alone, as the extension's middle mode and the one before it did."""
        return self.guessmode or self.control_mode in (1, _MODES[1])


async def controls_of(service: Service, scripts: dict[str, Any]) -> dict[str, Any]:
    """Return fields of an order for the units of a request.

    Raises `RequestRefusedError` for what is not here.
    """
    units = _units(scripts)
    controls = []
    for unit in units:
        text = unit.image.get("image") if isinstance(unit.image, dict) else unit.image
        data = await in_turn(lambda text=text: png(upright(from_base64(str(text), "image"), "image").convert("RGB")))  # type: ignore[misc]
        controls.append(
            {
                "image": (await service.upload(data)).id,
                "net": None if unit.model in ("", "None") else unit.model.partition(" [")[0],
                "strength": unit.weight,
                "start": unit.guidance_start,
                "end": unit.guidance_end,
                "preprocessor": unit.module.lower(),
            }
        )
    return {"controls": controls, "control_guess": any(unit.guesses for unit in units)} if controls else {}


def check_units(scripts: dict[str, Any]) -> None:
    """Raise `RequestRefusedError` for a script or a unit that is not here."""
    _units(scripts)


def _units(scripts: dict[str, Any]) -> list[ControlNetUnit]:
    units: list[ControlNetUnit] = []
    for name, script in scripts.items():
        if name.lower() != SCRIPT:
            raise _refused(f"always on script {name} not found")
        listed = script.get("args", []) if isinstance(script, dict) else None
        if not isinstance(listed, list):
            raise _refused("alwayson_scripts.ControlNet has no list of args")
        for number, one in enumerate(listed):
            try:
                units.append(ControlNetUnit.model_validate(one))
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, ("args", number, *first["loc"])))
                raise _refused(f"alwayson_scripts.ControlNet.{place}: {first['msg']}") from None
    units = [unit for unit in units if unit.enabled]
    for unit in units:
        _check(unit)
    if len({unit.guesses for unit in units}) > 1:
        raise _refused("control_mode is one for all units here")
    return units


def _check(unit: ControlNetUnit) -> None:
    if not unit.image:
        raise _refused("a ControlNet unit has no image")
    if unit.mask:
        raise _refused("masks of ControlNet units are not taken here")
    if unit.module.lower() not in _MODULES:
        raise _refused(f"there is no ControlNet module {unit.module!r}; there are {', '.join(_MODULES)}")
    if unit.control_mode not in (0, 1, *_MODES[:2]):
        raise _refused(f"control_mode {unit.control_mode!r} is not done here; there are {_MODES[0]} and {_MODES[1]}")


def _refused(message: str) -> RequestRefusedError:
    return RequestRefusedError(422, "invalid", message)


@controlnet_router.get("/version")
async def version() -> dict[str, int]:
    """Return the version of the extension's API."""
    return {"version": _VERSION}


@controlnet_router.get("/model_list")
async def model_list(request: Request) -> dict[str, list[str]]:
    """List the ControlNets and T2I-Adapters of the current folder."""
    service = service_of(request)
    view = next((one for one in service.models() if one.name == service.current_model), None)
    return {"model_list": list(view.controlnets) if view is not None else []}


@controlnet_router.get("/module_list")
async def module_list() -> dict[str, list[str]]:
    """List what can be made of a picture before it leads."""
    return {"module_list": list(_MODULES)}


@controlnet_router.get("/control_types")
async def control_types(request: Request) -> dict[str, Any]:
    """Return all modules and models as one type."""
    models = (await model_list(request))["model_list"]
    found = {
        "module_list": list(_MODULES), "model_list": ["None", *models], "default_option": "none",
        "default_model": models[0] if models else "None",
    }  # fmt: skip
    return {"control_types": {"All": found}}
