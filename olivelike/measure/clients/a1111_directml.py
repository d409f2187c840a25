"""Microsoft's DirectML extension of A1111: microsoft/Stable-Diffusion-WebUI-DirectML, `scripts/dml.py`.

It lists every `.onnx` file under `models/Unet-dml` as a UNet, by its file's name.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from olivelike.measure.clients.client_folder import ClientFolder, Unreadable
from olivelike.measure.clients.requirement import Problem, Requirement

if TYPE_CHECKING:
    from olivelike.graphs.inspect import Inspection

_RELAY = "run the workflow with `layout: a1111-dml`"
_FAMILY = "use a pipeline of SD 1.x or 2.x: the extension refuses SDXL"
_NAMES = ("sample", "timestep", "encoder_hidden_states")
_DIMS = {
    "sample": ("unet_sample_batch", "unet_sample_channels", "unet_sample_height", "unet_sample_width"),
    "timestep": ("unet_time_batch",),
    "encoder_hidden_states": ("unet_hidden_batch", "unet_hidden_sequence"),
}


def _path(folder: ClientFolder) -> str:
    """Return the UNet's file: the only one in `unet/`, or of the whole folder."""
    files = [path for path in folder.onnx_files if path.startswith("unet/")] or folder.onnx_files
    if len(files) != 1:
        raise Unreadable(f"of {len(files)} ONNX files none is known to be the UNet")
    return files[0]


def _unet(folder: ClientFolder) -> Inspection:
    return folder.model(_path(folder))


def _is_there(folder: ClientFolder) -> Problem:
    _unet(folder)
    return None


def _alone(folder: ClientFolder) -> Problem:
    count = len(folder.onnx_files)
    return None if count == 1 else f"it holds {count}, and each would be listed"


def _inputs(folder: ClientFolder) -> Problem:
    names = [value.name for value in _unet(folder).inputs]
    return None if sorted(names) == sorted(_NAMES) else f"they are {', '.join(names)}"


def _half(folder: ClientFolder) -> Problem:
    other = [f"{value.name} is {value.dtype}" for value in _unet(folder).inputs if value.dtype != "float16"]
    return ", ".join(other) or None


def _timestep(folder: ClientFolder) -> Problem:
    ranks = {value.name: len(value.shape or ()) for value in _unet(folder).inputs}
    return None if ranks.get("timestep") == 1 else f"it has {ranks.get('timestep', 0)}"


def _own_name(folder: ClientFolder) -> Problem:
    name = PurePosixPath(_path(folder)).stem
    return None if name not in {"model", "unet"} else f"it is {name}.onnx"


def _own_data(folder: ClientFolder) -> Problem:
    name = PurePosixPath(_path(folder)).stem
    other = [file.location for file in _unet(folder).data_files if not file.location.startswith(name)]
    return f"it is {other[0]}" if other else None


def _dims(folder: ClientFolder) -> Problem:
    for value in _unet(folder).inputs:
        for found, wanted in zip(value.shape or (), _DIMS.get(value.name, ()), strict=False):
            if found != wanted:
                return f"{value.name} has {found!r} in place of {wanted}"
    return None


REQUIREMENTS: Final = (
    Requirement("the UNet's file and its data are there", _is_there, _RELAY),
    Requirement("the folder holds no other ONNX file", _alone, f"{_RELAY}, or copy the UNet alone", only_advised=True),
    Requirement(f"the inputs are {', '.join(_NAMES)}", _inputs, _FAMILY),
    Requirement("every input is float16", _half, _RELAY),
    Requirement("timestep has one dimension", _timestep, _RELAY),
    Requirement("the dimensions have the names that the extension fixes", _dims, _RELAY),
    Requirement(
        "the file is named after its checkpoint",
        _own_name,
        f"{_RELAY} and an output folder named after the checkpoint: it is chosen by that name",
        only_advised=True,
    ),
    Requirement(
        "the data file is named after the UNet's file",
        _own_data,
        f"{_RELAY}: two UNets in one folder must not share a data file",
        only_advised=True,
    ),
)
