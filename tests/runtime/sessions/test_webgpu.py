"""What is lowered for `webgpu`, run on its provider without the CPU's help; `make test-webgpu` has what that needs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from olivelike.passes.block_weights import Weights4, Weights8
from olivelike.passes.float16 import Float16
from olivelike.passes.fuse import Fuse
from PIL import Image

from olivelike.families.networks import interface_of
from olivelike.graphs.fusion import fuse
from olivelike.graphs.precision import HalfPrecision
from olivelike.graphs.shelf import BUILT_IN, ShelfFolder
from olivelike.graphs.shelf.shelf_folder import Entry
from olivelike.measure.network_sizes import random_inputs
from olivelike.measure.verify.original import run_torch
from olivelike.model import Graph
from olivelike.model.targets import TARGETS
from olivelike.testing import Case, LocalModel, load_model, make_checkpoint, run_pass
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import materialize_model, torch_network
from tests.fixtures.one_node import LIMITS, NODES, Node, relative_error, why_no_webgpu

PROVIDER = "WebGpuExecutionProvider"
WEBGPU = TARGETS["webgpu"]
DEMO = Path(__file__).parents[3] / "olivelike" / "data" / "demo"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def provider() -> None:
    """Skip where there is no provider, or no driver for it."""
    if reason := why_no_webgpu():
        pytest.skip(reason)


_SD = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
FAMILIES = {
    "demo": (*_SD, "safety_checker"),
    "sd15": (*_SD, "safety_checker"),
    "sd15_inpainting": ("unet",),
    "sd21": _SD,
    "sdxl": ("text_encoder", "text_encoder_2", "unet", "vae_encoder", "vae_decoder"),
    "sdxl_refiner": ("text_encoder_2", "unet"),
}
CASES = (Case(2, 8, 16, 77), Case(1, 16, 8, 9))
COMPONENT_LIMITS = {"fp32": 1e-4, "fp16": 5e-2}
"""The provider sums products in float16, which random weights make the most of; the CPU does so in float32."""
DEMO_UNET_LIMIT = 5e-3
PICTURE_LIMIT = 4
"""Of 255, on average."""

STANDARD = {
    "MatMul": Node("MatMul", ((2, 12, 64), (64, 48)), {}, ""),
    "Gemm": Node("Gemm", ((12, 64), (64, 48), (48,)), {}, ""),
    "Conv": Node("Conv", ((2, 16, 6, 4), (8, 16, 3, 3), (8,)), {}, ""),
    "InstanceNormalization": Node("InstanceNormalization", ((16, 1, 4, 6, 4), (1,), (1,)), {}, ""),
    "Softmax": Node("Softmax", ((2, 4, 12, 12),), {}, ""),
    "Gelu": Node("Gelu", ((2, 12, 64),), {}, ""),
    "Sigmoid": Node("Sigmoid", ((2, 12, 64),), {}, ""),
}
"""What else the graphs are made of."""


def open_there(model: str | Path | bytes) -> onnxruntime.InferenceSession:
    """Open a model on WebGPU, and nowhere else."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=[PROVIDER], enable_fallback=False)


def run_there(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    """Run a session on float32 values, halved where it takes that."""
    half = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    halved = {name: value.astype(np.float16) if name in half else value for name, value in feeds.items()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, halved), strict=True))


def error_of(session: onnxruntime.InferenceSession, node: Node, letter: str) -> float:
    """Return how far an operator is off there."""
    values = node.values(letter)
    (result,) = run_there(session, {f"x{index}": value for index, value in enumerate(values)}).values()
    return relative_error(result, node.expected(values))


@cache
def checkpoint(family: str) -> Path:
    """Return a pipeline's folder, small and with random weights, but for the demo."""
    import tempfile

    return DEMO if family == "demo" else make_checkpoint(Path(tempfile.mkdtemp(prefix="olivelike-webgpu-")), family)


@cache
def original(family: str, component: str) -> LocalModel:
    model = load_model(checkpoint(family), component)
    return model.replace(graph=traced_graph(model.require("architecture")))


@cache
def expected(family: str, component: str) -> list[tuple[dict[str, Any], list[np.ndarray]]]:
    """Return inputs, and what torch makes of them in float64."""
    model = original(family, component)
    config = model.require("architecture").config
    network = torch_network(model)
    feeds = [random_inputs(interface_of(model.architecture).inputs, case, config, 0) for case in CASES]
    return [(values, run_torch(network, values)) for values in feeds]


PARTS = [
    pytest.param(family, component, precision, id=f"{family}-{component}-{precision}")
    for family, components in FAMILIES.items()
    for component in components
    for precision in ("fp32", "fp16")
]


@pytest.mark.parametrize(("family", "component", "precision"), PARTS)
def test_a_component_runs_whole_and_agrees_with_torch(family, component, precision, tmp_path, request) -> None:
    lowered = run_pass(Fuse, original(family, component), target=WEBGPU, precision=precision)
    if precision == "fp16":
        lowered = run_pass(Float16, lowered, target=WEBGPU)
    materialize_model(lowered, tmp_path)
    session = open_there(tmp_path / "model.onnx")
    outputs = interface_of(lowered.require("architecture")).outputs
    errors = []
    for feeds, answers in expected(family, component):
        found = run_there(session, feeds)
        errors += [
            relative_error(found[name], answer) for name, answer in zip(outputs, answers, strict=True) if answer.any()
        ]
    request.node.user_properties.append(("relative error", f"{max(errors):.1e}"))
    strict = (family, component, precision) == ("demo", "unet", "fp16")
    assert max(errors) <= (DEMO_UNET_LIMIT if strict else COMPONENT_LIMITS[precision])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_published_network_opens_whole_at_its_real_size(precision: str) -> None:
    opened = 0
    for path, entry in ShelfFolder(BUILT_IN).entries():
        assert isinstance(entry, Entry), path
        graph = ShelfFolder(BUILT_IN).read(entry.kind, entry.question) if entry.kind == "graph" else None
        if graph is not None:
            model = Graph(graph).to_ir()
            fuse(model, WEBGPU, precision=precision)
            if precision == "fp16":
                HalfPrecision(model, target=WEBGPU).convert()
            open_there(Graph.from_ir(model).data)  # Weights are inputs.
            opened += 1
    assert opened > 20


