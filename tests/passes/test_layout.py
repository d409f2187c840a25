"""The pass `layout`: the border of a graph as each client knows it, and the same numbers behind it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from olivelike.errors import PassError
from olivelike.model import Graph, Model
from olivelike.model.client_layouts import LAYOUTS
from olivelike.model.graph import PARAMETER_KEY, real_inputs
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry

LAYOUT = Registry.built_in().get("layout").cls

SAMPLE = "[unet_sample_batch, 4, unet_sample_height, unet_sample_width]"
HIDDEN = "[unet_hidden_batch, unet_hidden_sequence, 8]"
NAMED = SAMPLE.replace("4", "unet_sample_channels")

UNET = f"""
<ir_version: 11, opset_import: ["" : 23]>
unet (float16{SAMPLE} sample, float[unet_time_batch] timestep, float16{HIDDEN} encoder_hidden_states,
      float16[4, 1, 1] gain)
  => (float16[unet_sample_batch, 4, unet_sample_height, unet_sample_width] out_sample)
{{
  sines = Sin (timestep)
  time = Cast <to: int = 10> (sines)
  text = ReduceMean <keepdims: int = 0> (encoder_hidden_states)
  scaled = Mul (sample, gain)
  shifted = Add (scaled, time)
  out_sample = Add (shifted, text)
}}
"""
"""A graph with the border of a UNet in half precision, and one parameter."""

DECODER = """
<ir_version: 11, opset_import: ["" : 23]>
decoder (float[decoder_batch, 4, decoder_height, decoder_width] latent_sample)
  => (float[decoder_batch, 4, 8*decoder_height, (decoder_width//2)] sample) { sample = Identity (latent_sample) }
"""


def model(text=UNET, component="unet"):
    proto = onnx.parser.parse_model(text.replace("8*decoder_height", "h").replace("(decoder_width//2)", "w"))
    for value in proto.graph.input:
        if value.name == "gain":
            value.metadata_props.add(key=PARAMETER_KEY, value="gain")
    if component == "vae_decoder":
        dims = proto.graph.output[0].type.tensor_type.shape.dim
        dims[2].dim_param, dims[3].dim_param = "8*decoder_height", "(decoder_width//2)"
    return Model(component, graph=Graph(proto.SerializeToString()))


def laid_out(profile, start=None):
    return run_pass(LAYOUT, start or model(), profile=profile)


def border(result):
    graph = result.graph.to_ir().graph
    return [
        f"{value.name}: {value.dtype.name} [{', '.join(map(str, value.shape))}]"
        for value in (*real_inputs(graph), *graph.outputs)
    ]


@pytest.mark.parametrize(
    ("profile", "sample", "timestep", "floats"),
    [
        ("diffusers", SAMPLE, "FLOAT [unet_time_batch]", "FLOAT16"),
        ("onnxstack", SAMPLE, "FLOAT [unet_time_batch]", "FLOAT16"),
        ("optimum", SAMPLE, "FLOAT []", "FLOAT16"),
        ("csharp", SAMPLE, "INT64 [unet_time_batch]", "FLOAT"),
        ("a1111-dml", NAMED, "FLOAT16 [unet_time_batch]", "FLOAT16"),
    ],
)
def test_the_unet_has_the_border_that_the_client_knows(profile, sample, timestep, floats):
    result = laid_out(profile)
    onnx.checker.check_model(result.graph.data, full_check=True)
    assert border(result) == [
        f"sample: {floats} {sample}",
        f"timestep: {timestep}",
        f"encoder_hidden_states: {floats} {HIDDEN}",
        f"out_sample: {floats} {SAMPLE}",
    ]


@pytest.mark.parametrize("profile", LAYOUTS)
def test_the_same_numbers_come_out(profile):
    rng = np.random.default_rng(0)
    feeds = {
        "sample": rng.standard_normal((2, 4, 3, 5)).astype(np.float16),
        "timestep": np.array([961.0], np.float32),
        "encoder_hidden_states": rng.standard_normal((2, 7, 8)).astype(np.float16),
        "gain": rng.standard_normal((4, 1, 1)).astype(np.float16),
    }
    expected = run(model(), feeds)
    found = run(laid_out(profile), feeds)
    # The CPU computes half precision in float32, and rounds where a value has a name that a graph keeps.
    assert np.abs(found.astype(np.float32) - expected).max() < 4e-3


@pytest.mark.parametrize("profile", LAYOUTS)
def test_parameters_stay_as_they_are_behind_the_inputs(profile):
    last = laid_out(profile).graph.to_ir().graph.inputs[-1]
    assert (last.name, last.dtype.name, last.metadata_props) == ("gain", "FLOAT16", {PARAMETER_KEY: "gain"})


@pytest.mark.parametrize("profile", LAYOUTS)
def test_a_second_time_changes_nothing(profile):
    once = laid_out(profile)
    again = laid_out(profile, once)
    assert again.graph == once.graph
    assert again.facts == {"cast": 0, "renamed": 0}


def test_what_convert_makes_is_the_layout_of_diffusers_already(tiny):
    before = tiny("text_encoder")
    assert laid_out("diffusers", before).graph == before.graph


def test_optimum_computes_sizes_from_the_formulas_of_outputs():
    shape = laid_out("optimum", model(DECODER, "vae_decoder")).graph.to_ir().graph.outputs[0].shape
    # As `ORTSessionMixin._dynamic_axis_inference` does: split at spaces, put sizes in, evaluate.
    sizes = {"decoder_height": "8", "decoder_width": "6"}
    words = [[sizes.get(word, word) for word in dim.value.split(" ")] for dim in shape[2:]]
    assert [eval(" ".join(found)) for found in words] == [64, 3]


FOREIGN = """
<ir_version: 8, opset_import: ["" : 17]>
unet (float[batch, length, 8] encoder_hidden_states, float[batch, 4, h, w] sample, int64 timestep)
  => (float[batch, 4, h, w] noise)
{
  time = Cast <to: int = 1> (timestep)
  text = ReduceMean <keepdims: int = 0> (encoder_hidden_states)
  scaled = Mul (sample, time)
  noise = Add (scaled, text)
}
"""


PACKED = """
<ir_version: 11, opset_import: ["" : 23]>
transformer (float[batch, squares, CHANNELS] hidden_states, float[rows] timestep, float[batch, words, 8]
             encoder_hidden_states, float[squares, 3] img_ids)
  => (float[batch, squares, CHANNELS] out_hidden_states) { out_hidden_states = Identity (hidden_states) }
"""


@pytest.mark.parametrize("channels", [64, 128], ids=["FLUX.1", "FLUX.2"])
def test_a_size_fixes_the_row_of_a_picture_s_squares(channels):
    packed = model(PACKED.replace("CHANNELS", str(channels)), "transformer")
    result = border(run_pass(LAYOUT, packed, profile="diffusers", size=(1024, 768)))
    assert result[0] == f"hidden_states: FLOAT [batch, 3072, {channels}]"
    assert result[-2:] == ["img_ids: FLOAT [3072, 3]", f"out_hidden_states: FLOAT [batch, 3072, {channels}]"]
    with pytest.raises(PassError, match="makes no pictures of size 1032x768: sides are multiples of 16"):
        run_pass(LAYOUT, packed, profile="diffusers", size=(1032, 768))


def test_a_size_of_a_decoder_follows_how_its_latents_are_packed():
    text = DECODER.replace("batch, 4,", "batch, 128,")
    result = border(run_pass(LAYOUT, model(text, "vae_decoder"), profile="diffusers", size=(512, 256)))
    assert result[0] == "latent_sample: FLOAT [decoder_batch, 128, 16, 32]"


def test_a_graph_of_another_exporter_gets_order_names_and_rank():
    assert border(laid_out("onnxstack", model(FOREIGN))) == [
        "sample: FLOAT [unet_sample_batch, 4, unet_sample_height, unet_sample_width]",
        "timestep: INT64 [unet_time_batch]",
        "encoder_hidden_states: FLOAT [unet_hidden_batch, unet_hidden_sequence, 8]",
        "out_sample: FLOAT [unet_sample_batch, 4, unet_sample_height, unet_sample_width]",
    ]


def test_a_graph_of_another_exporter_computes_what_it_did():
    feeds = {
        "sample": np.ones((1, 4, 2, 2), np.float32),
        "timestep": np.array(3, np.int64),
        "encoder_hidden_states": np.full((1, 7, 8), 0.5, np.float32),
    }
    for profile in LAYOUTS:
        assert (run(laid_out(profile, model(FOREIGN)), feeds) == 3.5).all()


def test_ids_become_int32_and_outputs_come_in_the_order_of_clients():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    encoder (int64[b, s] ids) => (float[b, s] hidden, float[b] pooler_output, float[b, s] last_hidden_state)
    {
      hidden = Cast <to: int = 1> (ids)
      last_hidden_state = Identity (hidden)
      pooler_output = ReduceMax <axes: ints = [1], keepdims: int = 0> (hidden)
    }
    """
    result = border(laid_out("csharp", model(text, "text_encoder")))
    assert [line.partition(":")[0] for line in result] == [
        "input_ids", "last_hidden_state", "pooler_output", "hidden",
    ]  # fmt: skip
    assert result[0] == "input_ids: INT32 [b, s]"


@pytest.mark.parametrize("profile", ["csharp", "a1111-dml"])
def test_clients_that_know_no_sdxl_refuse_its_unet(profile):
    wide = UNET.replace("float16[4, 1, 1] gain)", "float16[4, 1, 1] gain, float16[1] text_embeds)")
    with pytest.raises(PassError, match="the UNet has an input 'text_embeds', which this client does not feed"):
        laid_out(profile, model(wide))
    assert "text_embeds: FLOAT16 [1]" in border(laid_out("onnxstack", model(wide)))


def test_a_graph_without_an_input_that_clients_feed_is_refused():
    with pytest.raises(PassError, match="has no input 'timestep', which clients feed"):
        laid_out("optimum", model(UNET.replace("timestep", "t")))


def run(tested, feeds):
    """Run a graph on the CPU, with values in the type and rank that it asks for."""
    session = ort.InferenceSession(tested.graph.data, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
    given = {}
    for value in session.get_inputs():
        array = feeds[value.name].astype(kinds[value.type])
        if value.name == "timestep":
            array = array.reshape([1] * len(value.shape))
        given[value.name] = array
    return session.run(None, given)[0]
