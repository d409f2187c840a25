"""Which layers of a written graph take factors, and what these compute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.functions import with_functions
from olivelike.graphs.low_rank import Choice, add_low_rank_inputs, low_rank_layers
from olivelike.model.low_rank_inputs import DOWN, UP, factor_input, strength_input

SIDE, RANK = 4, 2
WEIGHTS = ("twice", "alone", "added", "turned", "last")
MADE_OF = {name: [(f"{name}.weight", (SIDE, SIDE))] for name in WEIGHTS}


@pytest.fixture
def model() -> ir.Model:
    """Products by five weights: two by one, one by another that is added too, by its transpose, and the output's."""
    random = np.random.default_rng(2)
    weights = [
        ir.Value(name=name, const_value=ir.tensor(random.standard_normal((SIDE, SIDE)).astype(np.float32), name=name))
        for name in WEIGHTS
    ]
    for weight in weights:
        weight.shape, weight.type = ir.Shape((SIDE, SIDE)), ir.TensorType(ir.DataType.FLOAT)
    twice, alone, added, turned, last = weights
    taken = ir.Value(name="taken", shape=ir.Shape((SIDE, SIDE)), type=ir.TensorType(ir.DataType.FLOAT))
    nodes: list[ir.Node] = []

    def make(op_type: str, *inputs: ir.Value, name: str) -> ir.Value:
        output = ir.Value(name=name, shape=ir.Shape((SIDE, SIDE)), type=ir.TensorType(ir.DataType.FLOAT))
        nodes.append(ir.node(op_type, list(inputs), outputs=[output], name=name))
        return output

    made = make("MatMul", make("MatMul", taken, twice, name="first"), twice, name="second")
    made = make("MatMul", made, alone, name="third")
    made = make("Add", make("MatMul", made, added, name="fourth"), added, name="sum")
    made = make("MatMul", made, make("Transpose", turned, name="other"), name="fifth")
    made = make("MatMul", make("Add", made, turned, name="more"), last, name="made")
    graph = ir.Graph([taken], [made], nodes=nodes, initializers=weights, opset_imports={"": 20}, name="layers")
    return ir.Model(graph, ir_version=10)


def opened(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])


def test_a_weight_of_several_products_is_one_layer_and_one_that_does_more_than_multiply_none(model: ir.Model) -> None:
    found = low_rank_layers(model, MADE_OF, Choice(2))
    assert [(layer.initializer, [node.name for node in layer.nodes]) for layer in found] == [
        ("twice", ["first", "second"]), ("alone", ["third"])
    ]  # fmt: skip
    assert [one.initializer for one in low_rank_layers(model, MADE_OF, Choice(2, ("*lon*",)))] == ["alone"]
    with pytest.raises(PassError, match="no layer of the graph can take a LoRA"):
        add_low_rank_inputs(model, [], Choice(1))


def test_factors_change_each_product_by_a_weight_and_half_a_pair_is_refused(model: ir.Model) -> None:
    plain, random = opened(model), np.random.default_rng(3)
    weights = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
    add_low_rank_inputs(model, low_rank_layers(model, MADE_OF, Choice(2)), Choice(2))
    session = opened(model)
    taken = random.standard_normal((SIDE, SIDE)).astype(np.float32)
    (wanted,) = plain.run(None, {"taken": taken})
    assert (session.run(None, {"taken": taken})[0] == wanted).all()
    down, up = (random.standard_normal(shape).astype(np.float32) for shape in ((SIDE, RANK), (RANK, SIDE)))
    names = [factor_input(1, "twice", factor) for factor in (DOWN, UP)]
    (found,) = session.run(None, {"taken": taken, **dict(zip(names, (down, up), strict=True))})
    changed = weights["twice"] + down @ up
    made = taken @ changed @ changed @ weights["alone"] @ weights["added"] + weights["added"]
    made = (made @ weights["turned"].T + weights["turned"]) @ weights["last"]
    assert np.abs(found - made).max() < 1e-5 * np.abs(made).max()
    for fed in ((down, np.zeros_like(up)), (np.zeros_like(down), up)):
        assert (session.run(None, {"taken": taken, **dict(zip(names, fed, strict=True))})[0] == wanted).all()
    off = {strength_input(1): np.zeros((), np.float32)}
    assert (session.run(None, {"taken": taken, **dict(zip(names, (down, up), strict=True)), **off})[0] == wanted).all()
    for name, array in zip(names, (down, up), strict=True):
        with pytest.raises(Exception, match="(?i)dimension mismatch|incompatible dimensions|shape mismatch"):
            session.run(None, {"taken": taken, name: array})


ATTENTION = ("query", "key", "value", "out")


