"""The C# sample, cassiebreviu/StableDiffusion: `TextProcessing.cs`, `UNet.cs`, `VaeDecoder.cs`, `SafetyChecker.cs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.measure.clients.requirement import (
    Problem,
    Requirement,
    clip_vocabulary,
    feeds,
    gives,
    loads,
    setting,
    takes,
)
from olivelike.model.families import FAMILIES

if TYPE_CHECKING:
    from olivelike.measure.clients.client_folder import ClientFolder

_RELAY = "run the workflow with `layout: csharp`"
_FAMILY = "use a pipeline of SD 1.x: the sample's tensors have its sizes"
_FLOAT = ("float32",)
_WIDTH = FAMILIES["sd1"].text_width


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


REQUIREMENTS: Final = (
    Requirement("cliptokenizer.onnx takes string_input and gives int64 ids", _tokenizer, _RELAY),
    clip_vocabulary(_FAMILY),
    *(loads(name) for name in ("text_encoder", "unet", "vae_decoder", "safety_checker")),
    feeds("text_encoder", ("input_ids",), _RELAY),
    takes("text_encoder", "input_ids", ("int32",), _RELAY, shape=(1, 77)),
    gives("text_encoder", 0, _FLOAT, _RELAY),
    gives("text_encoder", 0, (), _FAMILY, shape=(1, 77, _WIDTH)),
    feeds("unet", ("sample", "timestep", "encoder_hidden_states"), _FAMILY),
    takes("unet", "sample", _FLOAT, _RELAY, shape=(2, 4, 64, 64)),
    takes("unet", "timestep", ("int64",), _RELAY, shape=(1,)),
    takes("unet", "encoder_hidden_states", _FLOAT, _RELAY),
    takes("unet", "encoder_hidden_states", (), _FAMILY, shape=(2, 77, _WIDTH)),
    gives("unet", 0, _FLOAT, _RELAY, shape=(2, 4, 64, 64)),
    feeds("vae_decoder", ("latent_sample",), _RELAY),
    takes("vae_decoder", "latent_sample", _FLOAT, _RELAY, shape=(1, 4, 64, 64)),
    gives("vae_decoder", 0, _FLOAT, _RELAY, shape=(1, 3, None, None)),
    setting("vae_decoder/config.json", "scaling_factor", FAMILIES["sd1"].scaling_factor, _FAMILY),
    feeds("safety_checker", ("clip_input", "images"), _RELAY),
    takes("safety_checker", "clip_input", _FLOAT, _RELAY),
    takes("safety_checker", "clip_input", (), _FAMILY, shape=(1, 3, 224, 224)),
    takes("safety_checker", "images", _FLOAT, _RELAY, shape=(1, 224, 224, 3)),
    gives("safety_checker", -1, ("bool",), _RELAY),
)
