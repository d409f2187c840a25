"""The index of a pipeline folder and the configs of its networks, as diffusers' and optimum's clients read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version

from olivelike._untrusted import Json, JsonView
from olivelike.families import COMPONENTS, TOKENIZERS
from olivelike.model import Architecture
from olivelike.model.architecture import Config
from olivelike.model.client_layouts import DEFAULT, LAYOUTS, Layout
from olivelike.model.components import PREVIEW, SAFETY_CHECKER
from olivelike.model.guides import CONTROL_KINDS, GUIDE_COMPONENTS, IMAGE_ENCODER

_PIPELINES = {
    "StableDiffusionPipeline": "OnnxStableDiffusionPipeline",
    "StableDiffusionImg2ImgPipeline": "OnnxStableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline": "OnnxStableDiffusionInpaintPipeline",
    "StableDiffusionXLPipeline": "ORTStableDiffusionXLPipeline",
    "StableDiffusion3Pipeline": "ORTStableDiffusion3Pipeline",
    "FluxPipeline": "ORTFluxPipeline",
}
"""ONNX pipeline class for each torch one; diffusers has none for the last three, optimum has all as `ORT…`."""

_NETWORKS = frozenset({*COMPONENTS, "vae"} - {IMAGE_ENCODER})

_SWITCHES = ("force_zeros_for_empty_prompt", "requires_aesthetics_score", "is_distilled")
"""Switches of SDXL's pipelines about prompts, and of FLUX.2's about guidance."""


def index(source_index: Config, components: Iterable[str], layout: Layout = LAYOUTS[DEFAULT]) -> bytes:
    """Return `model_index.json` of an output with these components, as the client of `layout` reads it."""
    content: Json = {
        "_class_name": _pipeline_class(source_index.get("_class_name", "StableDiffusionPipeline"), layout),
        "_diffusers_version": version("diffusers"),
    }
    # diffusers' ONNX pipelines have no place for guides, nor for a second decoder.
    beside = (*TOKENIZERS, *GUIDE_COMPONENTS, PREVIEW)
    networks = [name for name in components if name not in beside]
    content |= {name: list(layout.network_classes.get(name, ("diffusers", "OnnxRuntimeModel"))) for name in networks}
    for name, entry in source_index.items():
        if isinstance(entry, list) and name not in _NETWORKS and all(isinstance(part, str) for part in entry):
            content[name] = [entry[0], current_name(entry[1])]
    content |= {name: source_index[name] for name in _SWITCHES if isinstance(source_index.get(name), bool)}
    # The ONNX pipelines want to be told that there is no safety checker.
    content.setdefault(SAFETY_CHECKER, [None, None])
    content["requires_safety_checker"] = SAFETY_CHECKER in networks
    return to_json(dict(sorted(content.items())))


def has_onnx_pipeline(class_name: str) -> bool:
    """Tell whether diffusers or optimum has a pipeline of ONNX models for one of torch."""
    return _torch_name(class_name) in _PIPELINES


def _torch_name(class_name: str) -> str:
    torch_name = class_name.removeprefix("Onnx").removeprefix("ORT")
    for kind in CONTROL_KINDS:  # They are in the middle of a class's name, without what stands before a hyphen.
        torch_name = torch_name.replace(kind.title.rpartition("-")[2], "")
    return torch_name


def _pipeline_class(class_name: str, layout: Layout) -> str:
    torch_name = _torch_name(class_name)
    if torch_name not in _PIPELINES:
        return class_name
    return _PIPELINES[torch_name] if layout.pipeline_prefix == "Onnx" else f"ORT{torch_name}"


def current_name(class_name: str) -> str:
    """Return today's name of an image processor class; transformers renamed them and dropped the old names."""
    return class_name.replace("FeatureExtractor", "ImageProcessor")


def component_config(architecture: Architecture) -> bytes:
    """Return the `config.json` of a component, as its library writes it."""
    config: Json = dict(architecture.config)
    if architecture.library == "diffusers":
        config["_class_name"] = architecture.class_name
        config["_diffusers_version"] = version("diffusers")
        if "encoder_block_out_channels" in config:
            # As `AutoencoderTiny` does it: what clients count the levels of a VAE by.
            config["block_out_channels"] = config["decoder_block_out_channels"]
    else:
        config["architectures"] = [architecture.class_name]
        config["transformers_version"] = version("transformers")
    return to_json(dict(sorted(config.items())))


def to_json(content: JsonView) -> bytes:
    """Serialise a config as the libraries do: indented, in its order."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
