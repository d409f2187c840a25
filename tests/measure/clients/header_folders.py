"""Folders of headers: models of real sizes without a node or a weight, as a check reads them."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from onnx import TensorProto, helper

if TYPE_CHECKING:
    from pathlib import Path

B, H, W = "batch", "height", "width"

Spec = dict[str, Any]

SD15: Spec = {
    "index": {
        "_class_name": "OnnxStableDiffusionPipeline",
        "requires_safety_checker": True,
        **{
            name: ["diffusers", "OnnxRuntimeModel"]
            for name in ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
        },
    },
    "vocab": {"<|startoftext|>": 49406, "<|endoftext|>": 49407},
    "float": "FLOAT",
    "data": "weights.pb",
    "models": {
        "text_encoder": (
            [("input_ids", "INT32", [B, "sequence"])],
            [("last_hidden_state", "float", [B, "sequence", 768]), ("pooler_output", "float", [B, 768])],
        ),
        "unet": (
            [
                ("sample", "float", ["unet_sample_batch", 4, "unet_sample_height", "unet_sample_width"]),
                ("timestep", "FLOAT", ["unet_time_batch"]),
                ("encoder_hidden_states", "float", ["unet_hidden_batch", "unet_hidden_sequence", 768]),
            ],
            [("out_sample", "float", ["unet_sample_batch", 4, "unet_sample_height", "unet_sample_width"])],
        ),
        "vae_encoder": (
            [("sample", "float", [B, 3, H, W])],
            [("latent_sample", "float", [B, 4, "h", "w"]), ("latent_parameters", "float", [B, 8, "h", "w"])],
        ),
        "vae_decoder": (
            [("latent_sample", "float", [B, 4, H, W])],
            [("sample", "float", [B, 3, "8* height", "8* width"])],
        ),
        "safety_checker": (
            [("clip_input", "float", [B, 3, 224, 224]), ("images", "float", [B, H, W, 3])],
            [("out_images", "float", [B, H, W, 3]), ("has_nsfw_concepts", "BOOL", [B])],
        ),
    },
}
"""A folder of SD 1.5 that every client but the DirectML extension loads, give or take what they are passed."""

_IDS = [("input_ids", "INT32", [B, "sequence"])]
_STATES = ("last_hidden_state", "float", [B, "sequence", 8])
_PROJECTED = (_IDS, [("text_embeds", "float", [B, 8]), _STATES, ("hidden_states.0", "float", [B, "sequence", 8])])
_TRANSFORMER = [
    ("hidden_states", "float", [B, "rows", 64]), ("timestep", "float", [B]),
    ("encoder_hidden_states", "float", [B, "sequence", 8]), ("pooled_projections", "float", [B, 8]),
]  # fmt: skip
_OUT = [("out_hidden_states", "float", [B, "rows", 64])]
_VAE = {
    "vae_encoder": ([("sample", "float", [B, 3, H, W])], [("latent_sample", "float", [B, 16, "?", "?"])]),
    "vae_decoder": (
        [("latent_sample", "float", [B, 16, H, W])],
        [("sample", "float", [B, 3, "8* height", "8* width"])],
    ),
}
TRANSFORMERS: dict[str, Spec] = {
    "FluxPipeline": {
        "text_encoder": (_IDS, [_STATES, ("pooler_output", "float", [B, 8])]), "text_encoder_2": (_IDS, [_STATES]),
        "transformer": ([*_TRANSFORMER, ("img_ids", "float", ["rows", 3]), ("txt_ids", "float", [77, 3])], _OUT),
        **_VAE,
    },
    "StableDiffusion3Pipeline": {
        "text_encoder": _PROJECTED, "text_encoder_2": _PROJECTED, "text_encoder_3": (_IDS, [_STATES]),
        "transformer": (_TRANSFORMER, _OUT), **_VAE,
    },
}  # fmt: skip
"""Class of a pipeline → networks of a folder that optimum loads."""


def transformer(class_name: str) -> Spec:
    """Return what `write` makes a folder of a transformer's pipeline from."""
    models = copy.deepcopy(TRANSFORMERS[class_name])
    denoiser = {"transformer": ["optimum.onnxruntime.modeling_diffusion", "ORTTransformer"]}
    return spec(index={"_class_name": f"ORT{class_name}", **denoiser}, models=models)


def spec(**changes: Any) -> Spec:
    """Return a copy of `SD15`, in another float type or with another data file's name."""
    return {**copy.deepcopy(SD15), **changes}


def write(folder: Path, described: Spec) -> Path:
    """Write the folder that a spec describes."""
    for name, (inputs, outputs) in described["models"].items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_model(folder / name / "model.onnx", inputs, outputs, described["float"], described["data"])
        numbers = {"scaling_factor": 0.18215, "shift_factor": 0.1}
        write_json(folder / name / "config.json", numbers if "vae" in name else {"num_hidden_layers": 1})
        if name.startswith("text_encoder"):
            write_json(folder / name.replace("text_encoder", "tokenizer") / "tokenizer_config.json", {})
    write_json(folder / "model_index.json", described["index"])
    write_json(folder / "tokenizer" / "vocab.json", described["vocab"])
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    write_json(folder / "scheduler" / "scheduler_config.json", {})
    return folder


def write_tokenizer_model(path: Path, **changes: str) -> None:
    """Write the header of an ONNX tokenizer."""
    names = {"operator": "CLIPTokenizer", "text": "string_input"} | changes
    node = helper.make_node(names["operator"], [names["text"]], ["input_ids"], domain="ai.onnx.contrib")
    write_graph(
        path,
        [node],
        [(names["text"], "STRING", ["texts"])],
        [("input_ids", "INT64", ["texts", 77])],
        [],
        {"": 17, "ai.onnx.contrib": 1},
    )


def write_model(path: Path, inputs: list[Any], outputs: list[Any], float_type: str, data: str) -> None:
    """Write a model whose one weight lies in a data file."""
    weight = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[16])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", data), ("offset", "0"), ("length", "64")):
        weight.external_data.add(key=key, value=value)
    (path.parent / data).write_bytes(bytes(64))
    write_graph(path, [], *(_typed(values, float_type) for values in (inputs, outputs)), [weight], {"": 17})


def write_graph(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any], opsets: dict[str, int]
) -> None:
    """Write a graph with this border."""
    described = [
        [helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape) for name, kind, shape in values]
        for values in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "headers", *described, weights)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


def write_json(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _typed(values: list[Any], float_type: str) -> list[Any]:
    return [(name, float_type if kind == "float" else kind, shape) for name, kind, shape in values]
