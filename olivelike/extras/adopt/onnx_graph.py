"""A model that someone else exported as a weightless graph, in today's ONNX; run it in a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common
from onnx_ir.traversal import RecursiveGraphIterator
from onnxscript import optimizer

from olivelike.errors import PassError, SourceError
from olivelike.extras.adopt.onnx_sizes import infer_sizes, should_fold
from olivelike.extras.adopt.onnx_spellings import respell
from olivelike.extras.adopt.onnx_table import read_onnx_table
from olivelike.graphs.editing.values import constant_of
from olivelike.graphs.fusion.lowering import LOWEST_OPSET, lowest_opset
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY
from olivelike.sources.files.weight_header import RawTensor
from olivelike.sources.names.adaptation import Adaptation, StoredView

_METADATA_IR_VERSION = 10
"""The first IR version with metadata on values and nodes."""
_ELEMENT_TYPES = {"F32": 1, "F16": 10, "F64": 11, "BF16": 16}
_QUANTISED = frozenset({
    "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear", "MatMulNBits", "MatMulInteger",
    "ConvInteger", "QLinearConv", "QLinearMatMul", "DynamicQuantizeMatMul", "GatherBlockQuantized",
})  # fmt: skip


def load_onnx(component: str, graph_path: Path) -> tuple[Adaptation, Graph]:
    """Return what the table of an ONNX model means, and the model as a weightless graph.

    Weights become graph inputs behind the real ones, in order of name, under their own names. What one exporter spells
    out in small operators is written with the operators of today's ONNX, where that is sure. Raises `SourceError` if a
    file is missing or damaged, or the model is quantised or no valid one.

    Args:
        graph_path: the model file, `Checkpoint.graph`; its data files lie beside it.

    Returns:
        An adaptation without architecture whose names are the stored ones, and the graph: valid, and the same
        bytes for the same model wherever its weights lie.
    """
    table = read_onnx_table(graph_path)
    model = _parse(graph_path, table.graph)
    _refuse_quantised(graph_path, model)
    tensors = {name: tensor for name, (tensor, _) in table.tensors.items()}
    used = _hold_out(model, tensors)
    _keep_block_names_only(model)
    model.graph.name, model.producer_name, model.producer_version = component, "olivelike", ""
    model.ir_version = max(model.ir_version, _METADATA_IR_VERSION)
    _sort(model.graph)
    _check(graph_path, model)
    names = {name: StoredView(name, tensors[name].shape) for name in used}
    unused = tuple(sorted(tensors.keys() - names.keys()))
    try:
        return Adaptation(None, names, unused), modernise(model)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # What the checker lets pass, such as an operator without one of its operands.
        raise SourceError(
            f"{graph_path}: not a valid ONNX model: its parts do not fit together ({error}); export it again"
        ) from error


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise SourceError(f"{path}: not a valid ONNX file; export or download it again") from error
    if not model.opset_import:
        raise SourceError(f"{path}: not a valid ONNX file: it names no opset; export it again")
    return model


def _refuse_quantised(path: Path, model: onnx.ModelProto) -> None:
    found = sorted({node.op_type for node in _all_nodes(model)} & _QUANTISED)
    if found:
        raise SourceError(
            f"{path}: this model is quantised already ({', '.join(found)}); "
            "use its float32 or float16 export as the source, and quantise at the end of the chain"
        )


def _hold_out(model: onnx.ModelProto, tensors: Mapping[str, RawTensor]) -> list[str]:
    """Turn weights into marked graph inputs, in order of name; return those that something uses."""
    graph = model.graph
    nodes = [node for node in graph.node if not _is_held(node, tensors)]
    small = [tensor for tensor in graph.initializer if tensor.name not in tensors]
    # Files of IR version 3 list their initializers among the inputs.
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    wanted = {name for node in _all_nodes(model) for name in node.input}
    wanted |= {value.name for value in graph.output}
    used = sorted(tensors.keys() & wanted)
    for field, kept in ((graph.node, nodes), (graph.initializer, small), (graph.input, inputs)):
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(copies)
    for name in used:
        tensor = tensors[name]
        value = onnx.helper.make_tensor_value_info(name, _ELEMENT_TYPES[tensor.dtype], tensor.shape)
        value.metadata_props.add(key=PARAMETER_KEY, value=name)
        graph.input.append(value)
    described = [value for value in graph.value_info if value.name not in tensors]
    del graph.value_info[:]
    graph.value_info.extend(described)
    return used


def _is_held(node: onnx.NodeProto, tensors: Mapping[str, RawTensor]) -> bool:
    return node.op_type == "Constant" and not node.domain and any(name in tensors for name in node.output[:1])


def _keep_block_names_only(model: onnx.ModelProto) -> None:
    """Drop the exporter's notes, which hold paths and addresses; note the module that a node is from."""
    for owner in (model, model.graph):
        owner.ClearField("metadata_props")
        owner.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.output):
        value.ClearField("metadata_props")
        value.doc_string = ""
    for node in _all_nodes(model):
        node.ClearField("metadata_props")
        node.doc_string = ""
    for node in model.graph.node:
        block = _block(node.name)
        if block:
            node.metadata_props.add(key=BLOCK_KEY, value=block)


def _block(name: str) -> str:
    """Return the module path in a node's name as TorchScript's exporter has it: `/mid_block/norm/Reshape`."""
    parts = re.fullmatch(r"/(.+)/[^/]+", name)
    return parts[1].replace("/", ".") if parts else ""


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        yield from _with_inner(node)


def _with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and those of its subgraphs."""
    yield node
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _with_inner(inner)


def _sort(graph: onnx.GraphProto) -> None:
    """Put nodes behind what they use: ONNX Runtime's float16 converter appends its casts, and runs such graphs."""
    made = {name for node in graph.node for name in node.output if name}
    waiting = [
        (node, {name for inner in _with_inner(node) for name in inner.input} & made - set(node.output))
        for node in graph.node
    ]
    ordered: list[onnx.NodeProto] = []
    known: set[str] = set()
    while waiting:
        left = []
        for node, needed in waiting:
            if needed <= known:
                ordered.append(node)
                known.update(node.output)
            else:
                left.append((node, needed))
        if len(left) == len(waiting):
            return  # a cycle: the checker has the words for it
        waiting = left
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)


def _check(path: Path, model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise SourceError(f"{path}: not a valid ONNX model: {error}; export it again") from error


OPSET: Final = 23
"""Opset that `convert` writes too, the first with `Attention`."""
_IR_VERSION = 11


def modernise(model: onnx.ModelProto) -> Graph:
    """Raise a weightless model to opset 23, and write with its operators what is spelled out in smaller ones.

    What can't be raised stays as it is; `fuse` then finds less in it. Raises `PassError` when the result is not valid
    ONNX.
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
        tensor = constant_of(constant)
        constant.shape, constant.dtype = tensor.shape, tensor.dtype
    modern = Graph.from_ir(graph)
    _check_modern(modern, strict=known)
    return modern


def _check_modern(graph: Graph, *, strict: bool) -> None:
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
