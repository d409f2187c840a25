from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from one_node import one_node, random

from olivelike.errors import PassError
from olivelike.graphs.functions import with_functions

HALF = np.float16


def swapped(op_type, arrays, **kwargs):
    """The domain that the node ends up in."""
    model = with_functions(ir.from_proto(one_node(op_type, arrays, **kwargs)))
    return model.graph[0].domain


def two_quick_gelus(*alphas):
    model = one_node("QuickGelu", [random(2, 3, dtype=HALF)])
    (node,) = model.graph.node
    del model.graph.node[:]
    for index, alpha in enumerate(alphas):
        another = onnx.NodeProto()
        another.CopyFrom(node)
        another.input[0] = f"between_{index - 1}" if index else "input_0"
        another.output[0] = "output_0" if index == len(alphas) - 1 else f"between_{index}"
        another.attribute.append(onnx.helper.make_attribute("alpha", alpha))
        model.graph.node.append(another)
    for index in range(len(alphas) - 1):
        value = onnx.helper.make_tensor_value_info(f"between_{index}", onnx.TensorProto.FLOAT16, [2, 3])
        model.graph.value_info.append(value)
    return ir.from_proto(model)


def test_a_graph_without_fused_operators_comes_back_as_it_was():
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", info[:1], info[1:]))
    assert ir.to_proto(with_functions(ir.from_proto(model), all=True)) == ir.to_proto(ir.from_proto(model))


def test_swapping_twice_changes_nothing_more():
    model = ir.from_proto(one_node("GroupNorm", [random(1, 2, 2, 4), random(4), random(4)], groups=2, activation=0))
    once = with_functions(model, all=True)
    assert ir.to_proto(with_functions(once, all=True)) == ir.to_proto(once)


def test_the_given_model_is_not_changed():
    model = ir.from_proto(one_node("BiasAdd", [random(1, 2, 4), random(4), random(1, 2, 4)]))
    before = ir.to_proto(model)
    with_functions(model)
    assert ir.to_proto(model) == before


def test_operators_with_a_cpu_kernel_stay_unless_all_are_asked_for():
    query = random(1, 2, 4)
    assert swapped("MultiHeadAttention", [query, query, query], num_heads=2) == "com.microsoft"


def test_packed_attention_is_swapped():
    assert swapped("MultiHeadAttention", [random(1, 2, 2, 3, 4)], num_heads=2) == "olivelike.graphs.functions"
    packed_kv = [random(1, 2, 8), random(1, 2, 2, 2, 4)]
    assert swapped("MultiHeadAttention", packed_kv, num_heads=2) == "olivelike.graphs.functions"


def test_half_precision_is_swapped_where_the_cpu_kernel_takes_float32_alone():
    half = random(1, 2, 4, dtype=HALF)
    assert swapped("MultiHeadAttention", [half, half, half], num_heads=2) == "olivelike.graphs.functions"
    gamma = random(4, dtype=HALF)
    assert swapped("SkipLayerNormalization", [half, half, gamma]) == "com.microsoft"


def test_nodes_of_one_form_share_a_function():
    assert len(with_functions(two_quick_gelus(1.5, 1.5)).functions) == 1


def test_nodes_that_differ_in_an_attribute_get_functions_of_their_own():
    assert len(with_functions(two_quick_gelus(1.5, 1.702, 1.5)).functions) == 2


def test_fused_operators_inside_a_branch_are_swapped():
    then = onnx.helper.make_graph(
        [onnx.helper.make_node("BiasSplitGelu", ["x", "b"], ["t"], domain="com.microsoft")],
        "then",
        [],
        [onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None)],
    )
    otherwise = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["e"])],
        "else",
        [],
        [onnx.helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)],
    )
    model = one_node("BiasSplitGelu", [random(1, 2, 4), random(4)])
    model.graph.input[0].name, model.graph.input[1].name = "x", "b"
    model.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["output_0"], then_branch=then, else_branch=otherwise))
    result = ir.to_proto(with_functions(ir.from_proto(model)))
    (branch,) = (a.g for a in result.graph.node[0].attribute if a.name == "then_branch")
    assert branch.node[0].domain == "olivelike.graphs.functions"


@pytest.mark.parametrize(
    ("op_type", "arrays", "options", "reason"),
    [
        ("Attention", [random(1, 2, 4), random(4, 12), random(12), np.ones(1, np.int32)], {}, "a mask with 1 axes"),
        ("MultiHeadAttention", [random(1, 2, 4), random(1, 2, 2, 2), random(1, 2, 2, 2)], {}, r"\(B,N,L,D\)"),
        ("Attention", [random(1, 2, 4), random(4, 12), random(12)], {"do_rotary": 1}, "rotary"),
        ("MultiHeadAttention", [random(1, 2, 4)] * 3 + [None] * 3 + [random(1, 2, 1, 2)], {}, "past_key"),
    ],
)
def test_a_form_without_a_stated_meaning_is_refused_with_its_reason(op_type, arrays, options, reason):
    model = ir.from_proto(one_node(op_type, arrays, num_heads=2, **options))
    with pytest.raises(PassError, match=reason):
        with_functions(model, all=True)


def test_an_unknown_activation_is_refused():
    arrays = [random(1, 2, 2, 4), random(4), random(4)]
    with pytest.raises(PassError, match="activation 2"):
        with_functions(ir.from_proto(one_node("GroupNorm", arrays, groups=2, activation=2)))


def test_a_missing_operand_is_refused_by_name():
    with pytest.raises(PassError, match="needs the inputs X, bias, skip"):
        with_functions(ir.from_proto(one_node("BiasAdd", [random(1, 2, 4), random(4)])))


def test_an_opset_older_than_the_statements_is_refused():
    model = ir.from_proto(one_node("BiasSplitGelu", [random(1, 2, 4), random(4)], opset=16))
    with pytest.raises(PassError, match="at opset 16"):
        with_functions(model)
