"""What tables claim, run on its provider: every operator in every dtype, against what the operator means."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from olivelike.model.targets import TARGETS, Target
from tests.fixtures.one_node import ARRAYS, LIMITS, NODES, relative_error, why_no_webgpu

CLAIMS = [
    pytest.param(
        target, operator, letter,
        id=f"{target.name}-{operator}-{letter}",
        marks=[pytest.mark.slow] if target.name == "webgpu" else [],
    )
    for target in (TARGETS["cpu"], TARGETS["openvino"], TARGETS["webgpu"])
    for operator, kernel in target.kernels.items()
    for letter in sorted(kernel.dtypes)
]  # fmt: skip


def run(target: Target, model: onnx.ModelProto, feeds: list[np.ndarray]) -> np.ndarray:
    """Run a model on a target's provider, and on nothing else."""
    if target.provider == "OpenVINO":
        openvino = pytest.importorskip("openvino", reason="install olivelike[openvino] to test its target")
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", hint)
        return next(iter(compiled(feeds).values()))
    if target.name == "webgpu" and (reason := why_no_webgpu()):
        pytest.skip(reason)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if target.name != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[target.provider], enable_fallback=False
    )
    (result,) = session.run(None, {value.name: feed for value, feed in zip(session.get_inputs(), feeds, strict=True)})
    return result


@pytest.mark.parametrize(("target", "operator", "letter"), CLAIMS)
def test_what_a_table_claims_runs_and_is_right(target: Target, operator: str, letter: str) -> None:
    node = NODES[operator]
    if target.name == "webgpu" and operator in {"Attention", "MultiHeadAttention"}:
        node = node.narrower(24)  # Right where heads are no multiple of 4 wide; `test_webgpu.py` has the rest.
    kept = target.kernels[operator].float32_inputs
    # bfloat16 is no type of numpy's that an engine takes: it is cast to and from inside.
    border = "f" if letter == "b" else ""
    values = node.values(letter, kept)
    feeds = [value.astype(ARRAYS["f"]) for value in values] if border else values
    result = run(target, node.model(letter, kept, border), feeds)
    assert relative_error(result, node.expected(values)) <= LIMITS[letter]
