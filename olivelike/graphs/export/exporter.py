"""Trace a network with torch's exporter and turn the result into a weightless graph.

It is simplified: what is constant is folded, what is dead dropped, every block name kept.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
import weakref
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError
from olivelike.families.network import Interface, stored_values
from olivelike.families.networks import interface_of, network_of
from olivelike.families.networks.operators import with_operators
from olivelike.families.supported import check_network, first_line
from olivelike.graphs.editing.values import renamed
from olivelike.graphs.export.torch_network import PREFIX, build_network, replace_stored_by_fakes, wrap
from olivelike.model.components import PREVIEW
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY, Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir
    import torch
    from onnxscript.rewriter import RewriteRule

    from olivelike._untrusted import Json
    from olivelike.model import Architecture

OPSET = 23
"""The first opset with `Attention`; `GroupNormalization` (21) and `Gelu` (20) survive too."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_RULES: Final = (
    "mul_by_1_rule", "add_0_rule", "sub_0_rule", "div_by_1_rule", "dropout_zero_rule", "dropout_inference_rule",
    "one_reshape_matmul_reshape_rule", "two_reshapes_matmul_reshape_rule",
    "cast_constant_of_shape_rule", "cast_constant_of_shape_without_value_rule",
    "collapse_slice_rule", "collapse_slice2_rule", "materialize_reshape_shape_rule",
    "cast_cast_rule", "no_op_cast_rule", "no_op_expand_rule", "flatten_to_reshape_rule", "reshape_reshape_rule",
    "no_op_transpose_rule", "transpose_transpose_rule", "unsqueeze_unsqueeze_rule", "squeeze_reshape_1d_rule",
    "normalize_pad_format_conv_rule", "fuse_pad_into_conv_rule",
    "remove_optional_bias_from_conv_rule", "remove_optional_bias_from_gemm_rule",
)  # fmt: skip
"""Common rules of onnxscript for operators that these networks may have, in the order of its optimiser.

`slice_split_rule` is left out: it looks through the whole graph for each node, which took 7 s for a UNet."""
_NEWER: Final = {"materialize_reshape_shape_rule": (0, 7, 1)}
"""The release of onnxscript that a rule came with, where supported ones lack it."""
_ROUNDS: Final = 2


def export_component(architecture: Architecture, logger: logging.Logger, *, any_size: bool = False) -> Graph:
    """Export the network of `architecture` to a weightless graph at opset 23.

    Batch, height, width and sequence are dynamic. Inputs and outputs are those of
    `olivelike.families.networks`; all floats are float32.

    With `any_size`, a UNet brings each level on its way up to the size that it had on the way down; else it doubles it.
    Raises `PassError` when the library refuses the config or the exporter fails, and `SourceError` when the network is
    not supported.
    """
    check_network(architecture.component, architecture.class_name, architecture.config)
    interface = interface_of(architecture)
    if any_size:
        interface = _traced_unevenly(interface, architecture)
    built = build_network(architecture)
    if (known := network_of(architecture.component, architecture.class_name)) is not None:
        known.as_operators(built)
    network = wrap(architecture.component, built)
    # Weak: Stable Diffusion 3.5's table of positions alone has 0.9 GB, and fakes stand in for it.
    originals = [weakref.ref(value) for value in stored_values(network).values()]
    logger.info("tracing %s", architecture.class_name)
    model = _trace(network, interface, architecture, logger)
    _restrict_names(model.graph, interface)
    _hold_weights_out(model.graph, set(stored_values(network)), originals)
    _divide_down(model.graph)
    _keep_block_names_only(model)
    logger.info("simplifying %d nodes", len(model.graph))
    simplify(model)
    model.ir_version = 11
    model.producer_name, model.producer_version = "olivelike", ""
    model.graph.name = "vae_decoder" if architecture.component == PREVIEW else architecture.component
    return Graph.from_ir(model)


def _traced_unevenly(interface: Interface, architecture: Architecture) -> Interface:
    network = network_of(architecture.component, architecture.class_name)
    if network is None or network.uneven is None:
        raise PassError(
            f"{architecture.component}: any_size is for the UNet; what else there is takes any size as it is"
        )
    return network.uneven(interface)


