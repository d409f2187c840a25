"""The pass `deepcache`: a second graph over the same weights, whose numbers are those of the whole one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.errors import PassError
from olivelike.graphs.shallow import has_cached_features
from olivelike.model.components import CACHED_FEATURES, SHALLOW_FILE
from olivelike.testing import run_pass
from olivelike.testing.parity import materialize_model, open_on_cpu
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

PASSES = {name: Registry.built_in().get(name).cls for name in ("deepcache", "float16", "fuse", "layout")}


@pytest.fixture(scope="module")
def unet():
    return run_pass(PASSES["fuse"], little_model("sd", "unet"), target="cpu")


def feeds(rows, kind=np.float32):
    random = np.random.default_rng(5)
    return {
        "sample": random.standard_normal((rows, 4, 16, 24)).astype(kind),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((rows, 7, 32)).astype(kind),
    }


def written(model, folder):
    folder.mkdir()
    materialize_model(model, folder)
    return folder


@pytest.mark.parametrize("branch", [0, 1, 3])
def test_the_shallow_graph_gives_the_bits_of_the_whole_one(unet, branch, tmp_path):
    folder = written(run_pass(PASSES["deepcache"], unet, branch=branch), tmp_path / "unet")
    whole, shallow = open_on_cpu(folder), onnxruntime.InferenceSession(folder / SHALLOW_FILE)
    given = feeds(3)
    prediction, features = whole.run(["out_sample", CACHED_FEATURES], given)
    taken = {value.name for value in shallow.get_inputs()}
    assert taken - given.keys() == {CACHED_FEATURES}
    again = {name: array for name, array in given.items() if name in taken} | {CACHED_FEATURES: features}
    assert (shallow.run(None, again)[0] == prediction).all()
    other = shallow.run(None, again | {CACHED_FEATURES: features + 1})[0]
    assert not np.allclose(other, prediction)


def test_no_weight_is_written_twice_and_most_are_left_out(unet, tmp_path):
    plain = written(unet, tmp_path / "plain")
    folder = written(run_pass(PASSES["deepcache"], unet), tmp_path / "unet")
    assert {path.name for path in folder.iterdir()} - {path.name for path in plain.iterdir()} == {SHALLOW_FILE}
    assert (folder / "weights.pb").read_bytes() == (plain / "weights.pb").read_bytes()
    counts = [len(ir.load(folder / name).graph.initializers) for name in ("model.onnx", SHALLOW_FILE)]
    assert counts[1] < counts[0] / 2


def test_precision_and_fusions_hold_in_both_graphs(unet, tmp_path):
    half = run_pass(PASSES["float16"], run_pass(PASSES["deepcache"], unet), target="cuda")
    for name in ("model.onnx", SHALLOW_FILE):
        graph = ir.load(written(half, tmp_path / name) / name).graph
        values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
        assert values[CACHED_FEATURES].dtype == ir.DataType.FLOAT16


def test_sizes_of_the_features_are_named_after_those_of_the_latents(unet, tmp_path):
    def shape(branch):
        folder = written(run_pass(PASSES["deepcache"], unet, branch=branch), tmp_path / str(branch))
        (features,) = (value for value in ir.load(folder / SHALLOW_FILE).graph.inputs if value.name == CACHED_FEATURES)
        return [str(dim) for dim in features.shape]

    assert shape(0)[0::2] == ["unet_sample_batch", "unet_sample_height"]
    assert shape(3)[2:] == ["unet_sample_height/2", "unet_sample_width/2"]


def test_what_has_no_such_layer_is_refused(unet):
    with pytest.raises(PassError, match=r"branch 99 is beyond the \d+ layers up; take 0 to"):
        run_pass(PASSES["deepcache"], unet, branch=99)
    with pytest.raises(PassError, match="has such an output already"):
        run_pass(PASSES["deepcache"], run_pass(PASSES["deepcache"], unet))
    with pytest.raises(PassError, match="it is no UNet"):
        run_pass(PASSES["deepcache"], little_model("sd", "vae_decoder").replace(component="unet"))


@pytest.mark.parametrize("profile", ["optimum", "csharp", "web", "a1111-dml"])
def test_layouts_of_other_clients_do_without(unet, profile):
    laid_out = run_pass(PASSES["layout"], run_pass(PASSES["deepcache"], unet), profile=profile).graph.to_ir()
    assert [value.name for value in laid_out.graph.outputs] == ["out_sample"]
    assert not has_cached_features(laid_out)
