"""Someone else's graph in today's ONNX: opset 23, sizes known, and operators where exporters spell them out."""

from __future__ import annotations

from typing import Final

import onnx
import onnx_ir as ir
from onnx_ir.passes import common
from onnx_ir.traversal import RecursiveGraphIterator
from onnxscript import optimizer

from olivelike.errors import PassError
from olivelike.graphs.adopt.onnx_sizes import infer_sizes, should_fold
from olivelike.graphs.adopt.onnx_spellings import respell
from olivelike.graphs.fusion.lowering import LOWEST_OPSET, lowest_opset
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY

OPSET: Final = 23
"""What `convert` writes too: the first opset with `Attention`."""
_IR_VERSION = 11


def modernise(model: onnx.ModelProto) -> Graph:
    """Raise a weightless model to opset 23, and write with its operators what is spelled out in smaller ones.

    What can't be raised stays as it is; `fuse` then finds less in it.

    Raises:
        PassError: when the result is not valid ONNX.
    """
    raised = _raise_opset(model)
    graph = ir.from_proto(raised)
    _restamp(graph)
    common.InlinePass()(graph)
    optimizer.fold_constants(graph, onnx_shape_inference=False, should_fold=should_fold)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(graph)
    _remove_repeats(graph)
    known = infer_sizes(graph)
    if known and graph.opset_imports[""] == OPSET:
        optimizer.fold_constants(graph, onnx_shape_inference=False, should_fold=should_fold)
        _remove_repeats(graph)
        respell(graph)
        _remove_repeats(graph)
    for constant in graph.graph.initializers.values():
        assert constant.const_value is not None
        constant.shape, constant.dtype = constant.const_value.shape, constant.const_value.dtype
    modern = Graph.from_ir(graph)
    _check(modern, strict=known)
    return modern


def _check(graph: Graph, *, strict: bool) -> None:
    """Hold the graph to its types and shapes, too, where ONNX's inference knew its way through the original."""
    try:
        onnx.checker.check_model(graph.data)
        if strict:
            onnx.shape_inference.infer_shapes(graph.data, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise PassError(f"the model was brought to a graph that is not valid: {error}; report it") from error


def _raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model at opset 23, with the notes that the converter drops; itself if it can't be raised."""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    if opsets.get("", OPSET) >= OPSET or model.functions or opsets.keys() - {"", "ai.onnx.ml"}:
        return model
    try:
        raised: onnx.ModelProto = onnx.version_converter.convert_version(model, OPSET)
        onnx.checker.check_model(raised)
    except (onnx.version_converter.ConvertError, onnx.checker.ValidationError, RuntimeError):
        return model
    blocks = {node.output[0]: _note(node, BLOCK_KEY) for node in model.graph.node if node.output}
    parameters = {value.name: _note(value, PARAMETER_KEY) for value in model.graph.input}
    for value in raised.graph.input:
        if (parameter := parameters.get(value.name)) and not value.metadata_props:
            value.metadata_props.add(key=PARAMETER_KEY, value=parameter)
    for node in raised.graph.node:
        if (block := blocks.get(node.output[0] if node.output else "")) and not node.metadata_props:
            node.metadata_props.add(key=BLOCK_KEY, value=block)
    raised.ir_version = _IR_VERSION
    return raised


def _note(item: onnx.NodeProto | onnx.ValueInfoProto, key: str) -> str:
    return next((entry.value for entry in item.metadata_props if entry.key == key), "")


def _restamp(model: ir.Model) -> None:
    """Bring a model up that was stamped with the lowest opset that has its operators, as `fuse` does.

    The converter leaves models alone that have operators of other domains.
    """
    current = model.opset_imports.get("", 0)
    if LOWEST_OPSET <= current < OPSET and all(
        node.domain or lowest_opset(node, OPSET) <= current for node in RecursiveGraphIterator(model.graph)
    ):
        model.opset_imports[""] = OPSET


def _remove_repeats(model: ir.Model) -> None:
    common.CommonSubexpressionEliminationPass()(model)
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
