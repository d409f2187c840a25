"""What the page of `olivelike export-web`, and any other page, insists on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.families import TEXT_TO_PICTURE
from olivelike.measure.clients.requirement import Problem, Requirement, has_file, loads, takes

if TYPE_CHECKING:
    from olivelike.measure.clients.client_folder import ClientFolder

_LAYOUT: Final = "run the workflow with `layout: web`"
_MOST_BYTES: Final = 0x7FE00000
"""Of a buffer in Chrome."""


def _fits(folder: ClientFolder) -> Problem:
    for component in filter(folder.has, TEXT_TO_PICTURE):
        for file in folder.model(component).data_files:
            if (file.actual_bytes or 0) > _MOST_BYTES:
                return f"{component}/{file.location} has {file.actual_bytes:,}"
    return None


def _borders(folder: ClientFolder) -> Problem:
    for component in filter(folder.has, TEXT_TO_PICTURE):
        model = folder.model(component)
        for value in (*model.inputs, *model.outputs):
            if value.dtype not in {"float32", "int32"}:
                return f"{value.name} of {component} is {value.dtype}"
    return None


WEB: Final = (
    *(has_file(name, _LAYOUT) for name in ("manifest.json", "schedule.json", "model_index.json")),
    *(loads(name) for name in ("unet", "vae_decoder")),
    Requirement("inputs and outputs are float32, and ids int32", _borders, _LAYOUT),
    takes("unet", "timestep", ("float32",), _LAYOUT, shape=(1,)),
    Requirement(f"data files have at most {_MOST_BYTES:,} bytes", _fits, _LAYOUT),
)
"""Read in `olivelike/extras/deploy/web/`."""
