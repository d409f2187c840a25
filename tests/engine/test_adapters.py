"""LoRAs as inputs of a graph: the pass `lora_inputs`, and `olivelike adapters` for ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from olivelike.cli.app import run_command_line
from olivelike.engine.output.initializers import Initializers
from olivelike.engine.output.low_rank_factors import LoraGraphs, lora_factors, write_adapters
from olivelike.engine.output.swap import swap_loras
from olivelike.errors import SourceError, UsageError
from olivelike.model.low_rank_inputs import DOWN, LORA_INPUTS_FILE, UP, strength_input
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora
from olivelike.testing.models import load_model
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.little_transformers import little_transformer
from tests.fixtures.transformer_loras import File, write

from .conftest import Project, run_project

WORKFLOW = """
name: small
source: ./checkpoint
target: cpu
components:
  text_encoder: [convert, fuse, lora_inputs]
  unet: [convert, fuse, lora_inputs]
output: models/small
"""
TRANSFORMER = """
name: small
source: {source}
target: cpu
components:
  transformer: [convert, fuse, lora_inputs]
output: models/small
"""
TOKENS = {"transformer_cells": 16, "transformer_squares": 16, "transformer_text_sequence": 6}
BOTH = ("text_encoder", "unet")
STRENGTHS = {"one": 0.8, "two": 0.5}
PER_LAYER = 2


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has run, with two LoRAs; tests write other outputs alone."""
    folder = tmp_path_factory.mktemp("adapters")
    base = little_checkpoint("attending")
    (folder / "checkpoint").symlink_to(base)
    for seed, name in enumerate(STRENGTHS):
        make_lora(folder / f"{name}.safetensors", "kohya", base=base, seed=seed, modules="attention+ff")
    return run_project(folder, WORKFLOW, base, *BOTH)


def weighted(project: Project, name: str, weight: float = 1.0) -> WeightedLora:
    return WeightedLora(open_lora(project.folder / f"{name}.safetensors"), weight)


def opened(path: Path, arrays: dict[str, np.ndarray] | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # Each value that can be fed is warned of.
    given = arrays or {}
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in given.values()]
    options.add_external_initializers(list(given), values)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.kept = values
    return session


