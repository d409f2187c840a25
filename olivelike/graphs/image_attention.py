"""A UNet that attends to tokens of a picture beside those of the prompt, as IP-Adapters have it.

Each cross-attention has keys and values of its own for these tokens, and what comes of it is added to that of the text,
times a strength: https://arxiv.org/abs/2308.06721, section 3.2.2. The branches are added behind `convert`, so that
fusions and precisions are those of the attention beside them. Where the graph is written, they are cut out again for
the plain one, which shares its weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import GraphEditor, remove_unused
from olivelike.graphs.editing.values import dims_of, fixed_dims, only_user, producer, required
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY
from olivelike.model.guides import GUIDES, IMAGE_STRENGTH, IMAGE_TOKENS

_STEP: Final = next(kind.step for kind in GUIDES.values() if kind.enters == "attention")
_TEXT: Final = "encoder_hidden_states"
_BATCH, _SEQUENCE = "unet_image_batch", "unet_image_sequence"
_KEYS: Final = ".attn2.to_k.weight"
_SIDES: Final = ("down_blocks", "up_blocks", "mid_block")
"""In the order of diffusers' modules, which is that of an IP-Adapter's layers."""
KINDS: Final = ("k", "v")
"""Keys and values."""


def cross_attentions(names: Iterable[str]) -> list[str]:
    """Return a UNet's cross-attentions, in the order of an IP-Adapter's layers, as blocks; `names` are parameters."""
    found = [name.removesuffix(".to_k.weight") for name in names if name.endswith(_KEYS)]
    return sorted(
        found, key=lambda block: (_SIDES.index(block.split(".")[0]), *map(int, re.findall(r"\.(\d+)", block)))
    )


def image_parameter(block: str, kind: str) -> str:
    """Return what diffusers calls the weight of a cross-attention's keys (`k`) or values (`v`) of a picture."""
    return f"{block}.processor.to_{kind}_ip.0.weight"


def is_image_parameter(name: str) -> bool:
    """Tell whether a parameter is one of those."""
    return "_ip.0.weight" in name