def _trace(
    network: torch.nn.Module, interface: Interface, architecture: Architecture, logger: logging.Logger
) -> ir.Model:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    replace_stored_by_fakes(network, mode)
    with mode:
        arguments = {
            value.name: torch.zeros(value.example, dtype=getattr(torch, value.dtype)) for value in interface.inputs
        }
    dynamic = torch.export.Dim.DYNAMIC
    shapes = {
        value.name: {
            axis: dynamic
            for axis, (dim, size) in enumerate(zip(value.dims, value.example, strict=True))
            if dim is not None and size > 1
        }
        for value in interface.inputs
    }
    with _quiet(), torch.no_grad(), with_operators(network.network):
        try:
            program = torch.onnx.export(
                network,
                kwargs=arguments,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                optimize=False,
                verbose=False,
                input_names=[value.name for value in interface.inputs],
                output_names=list(interface.outputs),
            )
        except torch.onnx.errors.OnnxExporterError as error:
            logger.exception("torch.onnx.export can't trace %s", architecture.class_name)
            raise PassError(
                f"{architecture.component}: torch.onnx.export can't trace {architecture.class_name}: "
                f"{first_line(_first_cause(error))}; compare its config.json with "
                "that of a network that works, or leave the component out (the log has all that torch said)"
            ) from error
    if program is None:
        raise PassError(f"{architecture.component}: torch.onnx.export returned nothing")
    model: ir.Model = program.model
    return model


def _first_cause(error: BaseException) -> BaseException:
    """Return what an error was first about; those that torch raises on top of it are pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks on missing torchvision and on its own deprecations.

    Levels and warning filters belong to the process, so other threads are silenced for that time, too.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _restrict_names(graph: ir.Graph, interface: Interface) -> None:
    """Give dynamic dimensions the interface's names, in inputs, outputs and all values between."""
    import onnx_ir as ir

    names: dict[str, str] = {}
    for value, described in zip(graph.inputs, interface.inputs, strict=True):
        assert value.shape is not None
        for axis, name in enumerate(described.dims):
            dim = value.shape[axis]
            if name is not None and isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                names.setdefault(dim.value, name)
    for value in _all_values(graph):
        if value.shape is not None:
            value.shape = ir.Shape(
                [
                    renamed(dim.value, names) if isinstance(dim, ir.SymbolicDim) and dim.value is not None else dim
                    for dim in value.shape
                ]
            )
    for value, described in zip(graph.inputs, interface.inputs, strict=True):
        assert value.shape is not None
        value.shape = ir.Shape(
            [size if name is None else name for name, size in zip(described.dims, value.shape, strict=True)]
        )
    inputs = {value.name: value for value in graph.inputs}
    for value in graph.outputs:
        like = inputs.get(interface.sized_like.get(value.name or "", ""))
        if like is not None and like.shape is not None and value.shape is not None:
            value.shape = ir.Shape([like.shape[0], value.shape[1], *like.shape[2:]])


