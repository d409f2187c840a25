"""What tests of the benchmark measure: networks of a few nodes, with the interface of the demo pipeline's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from olivelike.data import demo_folder
from olivelike.model.records.origin import Origin
from olivelike.runtime.sessions.session_settings import SessionSettings
from tests.fixtures.sample_records import write_output_record

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
NETWORKS = {
    "text_encoder": """\
text_encoder (int32[text_batch, text_sequence] input_ids)
 => (float[text_batch, text_sequence, 64] last_hidden_state) {
  last_hidden_state = Gather(table, input_ids)
}""",
    "unet": """\
unet (float[unet_sample_batch, 4, unet_sample_height, unet_sample_width] sample, float[unet_time_batch] timestep,
      float[unet_hidden_batch, unet_hidden_sequence, 64] encoder_hidden_states)
 => (float[unet_sample_batch, 4, unet_sample_height, unet_sample_width] out_sample) {
  moment = ReduceMean<keepdims = 0>(timestep)
  prompt = ReduceMean<keepdims = 0>(encoder_hidden_states)
  bias = Mul(moment, prompt)
  convolved = Conv<pads = [1, 1, 1, 1]>(sample, kernel)
  out_sample = Add(convolved, bias)
}""",
    "vae_decoder": """\
vae_decoder (float[decoder_batch, 4, decoder_height, decoder_width] latent_sample)
 => (float[decoder_batch, 3, eight_decoder_height, eight_decoder_width] sample) {
  colours = Conv(latent_sample, mix)
  sample = Resize(colours, , scales)
}""",
    "safety_checker": """\
safety_checker (float[clip_batch, 3, 64, 64] clip_input, float[image_batch, image_height, image_width, 3] images)
 => (float[image_batch, image_height, image_width, 3] out_images, bool[clip_batch] has_nsfw_concepts)
 <int64[3] axes = {1, 2, 3}, float limit = {1e9}> {
  out_images = Identity(images)
  most = ReduceMax<axes = [1, 2, 3], keepdims = 0>(clip_input)
  has_nsfw_concepts = Greater(most, limit)
}""",
}
SQUARE = """\
square (float[n, 1] x) => (float[n] y) <int64[1] axis = {1}> {
  row = Transpose<perm = [1, 0]>(x)
  square = MatMul(x, row)
  y = ReduceSum<keepdims = 0>(square, axis)
}"""
"""Needs memory of n² for inputs and outputs of n."""

SIZES = {"killed": 4, "hungry": 1_000_000, "well": 4}
"""Contenders, and their n."""

ONE_THREAD = replace(SessionSettings(), intra_threads=1)
STEPS = 3


def write_network(path, text, initializers=None):
    """Write a network with its initializers."""
    proto = onnx.parser.parse_model(HEADER + text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (initializers or {}).items())
    for dim in proto.graph.output[0].type.tensor_type.shape.dim:
        if dim.dim_param.startswith("eight_"):  # The parser takes names alone.
            dim.dim_param = dim.dim_param.replace("eight_", "8*")
    onnx.save(proto, path)


def write_small_pipeline(folder):
    """Write a pipeline that makes pictures of 64 pixels of nothing, made of the demo checkpoint by its own word."""
    random = np.random.default_rng(0)
    initializers = {
        "text_encoder": {"table": random.standard_normal((1000, 64), np.float32)},
        "unet": {"kernel": random.standard_normal((4, 4, 3, 3), np.float32) / 6},
        "vae_decoder": {
            "mix": random.standard_normal((3, 4, 1, 1), np.float32),
            "scales": np.array([1, 1, 8, 8], np.float32),
        },
    }
    for part in ("tokenizer", "scheduler", "feature_extractor", "text_encoder", "unet"):
        shutil.copytree(demo_folder() / part, folder / part, ignore=shutil.ignore_patterns("*.safetensors"))
    for component, text in NETWORKS.items():
        (folder / component).mkdir(exist_ok=True)
        write_network(folder / component / "model.onnx", text, initializers.get(component))
    shutil.copy(demo_folder() / "vae" / "config.json", folder / "vae_decoder")
    index = {"_class_name": "OnnxStableDiffusionPipeline", "safety_checker": ["diffusers", "OnnxRuntimeModel"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    write_output_record(folder, source=Origin("folder", demo_folder().name))
    return folder