def add_image_prompt(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Give a UNet's graph, in place, inputs for tokens and strength, and each cross-attention its second branch.

    Tokens are (batch, sequence, width), the strength is (1,). Raises `PassError` if the graph has other
    cross-attentions than there are parameters for. Returns the number of cross-attentions.

    Args:
        model: As `convert` makes it.
        shapes: Of the parameters, (channels, width), by name.
    """
    graph, sites = model.graph, list(_sites(model.graph))
    if not sites or {image_parameter(site.block, kind) for site in sites for kind in KINDS} != shapes.keys():
        raise PassError(
            f"{_STEP}: the graph has {len(sites)} cross-attentions as `convert` makes them, and the UNet has "
            f"{len(shapes) // 2}; put the step behind `convert` and before what changes the graph"
        )
    held = [value for value in graph.inputs if PARAMETER_KEY in value.metadata_props]
    real = [value for value in graph.inputs if PARAMETER_KEY not in value.metadata_props]
    tokens = _input(IMAGE_TOKENS, [_BATCH, _SEQUENCE, next(iter(shapes.values()))[1]])
    strength = _input(IMAGE_STRENGTH, [1])
    parameters = {name: _input(name, list(shape)) for name, shape in shapes.items()}
    for name, value in parameters.items():
        value.metadata_props[PARAMETER_KEY] = name
    graph.inputs.clear()
    graph.inputs.extend([*real, tokens, strength])
    graph.inputs.extend(sorted([*held, *parameters.values()], key=lambda value: str(value.name)))
    editor = GraphEditor(model)
    for site in sites:
        _branch(editor, site, tokens, strength, parameters)
    return len(sites)


def takes_image_prompt(model: ir.Model) -> bool:
    """Tell whether a graph has such branches."""
    return any(value.name == IMAGE_STRENGTH for value in model.graph.inputs)


def remove_image_prompt(model: ir.Model) -> bool:
    """Cut the branches out again, in place: fused or not, with or without weights. Tell whether there were any."""
    graph = model.graph
    strength = next((value for value in graph.inputs if value.name == IMAGE_STRENGTH), None)
    if strength is None:
        return False
    for scaled in list(_scaled(strength)):
        for total, place in tuple(scaled.uses()):
            ir.convenience.replace_all_uses_with(total.outputs[0], required(total, 1 - place))
    remove_unused(graph, lambda value: not _is_ours(value))
    return True


def _is_ours(value: ir.Value) -> bool:
    return value.name in (IMAGE_TOKENS, IMAGE_STRENGTH) or is_image_parameter(value.name or "")


def _scaled(strength: ir.Value) -> Iterator[ir.Value]:
    """Yield what the strength is multiplied with, behind casts of it."""
    for node, _ in strength.uses():
        if node.op_type == "Cast":
            yield from _scaled(node.outputs[0])
        elif node.op_type == "Mul":
            yield node.outputs[0]


def _input(name: str, dims: list[int | str]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))


@dataclass(frozen=True)
class _Site:
    """A cross-attention to the text."""

    block: str
    attention: ir.Node
    split: ir.Node
    """The Reshape that splits the heads of its keys."""
    apart: ir.Node
    merge: ir.Node
    """Transpose and Reshape that merge the heads of its result."""


def _sites(graph: ir.Graph) -> Iterator[_Site]:
    for node in graph:
        block = node.metadata_props.get(BLOCK_KEY, "")
        if node.op_type != "Attention" or not block.endswith(".attn2"):
            continue
        across = producer(node.inputs[1], "Transpose")
        split = producer(across.inputs[0], "Reshape") if across is not None else None
        keys = producer(split.inputs[0], "MatMul") if split is not None else None
        apart = only_user(node.outputs[0], "Transpose")
        merge = only_user(apart.outputs[0], "Reshape") if apart is not None else None
        if split is None or keys is None or apart is None or merge is None or required(keys, 0).name != _TEXT:
            continue
        yield _Site(block, node, split, apart, merge)


def _branch(
    editor: GraphEditor, site: _Site, tokens: ir.Value, strength: ir.Value, parameters: Mapping[str, ir.Value]
) -> None:
    """Attend to the tokens with the queries of a cross-attention, and add what comes of it."""
    text = site.merge.outputs[0]
    uses = tuple(text.uses())
    before = next(node for node in editor.graph if any(node is user for user, _ in uses))
    batch, _, heads, size = dims_of(site.split.outputs[0])

    def add(
        operator: str, inputs: list[ir.Value], dims: tuple[int | str | None, ...], name: str, **more: object
    ) -> ir.Value:
        return editor.add(
            operator, inputs, dims, before=before, name=f"{site.block}.{name}", block=site.block, attributes=more
        )

    operands = [required(site.attention, 0)]
    for kind in KINDS:
        name = f"processor.to_{kind}_ip"
        weight = parameters[image_parameter(site.block, kind)]
        channels, width = fixed_dims(weight)
        turned = add("Transpose", [weight], (width, channels), f"{name}.weight.transposed", perm=[1, 0])
        found = add("MatMul", [tokens, turned], (batch, _SEQUENCE, channels), name)
        found = add(
            "Reshape",
            [found, required(site.split, 1)],
            (batch, _SEQUENCE, heads, size),
            f"{name}.split",
            **dict(site.split.attributes),
        )
        operands.append(add("Transpose", [found], (batch, heads, _SEQUENCE, size), f"{name}.heads", perm=[0, 2, 1, 3]))
    attention, apart, merge = site.attention, site.apart, site.merge
    found = add("Attention", operands, dims_of(attention.outputs[0]), "processor.ip", **dict(attention.attributes))
    found = add("Transpose", [found], dims_of(apart.outputs[0]), "processor.ip.apart", **dict(apart.attributes))
    found = add("Reshape", [found, required(merge, 1)], dims_of(text), "processor.ip.merged", **dict(merge.attributes))
    scaled = add("Mul", [found, strength], dims_of(text), "processor.ip.scaled")
    total = add("Add", [text, scaled], dims_of(text), "processor.ip.sum")
    for node, index in uses:
        node.replace_input_with(index, total)
