"""diffusers' `OnnxStableDiffusionPipeline` and its kin, in versions before 0.43, which has them no more.

Read from `pipelines/stable_diffusion/pipeline_onnx_stable_diffusion.py` and `pipelines/onnx_utils.py` of 0.42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.measure.clients.requirement import (
    Problem,
    Requirement,
    data_file,
    feeds,
    gives,
    has_file,
    loads,
    setting,
    takes,
)
from olivelike.model.families import FAMILIES, SD_NETWORKS

if TYPE_CHECKING:
    from olivelike.measure.clients.client_folder import ClientFolder

_CLASSES = (
    "OnnxStableDiffusionPipeline", "OnnxStableDiffusionImg2ImgPipeline", "OnnxStableDiffusionInpaintPipeline",
    "OnnxStableDiffusionUpscalePipeline",
)  # fmt: skip
_RELAY = "run the workflow with `layout: diffusers`"
_OTHER_FAMILY = "use another client: this one knows SD 1.x and 2.x alone"


def _index_class(folder: ClientFolder) -> Problem:
    found = folder.index.get("_class_name")
    return None if found in _CLASSES else f"it is {found!r}"


def _index_entries(folder: ClientFolder) -> Problem:
    for name in SD_NETWORKS:
        if folder.index.get(name) != ["diffusers", "OnnxRuntimeModel"]:
            return f"that of {name} is {folder.index.get(name)}"
    return None


def _safety_entry(folder: ClientFolder) -> Problem:
    entry = folder.index.get("safety_checker")
    if entry == ["diffusers", "OnnxRuntimeModel"]:
        folder.model("safety_checker")
        return None
    if entry not in (None, [None, None]):
        return f"its entry is {entry}"
    if folder.index.get("requires_safety_checker", True):
        return "there is none, and requires_safety_checker is not false"
    return None


def _one_float_type(folder: ClientFolder) -> Problem:
    values = {
        "text_encoder's first output": folder.output("text_encoder"),
        "unet's sample": folder.input("unet", "sample"),
        "unet's encoder_hidden_states": folder.input("unet", "encoder_hidden_states"),
        "unet's output": folder.output("unet"),
        "vae_decoder's latent_sample": folder.input("vae_decoder", "latent_sample"),
    }
    kinds = {value.dtype for value in values.values()}
    return None if len(kinds) == 1 else ", ".join(f"{name} is {value.dtype}" for name, value in values.items())


def _safety_type(folder: ClientFolder) -> Problem:
    picture = folder.output("vae_decoder").dtype
    for name in ("clip_input", "images"):
        if (found := folder.input("safety_checker", name).dtype) != picture:
            return f"{name} is {found}, and vae_decoder's output {picture}"
    return None


REQUIREMENTS: Final = (
    Requirement("model_index.json names an Onnx pipeline class", _index_class, _RELAY),
    Requirement("model_index.json has each network as diffusers' OnnxRuntimeModel", _index_entries, _RELAY),
    Requirement("the safety checker is there, or declared absent", _safety_entry, _RELAY),
    has_file("tokenizer/tokenizer_config.json", "fetch the source's tokenizer, and run the workflow again"),
    has_file("scheduler/scheduler_config.json", "fetch the source's scheduler, and run the workflow again"),
    *(loads(name) for name in SD_NETWORKS),
    feeds("text_encoder", ("input_ids",), _RELAY),
    takes("text_encoder", "input_ids", ("int32",), _RELAY, shape=(1, 77)),
    feeds("unet", ("sample", "timestep", "encoder_hidden_states"), _OTHER_FAMILY),
    takes("unet", "timestep", (), _RELAY, shape=(1,)),
    Requirement("texts, latents and noise have one float type throughout", _one_float_type, _RELAY),
    gives("unet", 0, (), _OTHER_FAMILY, shape=(None, 4, None, None)),
    feeds("vae_decoder", ("latent_sample",), _RELAY),
    feeds("vae_encoder", ("sample",), _RELAY),
    gives("vae_encoder", 0, (), "export it with the mean first", shape=(None, 4, None, None)),
    setting("vae_decoder/config.json", "scaling_factor", FAMILIES["sd1"].scaling_factor, _OTHER_FAMILY),
    feeds("safety_checker", ("clip_input", "images"), _RELAY, where="safety_checker"),
    Requirement(
        "the safety checker takes pictures as vae_decoder gives them", _safety_type, _RELAY, where="safety_checker"
    ),
    data_file(SD_NETWORKS, "weights.pb", "`save_pretrained` leaves that behind", _RELAY),
)
