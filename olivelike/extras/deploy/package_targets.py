"""Targets as those know them who read packages: Triton's back end for ONNX Runtime, and ONNX Runtime's packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from olivelike.model.targets import Target

TRITON_TARGETS: Final[Mapping[str, tuple[str, str | None]]] = {
    "cpu": ("KIND_CPU", None),
    "cuda": ("KIND_GPU", "cuda"),
    "tensorrt": ("KIND_GPU", "tensorrt"),
    "openvino": ("KIND_CPU", "openvino"),
    "openvino_ep": ("KIND_CPU", "openvino"),
}
"""Target → where Triton puts instances of a model, and what it calls the execution accelerator.

From `ModelState::LoadModel` in `src/onnxruntime.cc` of triton-inference-server/onnxruntime_backend (June 2026), which
has no other: what it does not know stops the server from loading the model.
"""

VARIANT_PROVIDERS: Final[Mapping[str, str]] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "tensorrt_rtx": "NvTensorRTRTXExecutionProvider",
    "directml": "DmlExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "openvino_ep": "OpenVINOExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
"""Target → the execution provider of a variant; `windowsml` leaves it to the machine, and a variant has just one."""

PRECISION_MODES: Final = {"fp16": "FP16", "bf16": "BF16", "fp32": "FP32"}
"""Triton's `precision_mode` of TensorRT, by precision of a target."""
_TENSORRT_OPTIONS: Final = frozenset(
    f"trt_{name}"
    for name in (
        "max_partition_iterations", "min_subgraph_size", "dla_enable", "dla_core", "engine_cache_enable",
        "engine_cache_path", "engine_cache_prefix", "dump_subgraphs", "force_sequential_engine_build",
        "context_memory_sharing_enable", "layer_norm_fp32_fallback", "timing_cache_enable", "timing_cache_path",
        "force_timing_cache", "detailed_build_log", "build_heuristics_enable", "sparsity_enable",
        "builder_optimization_level", "auxiliary_streams", "tactic_sources", "extra_plugin_lib_paths",
        "profile_min_shapes", "profile_max_shapes", "profile_opt_shapes", "cuda_graph_enable",
        "dump_ep_context_model", "ep_context_file_path", "ep_context_embed_mode",
    )
)  # fmt: skip
"""Options of TensorRT that Triton hands on under their own name; any other stops it."""
SESSION_PARAMETERS: Final = frozenset({"session.use_device_allocator_for_initializers"})
"""Configuration entries of sessions that Triton hands on, as parameters of a model."""


def refused_setting(target: Target) -> str | None:
    """Return what is set for a target's sessions that Triton does not hand on; `None` if there is nothing."""
    _, accelerator = TRITON_TARGETS[target.name]
    refused = [name for name in target.session_options if name not in SESSION_PARAMETERS]
    refused += target.run_options
    if accelerator == "tensorrt":
        refused += [name for name in target.options if name not in _TENSORRT_OPTIONS]
    elif accelerator != "cuda":
        refused += target.options
    return refused[0] if refused else None
