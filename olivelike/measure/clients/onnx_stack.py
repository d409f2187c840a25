"""OnnxStack and Amuse.

Read from saddam213/OnnxStack: `StableDiffusionPipeline.cs`, `OnnxInferenceParameters.cs`, `ModelFactory.cs`.

Inputs and outputs go by position; floats are converted to what the graph wants, ids are not.
"""

from __future__ import annotations

from typing import Final

from olivelike.measure.clients.requirement import clip_vocabulary, data_file, feeds, gives, has_file, loads, takes
from olivelike.model.families import SD_NETWORKS

_SECOND = "text_encoder_2"
_RELAY = "run the workflow with `layout: onnxstack`"
_TOKENIZER = "fetch the source's tokenizer, and run the workflow again"
_FLOATS = ("float32", "float16", "bfloat16")

REQUIREMENTS: Final = (
    has_file("tokenizer/vocab.json", _TOKENIZER),
    has_file("tokenizer/merges.txt", _TOKENIZER),
    clip_vocabulary("use a pipeline with CLIP's own vocabulary: its ids are in the client's code"),
    *(loads(name) for name in SD_NETWORKS),
    feeds("text_encoder", ("input_ids",), _RELAY, in_order=True),
    takes("text_encoder", "input_ids", ("int32",), _RELAY, shape=(1, 77)),
    gives("text_encoder", 0, _FLOATS, _RELAY, shape=(1, 77, None)),
    gives("text_encoder", 1, _FLOATS, _RELAY, shape=(1, None)),
    feeds(
        "unet", ("sample", "timestep", "encoder_hidden_states"), _RELAY, in_order=True, more=("text_embeds", "time_ids")
    ),
    takes("unet", "sample", _FLOATS, _RELAY),
    takes("unet", "timestep", (*_FLOATS, "int64"), _RELAY, shape=(1,)),
    takes("unet", "encoder_hidden_states", _FLOATS, _RELAY),
    gives("unet", 0, _FLOATS, _RELAY),
    gives("vae_encoder", 0, _FLOATS, "export it with the mean first", shape=(1, 4, None, None)),
    gives("vae_decoder", 0, _FLOATS, _RELAY, shape=(1, 3, None, None)),
    takes(_SECOND, "input_ids", ("int32",), _RELAY, shape=(1, 77), where=_SECOND),
    gives(_SECOND, 0, _FLOATS, _RELAY, shape=(1, None), where=_SECOND),
    data_file(SD_NETWORKS, "model.onnx.data", "its tools copy model.onnx with model.onnx.data", _RELAY),
)