def attending(weights: dict[str, np.ndarray]) -> ir.Model:
    """An attention with a bias behind it, and a product that makes the output."""
    values = {
        name: ir.Value(
            name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        for name, array in weights.items()
    }  # fmt: skip
    taken = ir.Value(name="taken", shape=ir.Shape((1, "rows", 8)), type=ir.TensorType(ir.DataType.FLOAT))
    nodes: list[ir.Node] = []

    def make(op_type: str, *inputs: ir.Value, name: str, **attributes: int) -> ir.Value:
        output = ir.Value(name=name, shape=ir.Shape((1, "rows", 8)), type=ir.TensorType(ir.DataType.FLOAT))
        domain = CONTRIB if attributes else ""
        nodes.append(ir.node(op_type, list(inputs), attributes, domain=domain, outputs=[output], name=name))
        return output

    made = [make("MatMul", taken, values[name], name=f"{name}.made") for name in ("query", "key", "value")]
    attended = make("MultiHeadAttention", *made, name="attended", num_heads=2)
    summed = make("Add", make("MatMul", attended, values["out"], name="out.made"), values["bias"], name="summed")
    made_last = make("MatMul", summed, values["last"], name="made")
    graph = ir.Graph(
        [taken], [made_last], nodes=nodes, initializers=list(values.values()), opset_imports={"": 20, CONTRIB: 1},
        name="attention",
    )  # fmt: skip
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(("most", "rows"), [(0, 5), (640, 5), (640, 40)], ids=["wide", "few rows", "many rows"])
def test_layers_are_changed_whether_factors_are_multiplied_by_rows_or_merged(
    most: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("olivelike.graphs.low_rank.merging.MERGED_FEATURES", most)
    random = np.random.default_rng(4)

    def numbers(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    weights = {name: numbers(8, 8) for name in (*ATTENTION, "last")} | {"bias": numbers(8)}
    model, choice = attending(weights), Choice(2)
    made_of = {name: [(f"{name}.weight", (8, 8))] for name in ATTENTION}
    add_low_rank_inputs(model, low_rank_layers(model, made_of, choice), choice)
    assert "MultiHeadAttention" not in [node.op_type for node in model.graph]  # It is in both branches.
    assert ("Gemm" in [node.op_type for node in model.graph.all_nodes()]) == bool(most)
    session, taken = opened(model), numbers(1, rows, 8)
    assert (session.run(None, {"taken": taken})[0] == opened(attending(weights)).run(None, {"taken": taken})[0]).all()
    factors = {(name, slot): (numbers(8, 2 + slot), numbers(2 + slot, 8)) for name in ATTENTION for slot in range(2)}
    for changed in (ATTENTION, ("key",), ("out",)):
        fed = {
            factor_input(slot, name, factor): array
            for (name, slot), pair in factors.items()
            if name in changed
            for factor, array in zip((DOWN, UP), pair, strict=True)
        }
        strength = {strength_input(1): np.array(0.5, np.float32)}
        merged = dict(weights)
        for name in changed:
            merged[name] = weights[name] + sum(
                scale * down @ up
                for scale, (down, up) in zip((1, 0.5), (factors[name, 0], factors[name, 1]), strict=True)
            )
        (wanted,) = opened(attending({name: one.astype(np.float32) for name, one in merged.items()})).run(
            None, {"taken": taken}
        )
        (found,) = session.run(None, {"taken": taken} | fed | strength)
        assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def convolved(filters: np.ndarray) -> ir.Model:
    """Filters of a point over an image whose features are last."""
    weight = ir.Value(
        name="filters", const_value=ir.tensor(filters, name="filters"), shape=ir.Shape(filters.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
    )  # fmt: skip
    kind = ir.TensorType(ir.DataType.FLOAT)
    taken, made, last = (
        ir.Value(name=name, shape=ir.Shape((1, "rows", "columns", features)), type=kind)
        for name, features in (("taken", filters.shape[3]), ("made", filters.shape[0]), ("last", filters.shape[0]))
    )
    sizes = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0, 0, 0, 0]}
    nodes = [
        ir.node("NhwcConv", [taken, weight], sizes, domain=CONTRIB, outputs=[made], name="made"),
        ir.node("Neg", [made], outputs=[last], name="last"),
    ]
    graph = ir.Graph(
        [taken], [last], nodes=nodes, initializers=[weight], opset_imports={"": 20, CONTRIB: 1}, name="image"
    )
    return ir.Model(graph, ir_version=10)


def test_filters_of_a_point_are_a_product_where_features_are_last() -> None:
    """In branches ONNX Runtime gives `NhwcConv` to the CPU, which has none, so that CUDA did not open the graph."""
    random = np.random.default_rng(5)
    filters, down, up, taken = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((8, 1, 1, 6), (RANK, 1, 1, 6), (8, 1, 1, RANK), (1, 3, 5, 6))
    )
    model = convolved(filters)
    layers = low_rank_layers(model, {"filters": [("conv.weight", (8, 6, 1, 1))]}, Choice(1))
    add_low_rank_inputs(model, layers, Choice(1))
    assert [node.op_type for node in model.graph.all_nodes()].count("NhwcConv") == 1
    merged = filters + (up[:, 0, 0] @ down[:, 0, 0]).reshape(filters.shape)
    names = [factor_input(0, "filters", factor) for factor in (DOWN, UP)]
    (wanted,) = opened(with_functions(convolved(merged), all=True)).run(None, {"taken": taken})
    session = opened(with_functions(model, all=True))
    (found,) = session.run(None, {"taken": taken, **dict(zip(names, (down, up), strict=True))})
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
