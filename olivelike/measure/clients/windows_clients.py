"""What the C# sample, OnnxStack and Microsoft's extension of A1111 insist on."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from olivelike.families import FAMILIES
from olivelike.measure.clients.client_folder import ClientFolder, Unreadable
from olivelike.measure.clients.requirement import (
    Problem,
    Requirement,
    clip_vocabulary,
    data_file,
    feeds,
    gives,
    has_file,
    loads,
    setting,
    takes,
)
from olivelike.model.families import CONTROLNETS, STRENGTH

if TYPE_CHECKING:
    from olivelike.graphs.inspect import Inspection

_CSHARP_LAYOUT = "run the workflow with `layout: csharp`"
_SD1 = "use a pipeline of SD 1.x: the sample's tensors have its sizes"
_CHECKER = (
    "name as source a pipeline's folder that has `safety_checker/` and `feature_extractor/`, with `safety_checker` in "
    "`components`; a single file never has one"
)
_FLOAT = ("float32",)
_WIDTH, _NETWORKS = FAMILIES["sd1"].text_width, FAMILIES["sd1"].networks


def _tokenizer(folder: ClientFolder) -> Problem:
    places = [path for path in ("cliptokenizer.onnx", "tokenizer/cliptokenizer.onnx") if folder.has(path)]
    if not places:
        return "there is none"
    model = folder.model(places[0])
    if "CLIPTokenizer" not in model.operators.get("ai.onnx.contrib", {}):
        return f"{places[0]} has no operator CLIPTokenizer of ai.onnx.contrib"
    text, ids = model.inputs[0], model.outputs[0]
    if (text.name, text.dtype) != ("string_input", "string"):
        return f"its input is {text}"
    return None if ids.dtype == "int64" else f"its first output is {ids}"


CSHARP: Final = (
    Requirement("cliptokenizer.onnx takes string_input and gives int64 ids", _tokenizer, _CSHARP_LAYOUT),
    clip_vocabulary(_SD1),
    *(loads(name) for name in ("text_encoder", "unet", "vae_decoder")),
    loads("safety_checker", _CHECKER),
    feeds("text_encoder", ("input_ids",), _CSHARP_LAYOUT),
    takes("text_encoder", "input_ids", ("int32",), _CSHARP_LAYOUT, shape=(1, 77)),
    gives("text_encoder", 0, _FLOAT, _CSHARP_LAYOUT),
    gives("text_encoder", 0, (), _SD1, shape=(1, 77, _WIDTH)),
    feeds("unet", ("sample", "timestep", "encoder_hidden_states"), _SD1),
    takes("unet", "sample", _FLOAT, _CSHARP_LAYOUT, shape=(2, 4, 64, 64)),
    takes("unet", "timestep", ("int64",), _CSHARP_LAYOUT, shape=(1,)),
    takes("unet", "encoder_hidden_states", _FLOAT, _CSHARP_LAYOUT),
    takes("unet", "encoder_hidden_states", (), _SD1, shape=(2, 77, _WIDTH)),
    gives("unet", 0, _FLOAT, _CSHARP_LAYOUT, shape=(2, 4, 64, 64)),
    feeds("vae_decoder", ("latent_sample",), _CSHARP_LAYOUT),
    takes("vae_decoder", "latent_sample", _FLOAT, _CSHARP_LAYOUT, shape=(1, 4, 64, 64)),
    gives("vae_decoder", 0, _FLOAT, _CSHARP_LAYOUT, shape=(1, 3, None, None)),
    setting("vae_decoder/config.json", "scaling_factor", FAMILIES["sd1"].latents.scaling, _SD1),
    feeds("safety_checker", ("clip_input", "images"), _CSHARP_LAYOUT),
    takes("safety_checker", "clip_input", _FLOAT, _CSHARP_LAYOUT),
    takes("safety_checker", "clip_input", (), _SD1, shape=(1, 3, 224, 224)),
    takes("safety_checker", "images", _FLOAT, _CSHARP_LAYOUT, shape=(1, 224, 224, 3)),
    gives("safety_checker", -1, ("bool",), _CSHARP_LAYOUT),
)
"""cassiebreviu/StableDiffusion: `TextProcessing.cs`, `UNet.cs`, `VaeDecoder.cs`, `SafetyChecker.cs`."""


_SECOND = "text_encoder_2"
_ONNXSTACK_LAYOUT = "run the workflow with `layout: onnxstack`"
_TOKENIZER = "fetch the source's tokenizer, and run the workflow again"
_FLOATS = ("float32", "float16", "bfloat16")

_CONTROLNET: Final = CONTROLNETS[0]

ONNXSTACK: Final = (
    has_file("tokenizer/vocab.json", _TOKENIZER),
    has_file("tokenizer/merges.txt", _TOKENIZER),
    clip_vocabulary("use a pipeline with CLIP's own vocabulary: its ids are in the client's code"),
    *(loads(name) for name in _NETWORKS),
    feeds("text_encoder", ("input_ids",), _ONNXSTACK_LAYOUT, in_order=True),
    takes("text_encoder", "input_ids", ("int32",), _ONNXSTACK_LAYOUT, shape=(1, 77)),
    gives("text_encoder", 0, _FLOATS, _ONNXSTACK_LAYOUT, shape=(1, 77, None)),
    gives("text_encoder", 1, _FLOATS, _ONNXSTACK_LAYOUT, shape=(1, None)),
    feeds(
        "unet",
        ("sample", "timestep", "encoder_hidden_states"),
        _ONNXSTACK_LAYOUT,
        in_order=True,
        more=("text_embeds", "time_ids"),
    ),
    takes("unet", "sample", _FLOATS, _ONNXSTACK_LAYOUT),
    takes("unet", "timestep", (*_FLOATS, "int64"), _ONNXSTACK_LAYOUT, shape=(1,)),
    takes("unet", "encoder_hidden_states", _FLOATS, _ONNXSTACK_LAYOUT),
    gives("unet", 0, _FLOATS, _ONNXSTACK_LAYOUT),
    gives("vae_encoder", 0, _FLOATS, "export it with the mean first", shape=(1, 4, None, None)),
    gives("vae_decoder", 0, _FLOATS, _ONNXSTACK_LAYOUT, shape=(1, 3, None, None)),
    takes(_SECOND, "input_ids", ("int32",), _ONNXSTACK_LAYOUT, shape=(1, 77), where=_SECOND),
    gives(_SECOND, 0, _FLOATS, _ONNXSTACK_LAYOUT, shape=(1, None), where=_SECOND),
    takes(_CONTROLNET, STRENGTH, ("float64",), _ONNXSTACK_LAYOUT, shape=(1,), where=_CONTROLNET),
    data_file(_NETWORKS, "model.onnx.data", "its tools copy model.onnx with model.onnx.data", _ONNXSTACK_LAYOUT),
)
"""OnnxStack and Amuse. Inputs and outputs go by position; floats are converted to what the graph wants, ids are not.

