"""Names of the components of pipelines, of their files, and of what goes in and out of them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Final, Literal

INDEX_FILE: Final = "model_index.json"
"""Name that diffusers has for a pipeline's index."""
MODEL_FILE: Final = "model.onnx"
"""A component's graph, in its folder."""
PIPELINE: Final = "pipeline"
"""Stands for a component where the whole pipeline is meant."""
PIPELINE_FILE: Final = "pipeline.onnx"
"""A whole pipeline as one model, in its folder."""
SHALLOW_FILE: Final = "shallow.onnx"
"""The part of a UNet's graph that steps between full ones run, beside it: the pass `deepcache` makes it."""
CACHED_FEATURES: Final = "cached_features"
"""Output of a UNet's graph, and input of its shallow part."""
CONTROLLED_FILE: Final = "controlnet.onnx"
"""A UNet's graph with the inputs that ControlNets feed, beside the plain one: OnnxStack looks for it there."""
ADAPTED_FILE: Final = "t2i_adapter.onnx"
"""Graph of a UNet with the inputs that T2I-Adapters feed."""
IMAGE_PROMPT_FILE: Final = "ip_adapter.onnx"
"""Graph of a UNet with the inputs that an IP-Adapter feeds."""
IP_ADAPTER: Final = "ip_adapter"
LEADERS: Final[tuple[str, ...]] = ("controlnet", "t2i_adapter", IP_ADAPTER)
"""Kinds of guides of a UNet. Each set of them has a graph, such as `controlnet_ip_adapter.onnx`."""


def led_file(leaders: Collection[str]) -> str:
    """Return the file of the UNet's graph with the inputs that some of `LEADERS` feed: `controlnet_ip_adapter.onnx`."""
    return "_".join(leader for leader in LEADERS if leader in leaders) + ".onnx"


DERIVED_FILES: Final = frozenset(
    {SHALLOW_FILE, *(led_file(some) for count in (1, 2, 3) for some in combinations(LEADERS, count))}
)
"""Graphs that are made of a UNet's, over its weights."""

VAES: Final[tuple[str, ...]] = ("vae_encoder", "vae_decoder")
"""The halves of one network, which torch pipelines keep in one folder."""
SAFETY_CHECKER: Final = "safety_checker"
PREVIEW: Final = "preview_decoder"
"""The decoder of a tiny VAE beside a pipeline's own, for pictures of steps; no client but the runtime knows it."""
CONTROLNETS: Final[tuple[str, ...]] = ("controlnet", *(f"controlnet_{number}" for number in range(2, 9)))
"""Networks that lead the UNet by a picture, as many as a pipeline has."""
T2I_ADAPTERS: Final[tuple[str, ...]] = ("t2i_adapter", *(f"t2i_adapter_{number}" for number in range(2, 9)))
"""Others that do so, by what they give once for all steps."""
LEADING: Final[tuple[tuple[str, ...], ...]] = (CONTROLNETS, T2I_ADAPTERS)
"""Kinds of networks that control pictures name; those of one kind and form have one graph."""
IMAGE_ENCODER: Final = "image_encoder"
"""CLIP's vision tower with an IP-Adapter's projection: makes tokens of a picture, which the UNet attends to."""


def down_residual(number: int) -> str:
    """Return what diffusers and OnnxStack call a ControlNet's output for a connection of the UNet, counted from 0."""
    return f"down_block_{number}_additional_residual"


MID_RESIDUAL: Final = "mid_block_additional_residual"
"""Name of the input for the middle of the UNet."""
CONTROL_PICTURE: Final = "controlnet_cond"
"""A ControlNet's input: the picture that leads, RGB from 0 to 1."""
STRENGTH: Final = "conditioning_scale"
"""Another: what its outputs are multiplied by, float32 in every precision."""
ADAPTER_PICTURE: Final = "adapter_input"
"""A T2I-Adapter's input, as diffusers' pipelines call it: the picture that leads, RGB or grey, from 0 to 1."""


def adapter_feature(number: int) -> str:
    """Return what a T2I-Adapter's output is called, and the UNet's input that takes it, counted from 0.

    They are the members of `down_intrablock_additional_residuals` of diffusers' `UNet2DConditionModel`.
    """
    return f"down_intrablock_{number}_additional_residual"


def is_adapter_feature(name: str) -> bool:
    """Tell whether an input of a UNet is what a T2I-Adapter gives."""
    return name.startswith("down_intrablock_")


def first_of_kind(component: str) -> str:
    """Return the component whose graphs another one shares if they have the same form; most have their own."""
    return next((kind[0] for kind in LEADING if component in kind), component)


IMAGE_PROJECTION: Final = "image_proj."
"""Beginning of the names of tensors in an IP-Adapter's file that make tokens of what an image encoder gives."""
IMAGE_TOKENS: Final = "ip_hidden_states"
"""Output of an image encoder and input of the UNet: tokens of a picture, as diffusers' attention calls them."""
NO_IMAGE_TOKENS: Final = "negative_ip_hidden_states"
"""Another output of those whose tokens of no picture are not those of a black one."""
IMAGE_STRENGTH: Final = "ip_adapter_scale"
"""Input of the UNet: what is multiplied with the attention to these tokens, float32 in every precision."""


def torch_folder(component: str) -> str:
    """Return the folder that holds a component's weights in a pipeline of torch."""
    return "vae" if component in VAES else component


Prediction = Literal["epsilon", "v_prediction", "sample"]
"""A UNet's prediction: the noise, v (https://arxiv.org/abs/2202.00512), or the picture, as Lightning's in one step."""


HALF_PASSES: Final = {"fp16": "float16", "bf16": "bfloat16"}
"""The pass that brings a graph to each half precision."""
QUANTISING_PASSES: Final = {"w8": "weights8", "w4": "weights4", "int8": "int8", "fp8": "fp8"}
"""The pass that brings weights alone (`w8`, `w4`) or what is computed to so many bits, behind what brings the graph to
the target's precision."""