def feeds(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    if [value.name for value in session.get_inputs()] == ["input_ids"]:
        (ids,) = session.get_inputs()
        return {"input_ids": random.integers(0, 40, (2, 77)).astype(ids.type[7:-1])}
    return {
        "sample": random.standard_normal((2, 4, 16, 24)).astype(np.float32),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((2, 7, 32)).astype(np.float32),
    }


@pytest.mark.parametrize("component", BOTH)
def test_two_adapters_at_their_strengths_are_both_loras_merged(
    project: Project, component: str, tmp_path: Path
) -> None:
    folder = project.output / component
    write_adapters(project.output, [[weighted(project, name)] for name in STRENGTHS], tmp_path)
    loras = [weighted(project, name, weight) for name, weight in STRENGTHS.items()]
    merged = opened(folder / "model.onnx", swap_loras(project.output, loras)[component])
    session, given = opened(folder / LORA_INPUTS_FILE), feeds(merged)
    options, adapters = onnxruntime.RunOptions(), []
    for slot, name in enumerate(STRENGTHS):
        adapters.append(onnxruntime.LoraAdapter())
        adapters[-1].Load(str(tmp_path / component / f"{name}{f'.{slot}' if slot else ''}.onnx_adapter"))
        options.add_active_adapter(adapters[-1])
    strengths = {strength_input(slot): np.array(one, np.float32) for slot, one in enumerate(STRENGTHS.values())}
    plain = opened(folder / "model.onnx").run(None, given)
    found = session.run(None, given | strengths, options)
    for wanted, array, base in zip(merged.run(None, given), found, plain, strict=True):
        assert np.abs(wanted - array).max() < 2e-6 * np.abs(wanted).max()
        if (wanted != base).any():
            assert np.abs(wanted - base).max() > 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("family", ["flux2", pytest.param("flux", marks=pytest.mark.slow)])
def test_a_transformer_takes_factors_and_without_them_is_the_plain_one_to_the_bit(family: str, tmp_path: Path) -> None:
    source = little_transformer(family)
    project = run_project(tmp_path, TRANSFORMER.format(source=source), source, "transformer")
    folder = project.output / "transformer"
    shapes = {name: tensor.shape for name, tensor in load_model(source, "transformer").weights.items()}
    lora = open_lora(write(File(family, "PEFT", "transformer.", only="_blocks"), shapes, tmp_path / "ink.safetensors"))
    graph = LoraGraphs(project.output)["transformer"]
    fed = {**graph.factors([WeightedLora(lora, 1.0)]).for_slot(1), strength_input(1): np.array(0.8, np.float32)}
    merged = opened(folder / "model.onnx", swap_loras(project.output, [WeightedLora(lora, 0.8)])["transformer"])
    plain, session = (opened(folder / name) for name in ("model.onnx", LORA_INPUTS_FILE))
    random = np.random.default_rng(4)
    given = {
        one.name: random.uniform(1, 4, [dim if isinstance(dim, int) else TOKENS.get(dim, 1) for dim in one.shape])
        .astype(np.int64 if one.type == "tensor(int64)" else np.float32)
        for one in plain.get_inputs()
    }  # fmt: skip
    (wanted,), (base,) = merged.run(None, given), plain.run(None, given)
    (found,), (without,) = session.run(None, {**given, **fed}), session.run(None, given)
    assert (without == base).all()
    assert np.abs(found - wanted).max() < 2e-6 * np.abs(wanted).max()
    assert np.abs(wanted - base).max() > 1e-3 * np.abs(wanted).max()


def test_without_loras_it_is_the_plain_network(project: Project) -> None:
    for component in BOTH:
        plain, session = (opened(project.output / component / name) for name in ("model.onnx", LORA_INPUTS_FILE))
        assert [one.name for one in session.get_inputs()] == [one.name for one in plain.get_inputs()]
        given = feeds(plain)
        for wanted, array in zip(plain.run(None, given), session.run(None, given), strict=True):
            assert np.abs(wanted - array).max() < 2e-6


def test_without_convolutions_it_is_that_to_the_bit(project: Project) -> None:
    project.run(
        "components.unet=[convert, fuse, {lora_inputs: {convolutions: none, slots: 1}}]",
        "components.text_encoder=[convert, fuse]",
        "output=models/exact",
    )
    folder = project.folder / "models" / "exact"
    plain, session = (opened(folder / "unet" / name) for name in ("model.onnx", LORA_INPUTS_FILE))
    given = feeds(plain)
    assert (plain.run(None, given)[0] == session.run(None, given)[0]).all()
    assert not (folder / "text_encoder" / LORA_INPUTS_FILE).exists()
    with pytest.raises(SourceError, match="text_encoder takes no factors; put `lora_inputs` at the end"):
        lora_factors(folder, [weighted(project, "one")])


def test_without_defaults_who_feeds_all_gets_the_same(project: Project) -> None:
    steps = "{lora_inputs: {slots: 1, defaults: false}}"
    project.run(
        f"components.unet=[convert, fuse, {steps}]", "components.text_encoder=[convert, fuse]", "output=models/required"
    )
    factors = lora_factors(project.output, [weighted(project, "one", 0.8)])["unet"].for_slot(0)
    session = opened(project.folder / "models" / "required" / "unet" / LORA_INPUTS_FILE)
    empty = {
        one.name: np.zeros([size if isinstance(size, int) else 0 for size in one.shape], np.float32)
        for one in session.get_inputs()
    }
    assert factors.keys() < empty.keys()
    merged = opened(
        project.output / "unet" / "model.onnx", swap_loras(project.output, [weighted(project, "one", 0.8)])["unet"]
    )
    given = feeds(merged)
    (wanted,) = merged.run(None, given)
    (found,) = session.run(None, empty | factors | given | {strength_input(0): np.array(1, np.float32)})
    assert np.abs(wanted - found).max() < 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        ("cuda", "fuse, float16"),
        ("cpu", "fuse, weights8"),
        pytest.param("cpu", "fuse, weights4", marks=pytest.mark.slow),
    ],
)
def test_factors_are_what_a_merge_does_to_the_weights(project: Project, target: str, steps: str) -> None:
    """In packed matrices too, whose columns are moved; of quantised weights, to the number before they were."""
    name = f"{target}-{steps}".replace(", ", "-")
    chain = f"[convert, {steps}, lora_inputs]"
    project.run(
        f"target={target}", f"components.unet={chain}", f"components.text_encoder={chain}", f"output=models/{name}"
    )
    folder = project.folder / "models" / name
    (found,) = (one for part, one in lora_factors(folder, [weighted(project, "one")]).items() if part == "unet")
    wanted = lora_factors(project.output, [weighted(project, "one")])["unet"]
    layers = {layer for layer, _ in found.arrays}
    assert layers
    if "weights" in steps:  # Nothing is packed: they are those of float32.
        for key, array in found.arrays.items():
            if key in wanted.arrays:
                assert (array == wanted.arrays[key]).all()
        return
    stored = Initializers(folder / "unet" / "model.onnx")
    changed = swap_loras(folder, [weighted(project, "one")], only=("unet",))["unet"]
    assert layers == changed.keys()
    packed = 0
    for layer in layers:
        down, up = (found.arrays[layer, factor] for factor in (DOWN, UP))
        packed += down.shape[-1] > wanted.rank and down.ndim == PER_LAYER
        difference = changed[layer].astype(np.float32) - stored.read(layer).astype(np.float32)
        if down.ndim != PER_LAYER:
            continue
        product = down.astype(np.float32) @ up.astype(np.float32)
        product = product if product.shape == difference.shape else product.T
        assert np.abs(product - difference).max() < 4e-3 * max(1, np.abs(changed[layer]).max())
    assert packed


