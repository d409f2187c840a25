"""Networks cut at their group normalisations, so that they can run on strips of a picture one after the other.

All that a VAE does to a picture is local, but for the statistics of its group normalisations and an attention where
the picture is smallest. Once the statistics are known, a normalisation is a factor and an offset per channel. So
the graph is cut into segments, from what one normalisation takes to what the next one takes, which have factors and
offsets as inputs. Strips of a segment, with a margin of what its convolutions see, give what the whole one gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from olivelike.extras.strips.attention_parts import attend_in_parts
from olivelike.extras.strips.group_norms import Norm, factor_norms
from olivelike.extras.strips.network_values import CONVOLUTIONS, NetworkValues
from olivelike.model.onnx_messages import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    attribute,
    from_array,
    make_node,
    make_value,
)
from olivelike.runtime.pipeline.strips import CutError

Array = np.ndarray[Any, Any]

_POINTWISE: Final = frozenset(
    {"Add", "Mul", "Sub", "Div", "Sigmoid", "Tanh", "Clip", "Cast", "Identity", "QuickGelu", "Swish", "Constant", "Pad"}
)
"""Operators that look at one pixel; a Pad belongs to the convolution behind it, which counts for both."""
_ENLARGING: Final = ("Resize", "DepthToSpace")
_LAYOUTS: Final = ([0, 2, 3, 1], [0, 3, 1, 2])
_PACKING: Final = [0, 1, 3, 5, 2, 4]
"""Axes of rows and columns behind those of channels: (1, channels, rows, 2, columns, 2) is four times the channels."""
_ROWS, _ROWS_OF_NHWC = 2, 1
_BYTES: Final = {TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2}
_MISFITS: Final = (
    OSError, DecodeError, LookupError, ValueError, TypeError, StopIteration, RecursionError, ArithmeticError,
)  # fmt: skip
"""Errors from reading a graph whose parts do not fit together."""


@dataclass(frozen=True)
class Image:
    """A value between segments."""

    name: str
    channels: int
    scale: Fraction
    """Its rows for a row of what the network takes; columns are the same."""
    axis: int
    """Axis of its rows: 2 in NCHW, 1 in NHWC."""
    element: int
    """Its ONNX type."""

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of one picture of these sizes, or of some of its rows."""
        shape = [1, rows, columns]
        shape.insert(self.channel_axis, self.channels)
        return tuple(shape)

    @property
    def channel_axis(self) -> int:
        """The axis of its channels."""
        return 1 if self.axis == _ROWS else 3

    @property
    def port(self) -> str:
        """Its name where a segment takes or gives it: as float32, if NumPy does not know its type."""
        return f"{self.name}.float32" if self.element == TensorProto.BFLOAT16 else self.name

    def size(self, rows: int, columns: int) -> int:
        """Return the bytes of it, for a picture of these sizes of what the network takes."""
        return int(self.scale * rows) * int(self.scale * columns) * self.channels * _BYTES.get(self.element, 4)


