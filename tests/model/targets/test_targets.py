from __future__ import annotations

import json
import subprocess
import sys

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from olivelike.errors import UsageError
from olivelike.graphs.inspect.placement import REGISTRIES
from olivelike.model.targets import ALIASES, TARGETS, Target, find_target, float32_inputs


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_is_found_by_its_name(name):
    assert find_target(name).name == name


def test_an_older_name_finds_the_same_target():
    assert find_target("rocm") is TARGETS["migraphx"]
    assert set(ALIASES.values()) <= set(TARGETS)


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'directml'"):
        find_target("directmll")
    with pytest.raises(UsageError, match="targets: cpu, openvino"):
        find_target("quantum")


def test_importing_targets_imports_no_heavy_library():
    heavy = ("numpy", "onnx", "onnx_ir", "torch")
    code = f"import sys, olivelike.model.targets; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_facts_are_json_and_hold_everything_but_the_session(target):
    facts = json.loads(json.dumps(target.facts()))
    session = {"device_id", "options", "session_options", "run_options", "plugin"}
    assert set(facts) == set(Target.__dataclass_fields__) - session
    assert set(target.lowering()) == {"name", "precision"}
    assert set(facts["kernels"]) == set(target.kernels)


def test_facts_change_with_a_kernel():
    one = Target("t", "P", 20, 10, "fp32", {"BiasAdd": TARGETS["cuda"].kernels["BiasAdd"]})
    other = Target("t", "P", 20, 10, "fp32", {"BiasAdd": TARGETS["cuda"].kernels["BiasGelu"]})
    assert one.facts() != other.facts()


def test_an_operator_without_kernel_has_a_reason():
    assert TARGETS["tensorrt"].kernel("GroupNorm") is None
    assert TARGETS["tensorrt"].why_not("GroupNorm") == "tensorrt has no kernel for GroupNorm"


def test_an_avoided_operator_runs_but_fusion_is_told_not_to_write_it():
    migraphx = TARGETS["migraphx"]
    assert "MultiHeadAttention" in migraphx.kernels
    assert migraphx.kernel("MultiHeadAttention") is None
    assert "AMD" in (migraphx.why_not("MultiHeadAttention") or "")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_only_known_operators_are_avoided(target):
    assert set(target.avoided) <= set(target.kernels)


def test_a_kernel_that_may_be_written_has_no_reason_against_it():
    assert TARGETS["cuda"].kernel("BiasAdd") is TARGETS["cuda"].kernels["BiasAdd"]
    assert TARGETS["cuda"].why_not("BiasAdd") is None


def test_group_norm_keeps_float32_scales_on_cuda_and_not_on_directml():
    assert float32_inputs(TARGETS["cuda"], "GroupNorm") == {1, 2}
    assert float32_inputs(TARGETS["cuda"], "SkipGroupNorm") == {1, 2}
    assert float32_inputs(TARGETS["directml"], "GroupNorm") == frozenset()
    assert float32_inputs(TARGETS["cuda"], "Conv") == frozenset()
    assert float32_inputs(None, "GroupNorm") == frozenset()


@pytest.mark.parametrize("name", REGISTRIES)
def test_each_kernel_of_a_target_is_in_its_providers_registry(name):
    registry = REGISTRIES[name]
    for operator in TARGETS[name].kernels:
        standard = operator.removeprefix("ai.onnx.")
        # GroupNormalization has no kernel anywhere: it runs as its function body.
        assert operator in registry.contrib or standard in {*registry.standard, "GroupNormalization"}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_installed_runtime_reads_each_targets_opset_and_ir_version(target):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], "g", values[:1], values[1:]
    )
    opset = helper.make_opsetid("", target.opset)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=target.ir_version)
    onnx.checker.check_model(model)
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_directml_reads_nothing_whose_kernels_its_last_release_lacks():
    newest = REGISTRIES["directml"].standard
    for operator in ("Conv", "Reshape", "Transpose", "Cast", "Resize", "MatMul", "LayerNormalization", "Sin", "Pad"):
        form = onnx.defs.get_schema(operator, TARGETS["directml"].opset).since_version
        assert form <= newest[operator]
        too_new = onnx.defs.get_schema(operator, 23).since_version > newest[operator]
        assert too_new == (operator in {"Conv", "Reshape", "Transpose", "Cast", "Sin", "Pad"})