Read from saddam213/OnnxStack: `StableDiffusionPipeline.cs`, `OnnxInferenceParameters.cs`, `ModelFactory.cs`."""


_A1111_LAYOUT = "run the workflow with `layout: a1111-dml`"
_SD1_OR_SD2 = "use a pipeline of SD 1.x or 2.x: the extension refuses SDXL"
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


A1111: Final = (
    Requirement("the UNet's file and its data are there", _is_there, _A1111_LAYOUT),
    Requirement(
        "the folder holds no other ONNX file", _alone, f"{_A1111_LAYOUT}, or copy the UNet alone", only_advised=True
    ),
    Requirement(f"the inputs are {', '.join(_NAMES)}", _inputs, _SD1_OR_SD2),
    Requirement("every input is float16", _half, _A1111_LAYOUT),
    Requirement("timestep has one dimension", _timestep, _A1111_LAYOUT),
    Requirement("the dimensions have the names that the extension fixes", _dims, _A1111_LAYOUT),
    Requirement(
        "the file is named after its checkpoint",
        _own_name,
        f"{_A1111_LAYOUT} and an output folder named after the checkpoint: it is chosen by that name",
        only_advised=True,
    ),
    Requirement(
        "the data file is named after the UNet's file",
        _own_data,
        f"{_A1111_LAYOUT}: two UNets in one folder must not share a data file",
        only_advised=True,
    ),
)
"""microsoft/Stable-Diffusion-WebUI-DirectML, `scripts/dml.py`.

It lists every `.onnx` file under `models/Unet-dml` as a UNet, by its file's name."""