@dataclass(frozen=True, eq=False)
class Segment:
    """Part of a network between images."""

    nodes: tuple[NodeProto, ...]
    inputs: tuple[Image, ...]
    outputs: tuple[Image, ...]
    norms: tuple[Norm, ...]
    """Norms whose factor and offset it takes."""
    constants: tuple[str, ...]
    margin: int | None
    """Rows of its inputs that its outputs see above and below their own; `None` if it needs the whole picture."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A network in segments, in the order in which they run."""

    segments: tuple[Segment, ...]
    images: Mapping[str, Image]
    """All values between segments, by name."""
    norms: Mapping[str, Norm]
    """Norms by what they normalise."""
    _values: NetworkValues

    @cached_property
    def last_uses(self) -> dict[str, int]:
        """Number of the last segment that takes an image, by the image's name."""
        return {image.name: number for number, segment in enumerate(self.segments) for image in segment.inputs}

    def memory(self, rows: int, columns: int) -> int:
        """Return the bytes of images that are held at once, for a picture of these sizes of what the network takes."""
        most, held = 0, dict[str, int]()
        for number, segment in enumerate(self.segments):
            held |= {image.name: image.size(rows, columns) for image in segment.inputs}
            before = sum(held.values())
            held = {name: size for name, size in held.items() if self.last_uses[name] > number}
            held |= {image.name: image.size(rows, columns) for image in segment.outputs if image.name in self.last_uses}
            most = max(most, before, sum(held.values()))
        return most

    def model(self, segment: Segment, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
        """Return a segment as a model with weights inside, for images of fixed shapes, by the images' names."""
        nodes = [_with_known_shape(node, shapes) for node in segment.nodes]
        for image in segment.inputs:
            if image.port != image.name:
                nodes.insert(0, make_node("Cast", [image.port], [image.name], to=image.element))
        nodes += [
            make_node("Cast", [image.name], [image.port], to=TensorProto.FLOAT)
            for image in segment.outputs
            if image.port != image.name
        ]
        constants = [self._values.tensor(name) for name in segment.constants]
        if segment.margin is None:
            first = segment.inputs[0]
            nodes, more = attend_in_parts(nodes, constants, math.prod(shapes[first.name]) // first.channels)
            constants += more
        factors = [
            make_value(name, TensorProto.FLOAT, norm.factor_shape) for norm in segment.norms for name in norm.inputs
        ]
        taken, made = [*_ports(segment.inputs, shapes), *factors], [*_ports(segment.outputs, shapes)]
        graph = GraphProto(name="segment", node=nodes, input=taken, output=made, initializer=constants)
        source = self._values.proto
        model = ModelProto(
            ir_version=source.ir_version, opset_import=source.opset_import, graph=graph, functions=source.functions
        )
        return bytes(model.SerializeToString())


def _ports(images: Iterable[Image], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[ValueInfoProto]:
    for image in images:
        element = image.element if image.port == image.name else TensorProto.FLOAT
        yield make_value(image.port, element, shapes[image.name])


def _with_known_shape(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> NodeProto:
    """Return a node; in place of the Shape of an image, its sizes."""
    if node.op_type != "Shape" or node.input[0] not in shapes:
        return node
    sizes = shapes[node.input[0]][attribute(node, "start", 0) : attribute(node, "end")]
    return make_node("Constant", [], node.output, value=from_array(np.asarray(sizes, np.int64), ""))


def cut_network(
    path: Path, taken: tuple[str, int], made: tuple[str, int], given: Mapping[str, Array] | None = None
) -> Cut:
    """Cut a network that takes a picture and makes one.

    Raises `CutError` if it has no group normalisations, or some in a spelling that is not known.

    Args:
        path: An ONNX file.
        taken: Name and channels of what it takes, in NCHW.
        made: Name and channels of the output that is wanted, in NCHW.
        given: Arrays in place of the file's initializers.
    """
    try:
        values = NetworkValues(path, given or {})
        norms = list(factor_norms(values))
        if not norms:
            raise CutError("it has no group normalisation")
        cutting = _Cutting(values, norms, taken, made)
        return Cut(tuple(cutting.segments()), cutting.images, {norm.value: norm for norm in norms}, values)
    except _MISFITS as error:
        raise CutError(f"its graph is not understood: {error!r}") from error


class _Cutting:
    """A graph whose normalisations are factors and offsets, with the values between segments chosen."""

    def __init__(
        self, values: NetworkValues, norms: Sequence[Norm], taken: tuple[str, int], made: tuple[str, int]
    ) -> None:
        self._values = values
        self._factors = {name: norm for norm in norms for name in norm.inputs}
        ends = {taken[0]: self._image(*taken, nchw=True), made[0]: self._image(*made, nchw=True)}
        self._ends = ends.keys()
        """What it takes and makes; FLUX.2's packs pixels of latents into channels there."""
        images = {norm.value: self._image(norm.value, len(norm.weight), nchw=norm.nchw) for norm in norms} | ends
        images |= {image.name: image for image in self._narrow_shortcuts(images)}
        places = {name: place for place, node in enumerate(values.proto.graph.node) for name in node.output}
        places |= {taken[0]: -1} | {norm.value: places[norm.result] for norm in norms if norm.value not in places}
        self.images: dict[str, Image] = {}
        """In the order in which they are made."""
        for name in sorted(images, key=places.__getitem__):
            self.images[name] = images[name] if name == taken[0] else replace(images[name], scale=self._scale(name))

    def segments(self) -> Iterator[Segment]:
        """Yield what makes each image, those of one depth together: they are known at the same time.

        Raises `CutError` if one needs the whole picture where that is not as small as anywhere.
        """
        taken, *made = self.images
        depths, together = {taken: 0}, dict[int, list[str]]()
        for name in made:
            needs = self._behind([name])
            before = [image.name for image in needs.inputs] + [norm.value for norm in needs.norms]
            depths[name] = 1 + max(depths[one] for one in before)
            together.setdefault(depths[name], []).append(name)
        smallest = min(image.scale for image in self.images.values() if image.name not in self._ends)
        for _, names in sorted(together.items()):
            segment = self._behind(names)
            if segment.margin is None and any(one.scale > smallest for one in (*segment.inputs, *segment.outputs)):
                kinds = sorted({node.op_type for node in segment.nodes if not self._is_local(node)})
                raise CutError(f"it has {', '.join(kinds)} where the picture is large")
            yield segment

    def _image(self, name: str, channels: int, *, nchw: bool) -> Image:
        return Image(name, channels, Fraction(1), _ROWS if nchw else _ROWS_OF_NHWC, self._values.element(name))

    def _narrow_shortcuts(self, images: Mapping[str, Image]) -> Iterator[Image]:
        """Yield what convolutions of single pixels make of images with more channels: that is held in their place."""
        for node in self._values.proto.graph.node:
            source = images.get(node.input[0]) if node.op_type in CONVOLUTIONS else None
            if source is not None and set(attribute(node, "kernel_shape", [])) == {1}:
                channels = self._values.tensors[node.input[1]].dims[0]
                if channels < source.channels:
                    yield self._image(node.output[0], channels, nchw=node.op_type == "Conv")

    def _scale(self, name: str) -> Fraction:
        if name in self.images:
            return self.images[name].scale
        node = self._values.makers[name]
        passed = self._values.tensors.keys() | self._factors.keys() | {""}
        scale = self._scale(next(one for one in node.input if one not in passed))
        if node.op_type in CONVOLUTIONS:
            return scale / int(attribute(node, "strides", [1])[0])
        if node.op_type == "Transpose" and attribute(node, "perm") == _PACKING:
            return scale / self._packed(node)
        return scale * self._enlarged(node) if node.op_type in _ENLARGING else scale

    def _behind(self, names: Sequence[str]) -> Segment:
        """Return what makes some images of others."""
        nodes: dict[int, NodeProto] = {}
        found: dict[str, None] = {}
        inputs: list[Image] = []

        def visit(name: str) -> None:
            if not name or name in found:
                return
            found[name] = None
            if name in self.images and name not in names:
                inputs.append(self.images[name])
            elif name not in self._values.tensors and name not in self._factors:
                node = self._values.makers[name]
                if node.op_type != "Shape" or node.input[0] not in self.images:
                    for one in node.input:
                        visit(one)
                nodes[id(node)] = node

        for name in names:
            visit(name)
        outputs = [self.images[name] for name in names]
        even = len({image.scale for image in inputs}) == 1 == len({image.scale for image in outputs})
        local = even and all(self._is_local(node) for node in nodes.values())
        return Segment(
            tuple(nodes.values()), tuple(inputs), tuple(outputs),
            tuple(dict.fromkeys(self._factors[name] for name in found if name in self._factors)),
            tuple(name for name in found if name in self._values.tensors),
            self._margin(list(nodes.values()), names, inputs) if local else None,
        )  # fmt: skip

    def _margin(self, nodes: list[NodeProto], names: Sequence[str], inputs: Sequence[Image]) -> int:
        """Return how many rows of the inputs, above and below its own, a row of the images sees at most."""
        seen = dict.fromkeys(names, 0)
        for node in reversed(nodes):
            rows = max(seen.get(name, 0) for name in node.output)
            if node.op_type in CONVOLUTIONS:
                stride, dilation, above = (
                    int(attribute(node, key, [default])[0])
                    for key, default in (("strides", 1), ("dilations", 1), ("pads", 0))
                )
                weight = self._values.tensors[node.input[1]].dims
                extent = dilation * (weight[2 if node.op_type == "Conv" else 1] - 1)
                rows = rows * stride + max(above, extent - above)
            elif node.op_type in _ENLARGING:
                rows = math.ceil(rows / self._enlarged(node))
            for name in node.input:
                seen[name] = max(seen.get(name, 0), rows)
        return max(seen[image.name] for image in inputs)

    def _packed(self, node: NodeProto) -> int:
        """Return how many rows and columns become channels by a Transpose between Reshapes."""
        sizes = self._values.makers[self._values.makers[node.input[0]].input[1]]
        rows, columns = (int(self._values.vector(sizes.input[axis]).item()) for axis in (3, 5))
        if rows != columns:
            raise CutError(f"it packs {rows} rows and {columns} columns into channels")
        return rows

    def _enlarged(self, node: NodeProto) -> int:
        """Return how many rows and columns a node makes of one; 0 if a Resize does anything but repeat them."""
        if node.op_type == "DepthToSpace":
            return int(attribute(node, "blocksize"))
        scales = self._values.array(node.input[2]) if len(node.input) > 2 and not any(node.input[3:]) else None
        if scales is None or attribute(node, "mode", b"nearest") != b"nearest" or scales.tolist()[:1] != [1]:
            return 0
        times = int(scales.max())
        return times if sorted(scales.tolist()) == [1, 1, times, times] else 0

    def _is_local(self, node: NodeProto) -> bool:
        match node.op_type:
            case "Conv" | "NhwcConv" | "DepthToSpace":
                return True
            case "Resize":
                return self._enlarged(node) > 0
            case "Transpose":
                return attribute(node, "perm") in _LAYOUTS
            case "Split":
                return bool(attribute(node, "axis", 0) == 1)
            case kind:
                return kind in _POINTWISE