@pytest.mark.parametrize("first", ["f", "h"])
@pytest.mark.parametrize("operator", [*STANDARD, *WEBGPU.kernels.keys() - WEBGPU.avoided.keys()])
def test_an_operator_is_right_beside_itself_in_the_other_precision(operator: str, first: str) -> None:
    node = STANDARD.get(operator) or NODES[operator]
    claimed = WEBGPU.kernels[operator].dtypes if operator in WEBGPU.kernels else frozenset("fh")
    opened = []  # The provider keeps its shaders for as long as one session lives.
    for letter in (first, *({"f", "h"} - {first})):
        if letter in claimed:
            opened.append(open_there(node.model(letter).SerializeToString()))
            assert error_of(opened[-1], node, letter) <= LIMITS[letter]


@pytest.mark.parametrize("letter", ["f", "h"])
@pytest.mark.parametrize("operator", ["Attention", "MultiHeadAttention"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_is_wrong_here_as_long_as_it_is_avoided(operator: str, letter: str, causal: int) -> None:
    node = NODES[operator]
    node = Node(node.op_type, node.shapes, {**node.attributes, "unidirectional": causal})
    error = error_of(open_there(node.model(letter).SerializeToString()), node, letter)
    assert error > LIMITS[letter], f"it is mended; `avoided` of webgpu need not have {operator} for this release"


def test_bias_add_is_wrong_here_as_long_as_it_is_avoided() -> None:
    node = NODES["BiasAdd"]
    opened = [open_there(node.model(letter).SerializeToString()) for letter in "fh"]
    errors = [error_of(session, node, letter) for session, letter in zip(opened, "fh", strict=True)]
    assert errors[0] <= LIMITS["f"]
    assert not errors[1] <= LIMITS["h"], "it is mended; `avoided` of webgpu need not have BiasAdd for this release"


def olivelike(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "olivelike", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **variables}, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the demo, written for WebGPU in both precisions, and for the CPU."""
    root = tmp_path_factory.mktemp("demo")
    made = {}
    for target, precision in (("webgpu", "fp16"), ("webgpu", "fp32"), ("cpu", "fp32")):
        made[f"{target}-{precision}"] = folder = root / f"{target}_{precision}"
        done = olivelike(
            "convert", "demo", "--target", target, "--precision", precision, "--output", folder,
            "--cache-dir", root / "cache",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_picture_is_that_of_the_cpu(folders: dict[str, Path], precision: str, tmp_path: Path, request) -> None:
    pictures = []
    for name, provider in ((f"webgpu-{precision}", PROVIDER), ("cpu-fp32", "cpu")):
        path = tmp_path / f"{name}.png"
        done = olivelike(
            "generate", folders[name], "a red circle on a blue background", "--seed", "1", "--steps", "20",
            "--provider", provider, "--output", path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with Image.open(path) as picture:
            pictures.append(np.asarray(picture, dtype=float))
    difference = np.abs(pictures[0] - pictures[1])
    request.node.user_properties.append(
        ("of 255", f"{difference.mean():.2f} on average, {difference.max():.0f} at most")
    )
    assert pictures[1].std() > 20
    assert difference.mean() <= PICTURE_LIMIT


def test_a_missing_driver_is_told_with_its_remedy(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    done = olivelike(
        "generate", folders["webgpu-fp16"], "a red circle", "--provider", PROVIDER, "--output", path,
        VK_ICD_FILENAMES="/nowhere.json",
    )  # fmt: skip
    assert done.returncode == 3
    assert "no graphics card is found" in done.stderr
    assert "run with --provider cpu" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("quantise", [Weights8, Weights4])
@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_decoder"])
def test_weights_in_blocks_run_whole_and_as_on_the_cpu(component, quantise, precision, tmp_path) -> None:
    there = run_pass(Fuse, original("demo", component), target=WEBGPU, precision=precision)
    if precision == "fp16":
        there = run_pass(Float16, there, target=WEBGPU)
    cpu, paths = TARGETS["cpu"], {}
    for target, model in ((WEBGPU, there), (cpu, run_pass(Fuse, original("demo", component), target=cpu))):
        paths[target.name] = tmp_path / target.name
        paths[target.name].mkdir()
        materialize_model(run_pass(quantise, model, target=target), paths[target.name])
    session = open_there(paths["webgpu"] / "model.onnx")
    on_cpu = onnxruntime.InferenceSession(paths["cpu"] / "model.onnx", providers=["CPUExecutionProvider"])
    for feeds, _ in expected("demo", component):
        found, same = run_there(session, feeds), run_there(on_cpu, feeds)
        assert max(relative_error(found[name], same[name]) for name in same) <= COMPONENT_LIMITS[precision]