def test_the_command_writes_a_file_for_each_place_and_a_table(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"{project.folder / name}.safetensors:{weight}" for name, weight in STRENGTHS.items()]
    command = ["adapters", str(project.output), *files, "-o", str(tmp_path)]
    assert run_command_line([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["adapters"]
    assert [(one["name"], one["component"]) for one in found] == [
        (name, component) for name in STRENGTHS for component in BOTH
    ]
    for one in found:
        assert [(tmp_path / file).stat().st_size for file in one["files"]] == [
            pytest.approx(one["nbytes"], rel=0.01)
        ] * 2
    assert run_command_line([*command, "--together", "both"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["adapter", "network", "rank", "layers", "size"]
    assert [line.split()[0] for line in lines[1:]] == ["both"] * 2
    assert (tmp_path / "unet" / "both.1.onnx_adapter").is_file()


def test_what_is_no_product_of_factors_or_has_no_place_is_refused(project: Project, tmp_path: Path) -> None:
    dora = make_lora(tmp_path / "dora.safetensors", "dora", base=little_checkpoint("attending"), seed=4)
    with pytest.raises(SourceError, match="changed by a DoRA, LoHa, LoKr or a Tucker decomposition"):
        lora_factors(project.output, [WeightedLora(open_lora(dora), 1.0)])
    project.run(
        "components.unet=[convert, fuse, {lora_inputs: {layers: ['*.attn2.*']}}]", "output=models/few",
        "components.text_encoder=[convert, fuse, lora_inputs]",
    )  # fmt: skip
    with pytest.raises(SourceError, match=r"unet: the LoRAs change \d+ layers that take no factors, such as down_"):
        lora_factors(project.folder / "models" / "few", [weighted(project, "one")])
    with pytest.raises(UsageError, match="two LoRAs are called 'one'"):
        write_adapters(project.output, [[weighted(project, "one")]] * 2, tmp_path)
    with pytest.raises(UsageError, match="is no name of a file"):
        write_adapters(project.output, [[weighted(project, "one")]], tmp_path, "../out")
    assert [path.name for path in tmp_path.iterdir()] == ["dora.safetensors"]


def test_one_file_has_no_further_graph(project: Project) -> None:
    with pytest.raises(UsageError, match="layout single-ids is one file, and lora_inputs writes a graph beside each"):
        project.run("layout=single-ids")
