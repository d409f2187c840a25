"""Shapes of a network's inputs and outputs, by its dimensions."""

from __future__ import annotations

import re

import pytest

from olivelike.errors import UsageError
from olivelike.measure.contest.runtime_engine import network_shapes
from olivelike.runtime.sessions.session import ValueSpec, read_model_file, value_specs


def shape_of(spec, sizes, path):
    return network_shapes([spec], [], sizes, path)[spec.name]


@pytest.mark.parametrize(
    ("component", "inputs", "output"),
    [
        ("text_encoder", [(2, 77)], (2, 77, 64)),
        ("unet", [(2, 4, 8, 8), (1,), (2, 77, 64)], (2, 4, 8, 8)),
        ("vae_decoder", [(1, 4, 8, 8)], (1, 3, 64, 64)),
        ("safety_checker", [(1, 3, 64, 64), (1, 64, 64, 3)], (1, 64, 64, 3)),
    ],
)
def test_dimensions_are_those_of_a_guided_batch_of_one_picture(small_pipeline, component, inputs, output):
    path = small_pipeline / component / "model.onnx"
    graph = read_model_file(path).graph
    specs = value_specs(graph.input, graph.initializer), value_specs(graph.output)
    shapes = network_shapes(specs[0].values(), specs[1].values(), {}, path)
    assert [shapes[name] for name in specs[0]] == inputs
    assert shapes[next(iter(specs[1]))] == output


def test_pictures_for_the_vae_encoder_are_as_large_as_those_that_come_out(small_pipeline, tmp_path):
    (tmp_path / "unet").mkdir()
    (tmp_path / "vae_encoder").mkdir()
    (tmp_path / "unet" / "config.json").write_bytes((small_pipeline / "unet" / "config.json").read_bytes())
    config = (small_pipeline / "vae_decoder" / "config.json").read_bytes()
    (tmp_path / "vae_encoder" / "config.json").write_bytes(config)
    spec = ValueSpec("sample", "float32", ("encoder_batch", 3, "encoder_height", "encoder_width//8"))
    assert shape_of(spec, {}, tmp_path / "vae_encoder" / "model.onnx") == (1, 3, 64, 8)


def test_sizes_that_are_given_count_in_expressions_too(tmp_path):
    spec = ValueSpec("sample", "float32", ("decoder_batch", 3, "8*decoder_height", "(side//8) + 1"))
    sizes = {"decoder_batch": 2, "decoder_height": 5, "side": 17}
    assert shape_of(spec, sizes, tmp_path / "model.onnx") == (2, 3, 40, 3)


@pytest.mark.parametrize("dimension", ["rows", "input.1", "min(rows, 2)"])
def test_a_dimension_of_unknown_size_is_named(dimension, tmp_path):
    spec = ValueSpec("x", "float32", (dimension,))
    with pytest.raises(UsageError, match=f"how large its dimension '{re.escape(dimension)}' is"):
        shape_of(spec, {}, tmp_path / "model.onnx")
    assert shape_of(spec, {dimension: 7}, tmp_path / "model.onnx") == (7,)