def _all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _hold_weights_out(graph: ir.Graph, parameters: set[str], originals: Collection[weakref.ref[torch.Tensor]]) -> None:
    """Turn what files store into marked graph inputs, in order of name; drop those that nothing uses.

    Raises `PassError` where a constant is left that files store.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    held: dict[str, ir.Value] = {}
    for name in sorted(parameters & set(graph.initializers)):
        value = graph.initializers.pop(name)
        if not value.uses():
            continue
        value.const_value = None
        parameter = name.removeprefix(PREFIX)
        value.name = parameter
        value.metadata_props[PARAMETER_KEY] = parameter
        held[parameter] = value
    graph.inputs.extend(held.values())
    for name, value in graph.initializers.items():
        raw = getattr(value.const_value, "raw", None)
        if isinstance(raw, FakeTensor) or any(raw is not None and raw is original() for original in originals):
            raise PassError(
                f"the traced graph has a constant, {name!r}, of what files store, so that no checkpoint's own numbers "
                "would enter; the network's forward must take it from the module that owns it"
            )


def _divide_down(graph: ir.Graph) -> None:
    """Let sizes that are negative be rounded down as they are halved: torch's `//` does, and ONNX's Div rounds to 0."""
    import onnx_ir as ir

    for node in list(graph):
        size = node.inputs[0] if node.op_type == "Div" else None
        product = None if size is None else size.producer()
        if size is None or size.dtype != ir.DataType.INT64 or product is None or product.op_type != "Mul":
            continue
        factors = [ir.convenience.get_const_tensor(factor) for factor in product.inputs if factor is not None]
        if all(factor is None or factor.numpy().min() >= 0 for factor in factors):
            continue
        rest = ir.node("Mod", [size, node.inputs[1]], metadata_props=dict(node.metadata_props))
        whole = ir.node("Sub", [size, rest.outputs[0]], metadata_props=dict(node.metadata_props))
        for made in (rest, whole):
            made.outputs[0].dtype, made.outputs[0].shape = size.dtype, size.shape
            graph.insert_before(node, made)
        node.replace_input_with(0, whole.outputs[0])


def _keep_block_names_only(model: ir.Model) -> None:
    """Drop the exporter's notes, which hold paths and addresses, but for the module that a node is from."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.doc_string = model.graph.doc_string = None
    for node in model.graph:
        block = _block(node.metadata_props.get(_SCOPES, ""))
        node.metadata_props.clear()
        node.doc_string = None
        if block:
            node.metadata_props[BLOCK_KEY] = block
    for value in _all_values(model.graph):
        kept: Json = {key: value.metadata_props[key] for key in (PARAMETER_KEY,) if key in value.metadata_props}
        value.metadata_props.clear()
        value.metadata_props.update(kept)
        value.doc_string = None


def _block(scopes: str) -> str:
    paths = [path for path in re.findall(r"'([^']*)'", scopes) if path.startswith(PREFIX)]
    return paths[-1].removeprefix(PREFIX) if paths else ""


def simplify(model: ir.Model) -> None:
    """Fold constants, remove dead and repeated nodes and the rewriter's notes, in place."""
    from onnx_ir.passes import common

    blocks = {value.name: node.metadata_props.get(BLOCK_KEY) for node in model.graph for value in node.outputs}
    common.InlinePass()(model)
    _rewrite(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.OutputFixPass()(model)
    common.NameFixPass()(model)
    common.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        # The rewriter keeps the names of values, and drops what it does not know of their nodes.
        block = next((blocks[value.name] for value in node.outputs if blocks.get(value.name)), None)
        if block:
            node.metadata_props.setdefault(BLOCK_KEY, block)
        for key in node.metadata_props.keys() - {BLOCK_KEY}:
            del node.metadata_props[key]


def _find_rules() -> list[RewriteRule]:
    """Return the rules that the installed onnxscript should have. Raises `PassError` when it lacks one."""
    import onnxscript
    from onnxscript.rewriter.rules import common as rules

    version = tuple(int(part) for part in re.findall(r"\d+", onnxscript.__version__)[:3])
    wanted = [name for name in _RULES if version >= _NEWER.get(name, ())]
    if missing := [name for name in wanted if not hasattr(rules, name)]:
        raise PassError(
            f"onnxscript {onnxscript.__version__} has no {', '.join(missing)}, without which graphs come out "
            "otherwise; install a release that olivelike supports (`pip install --upgrade olivelike`)"
        )
    return [getattr(rules, name) for name in wanted]


def _rewrite(model: ir.Model) -> None:
    """Fold constants and apply the rules, as long as something changes."""
    from onnx_ir.passes import common
    from onnxscript.optimizer import fold_constants
    from onnxscript.rewriter import RewritePass

    rewrite = RewritePass(_find_rules())
    for _ in range(_ROUNDS):
        folded = fold_constants(model, onnx_shape_inference=True).modified
        changed = rewrite(model).modified
        changed |= common.RemoveUnusedNodesPass()(model).modified
        changed |= common.RemoveUnusedOpsetsPass()(model).modified
        if not (folded or changed):
            break
