"""Networks cut at their group normalisations, so that they can run on strips of a picture one after the other.

All that a VAE does to a picture is local, but for the statistics of its group normalisations and an attention where
the picture is smallest. Once the statistics are known, a normalisation is a factor and an offset per channel. So
the graph is cut into segments, from what one normalisation takes to what the next one takes, which have factors and
offsets as inputs. Strips of a segment, with a margin of what its convolutions see, give what the whole one gives.

Known spellings: GroupNormalization; InstanceNormalization over groups, then scale and bias per channel; GroupNorm and
SkipGroupNorm of ONNX Runtime, in either layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError
from olivelike.runtime.pipeline.attention_parts import attend_in_parts

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, TensorProto

    Array = np.ndarray[Any, Any]

_CONTRIB: Final = "com.microsoft"
_FLOAT, _FLOAT16, _BFLOAT16 = 1, 10, 16
"""As ONNX numbers its types."""
_BYTES: Final = {_FLOAT: 4, _FLOAT16: 2, _BFLOAT16: 2}
_NORMS: Final = frozenset({"GroupNormalization", "GroupNorm", "SkipGroupNorm", "InstanceNormalization"})
_POINTWISE: Final = frozenset(
    {"Add", "Mul", "Sub", "Div", "Sigmoid", "Tanh", "Clip", "Cast", "Identity", "QuickGelu", "Swish", "Constant", "Pad"}
)  # A Pad belongs to the convolution behind it.
_LAYOUTS: Final = ([0, 2, 3, 1], [0, 3, 1, 2])
_ROWS, _ROWS_OF_NHWC = 2, 1
_FIRST_BY_CHANNEL: Final = 21
"""GroupNormalization of older opsets has a scale per group."""


class CutError(SessionError):
    """A network can't be cut; the message says why."""


@dataclass(frozen=True)
class Norm:
    """A group normalisation."""

    result: str
    value: str
    """What it normalises, an image."""
    groups: int
    epsilon: float
    weight: Array
    """Per channel, float32."""
    bias: Array

    @property
    def inputs(self) -> tuple[str, str]:
        """Names of its factor and its offset, per channel in float32, in the graph that is cut."""
        return f"{self.result}.factor", f"{self.result}.offset"


@dataclass(frozen=True)
class Image:
    """A value between segments."""

    name: str
    channels: int
    scale: Fraction
    """Its rows for a row of what the network takes; columns are the same."""
    axis: int
    """Of its rows: 2 in NCHW, 1 in NHWC."""
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
        return f"{self.name}.float32" if self.element == _BFLOAT16 else self.name

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
    """Those whose factor and offset it takes."""
    constants: tuple[str, ...]
    margin: int | None
    """Rows of its inputs above and below those that a row of its outputs is at; `None` if it needs the whole picture."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A network in segments, in the order in which they run."""

    segments: tuple[Segment, ...]
    norms: Mapping[str, Norm]
    """By what they normalise."""
    _graph: _Graph

    @property
    def images(self) -> Mapping[str, Image]:
        """All values between segments, by name."""
        return self._graph.images

    @cached_property
    def last_uses(self) -> dict[str, int]:
        """Number of the last segment that takes an image, by the image's name."""
        return {image.name: number for number, segment in enumerate(self.segments) for image in segment.inputs}

    def memory(self, rows: int, columns: int) -> int:
        """Return the bytes of images that are held at once, for a picture of what the network takes."""
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
        from onnx import helper

        images = {image.name: image for image in (*segment.inputs, *segment.outputs)}
        nodes = [self._graph.with_known_shape(node, shapes) for node in segment.nodes]
        for image in images.values():
            if image.port != image.name:
                taken = image in segment.inputs
                ends, kind = (image.port, image.name) if taken else (image.name, image.port), image.element
                cast = helper.make_node("Cast", [ends[0]], [ends[1]], to=kind if taken else _FLOAT)
                nodes.insert(0 if taken else len(nodes), cast)
        constants = [self._graph.tensor(name) for name in segment.constants]
        if segment.margin is None:
            first = segment.inputs[0]
            tokens = math.prod(shapes[first.name]) // first.channels
            nodes, more = attend_in_parts(nodes, constants, tokens)
            constants += more

        def ports(named: Iterable[Image]) -> list[Any]:
            return [
                helper.make_tensor_value_info(
                    image.port, _FLOAT if image.port != image.name else image.element, shapes[image.name]
                )
                for image in named
            ]

        factors = [
            helper.make_tensor_value_info(name, _FLOAT, self.factor_shape(norm))
            for norm in segment.norms
            for name in norm.inputs
        ]
        graph = helper.make_graph(
            nodes, "segment", ports(segment.inputs) + factors, ports(segment.outputs), initializer=constants
        )
        source = self._graph.proto
        model = helper.make_model(
            graph, ir_version=source.ir_version, opset_imports=source.opset_import, functions=source.functions
        )
        return bytes(model.SerializeToString())

    def factor_shape(self, norm: Norm) -> tuple[int, ...]:
        """Return the shape of a normalisation's factor and of its offset."""
        return (len(norm.weight), *((1, 1) if self.images[norm.value].axis == _ROWS else ()))


def cut_network(
    path: Path, taken: tuple[str, int], made: tuple[str, int], given: Mapping[str, Array] | None = None
) -> Cut:
    """Cut a network that takes a picture and makes one.

    Args:
        path: An ONNX file.
        taken: Name and channels of what it takes, in NCHW.
        made: Name and channels of the output that is wanted, in NCHW.
        given: Arrays in place of the file's initializers.

    Raises:
        CutError: if it has no group normalisations, or some in a spelling that is not known.
    """
    from google.protobuf.message import DecodeError

    try:
        graph = _Graph(path, given or {})
        graph.find_norms()
        graph.find_images(taken, made)
        return Cut(tuple(graph.segments()), {norm.value: norm for norm in graph.norms}, graph)
    except (OSError, DecodeError, KeyError, IndexError, ValueError, TypeError) as error:
        raise CutError(f"its graph is not understood: {error!r}") from error


class _Graph:
    """A graph by its values; normalisations in it are replaced by factors and offsets."""

    def __init__(self, path: Path, given: Mapping[str, Array]) -> None:
        import onnx

        self.proto: ModelProto = onnx.load(path, load_external_data=False)
        graph = self.proto.graph
        self.images: dict[str, Image] = {}
        self.norms: list[Norm] = []
        self._folder = path.parent
        self._given = given
        self._tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self._makers: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}
        self._users: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
        values = (*graph.input, *graph.value_info, *graph.output)
        self._elements = {value.name: value.type.tensor_type.elem_type for value in values}
        self._elements |= {tensor.name: tensor.data_type for tensor in graph.initializer}

    def tensor(self, name: str) -> TensorProto:
        """Return an initializer with its values."""
        from onnx import external_data_helper, numpy_helper
        from onnx import TensorProto as Tensor

        if name in self._given:
            return numpy_helper.from_array(self._given[name], name)
        tensor = self._tensors[name]
        if not external_data_helper.uses_external_data(tensor):
            return tensor
        # ONNX's own reader refuses files that are links, as in a hub's cache.
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = PurePath(entries["location"])
        if location.is_absolute() or ".." in location.parts:
            raise CutError(f"{name} is outside its folder")
        with (self._folder / location).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            values = file.read(int(entries.get("length", -1)))
        return Tensor(name=name, data_type=tensor.data_type, dims=tensor.dims, raw_data=values)

    def with_known_shape(self, node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> NodeProto:
        """Return a node; in place of the Shape of an image, its sizes."""
        if node.op_type != "Shape" or node.input[0] not in shapes:
            return node
        import numpy as np
        from onnx import helper, numpy_helper

        bounds = slice(_attribute(node, "start", 0), _attribute(node, "end", None))
        sizes = np.asarray(shapes[node.input[0]][bounds], np.int64)
        return helper.make_node("Constant", [], list(node.output), value=numpy_helper.from_array(sizes))

    def find_norms(self) -> None:
        """Replace normalisations of images by their factors and offsets."""
        for node in self.proto.graph.node:
            if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
                raise CutError(f"it has a {node.op_type}, whose graph is not looked into")
            if node.op_type not in _NORMS:
                continue
            norm, nchw, activated = self._read_norm(node)
            if self._maker_of(norm.value) == "Reshape":
                continue  # Tokens of an attention: it needs the whole picture anyway.
            self.norms.append(norm)
            self._replace(norm, activated=activated)
            self.images[norm.value] = self._image(norm.value, len(norm.weight), _ROWS if nchw else _ROWS_OF_NHWC)
        if not self.norms:
            raise CutError("it has no group normalisation")

    def find_images(self, taken: tuple[str, int], made: tuple[str, int]) -> None:
        """Choose the values between segments, in the order in which they are made, with their scales."""
        self.images[taken[0]] = self._image(*taken, _ROWS)
        for node in self.proto.graph.node:
            source = self.images.get(node.input[0]) if node.op_type in ("Conv", "NhwcConv") else None
            # A shortcut of fewer channels is what is held, in place of its source.
            if source is not None and set(_attribute(node, "kernel_shape", [])) == {1}:
                channels = self._tensors[node.input[1]].dims[0]
                if channels < source.channels:
                    axis = _ROWS if node.op_type == "Conv" else _ROWS_OF_NHWC
                    self.images[node.output[0]] = self._image(node.output[0], channels, axis)
        self.images[made[0]] = self._image(*made, _ROWS)
        places = {name: place for place, node in enumerate(self.proto.graph.node) for name in node.output}
        places |= {taken[0]: -1} | {norm.value: places[norm.result] for norm in self.norms if norm.value not in places}
        scaled: dict[str, Image] = {}
        for name in sorted(self.images, key=places.__getitem__):
            scale = Fraction(1) if name == taken[0] else self._scale(name, scaled)
            scaled[name] = replace(self.images[name], scale=scale)
        self.images = scaled

    def segments(self) -> Iterable[Segment]:
        """Yield what makes each image, those of one depth together: they are known at the same time."""
        taken, *made = self.images
        depths, behind = {taken: 0}, dict[int, list[str]]()
        for name in made:
            needs = self._behind([name])
            before = [image.name for image in needs.inputs] + [norm.value for norm in needs.norms]
            depths[name] = 1 + max(depths[one] for one in before)
            behind.setdefault(depths[name], []).append(name)
        coarsest = min(image.scale for image in self.images.values())
        for depth in sorted(behind):
            segment = self._behind(behind[depth])
            if segment.margin is None and any(one.scale != coarsest for one in (*segment.inputs, *segment.outputs)):
                kinds = sorted({node.op_type for node in segment.nodes if not self._is_local(node)})
                raise CutError(f"it has {', '.join(kinds)} where the picture is large")
            yield segment

    def _behind(self, names: Sequence[str]) -> Segment:
        """Return what makes some images of others."""
        nodes: dict[int, NodeProto] = {}
        found: dict[str, None] = {}
        norms = {name: norm for norm in self.norms for name in norm.inputs}

        def visit(name: str) -> None:
            if not name or name in found:
                return
            found[name] = None
            if (name in self.images and name not in names) or name in self._tensors or name in norms:
                return
            node = self._makers[name]
            if id(node) not in nodes and not (node.op_type == "Shape" and node.input[0] in self.images):
                for one in node.input:
                    visit(one)
            nodes[id(node)] = node

        for name in names:
            visit(name)
        inputs = tuple(self.images[name] for name in found if name in self.images and name not in names)
        outputs = tuple(self.images[name] for name in names)
        local = all(self._is_local(node) for node in nodes.values())
        even = len({image.scale for image in inputs}) == 1 == len({image.scale for image in outputs})
        margin = self._margin(list(nodes.values()), names, inputs) if local and even else None
        taken = tuple(dict.fromkeys(norms[name].result for name in found if name in norms))
        by_result = {norm.result: norm for norm in self.norms}
        return Segment(
            tuple(nodes.values()), inputs, outputs, tuple(by_result[name] for name in taken),
            tuple(name for name in found if name in self._tensors), margin,
        )  # fmt: skip

    def _margin(self, nodes: list[NodeProto], names: Sequence[str], inputs: Sequence[Image]) -> int:
        """Return how many rows of the inputs, above and below its own, a row of the images sees at most."""
        seen = dict.fromkeys(names, 0)
        for node in reversed(nodes):
            rows = max(seen.get(name, 0) for name in node.output)
            if node.op_type in ("Conv", "NhwcConv"):
                stride, above = (_attribute(node, key, [default])[0] for key, default in (("strides", 1), ("pads", 0)))
                extent = (self._kernel(node) - 1) * _attribute(node, "dilations", [1])[0]
                rows = rows * stride + max(above, extent - above)
            elif node.op_type == "Resize":
                rows = math.ceil(rows / self._factor(node))
            for name in node.input:
                seen[name] = max(seen.get(name, 0), rows)
        return max(seen[image.name] for image in inputs)

    def _kernel(self, node: NodeProto) -> int:
        shape = _attribute(node, "kernel_shape", None)
        return int(shape[0] if shape else self._tensors[node.input[1]].dims[2 if node.op_type == "Conv" else 1])

    def _factor(self, node: NodeProto) -> int:
        """Return what a Resize multiplies both sides by; 0 if it does anything else."""
        scales = (
            self._array(node.input[2]) if len(node.input) == 3 and _attribute(node, "mode", b"") == b"nearest" else None
        )
        if scales is None or scales.size != 4 or scales[0] != 1:
            return 0
        side = float(scales[2])
        sides = sorted(float(one) for one in scales)
        return int(side) if sides == [1, 1, side, side] and side == int(side) and side >= 1 else 0

    def _is_local(self, node: NodeProto) -> bool:
        match node.op_type:
            case "Conv" | "NhwcConv":
                return True
            case "Resize":
                return self._factor(node) > 0
            case "Transpose":
                return _attribute(node, "perm", None) in _LAYOUTS
            case "Split":
                return bool(_attribute(node, "axis", 0) == 1)
            case kind:
                return kind in _POINTWISE

    def _scale(self, name: str, known: Mapping[str, Image]) -> Fraction:
        if name in known:
            return known[name].scale
        node = self._makers[name]
        factors = {one for norm in self.norms for one in norm.inputs}
        source = next(one for one in node.input if one and one not in self._tensors and one not in factors)
        scale = self._scale(source, known)
        if node.op_type in ("Conv", "NhwcConv"):
            return scale / int(_attribute(node, "strides", [1])[0])
        if node.op_type == "Resize":
            return scale * self._factor(node)
        return scale

    def _image(self, name: str, channels: int, axis: int) -> Image:
        return Image(name, channels, Fraction(1), axis, self._element(name))

    def _element(self, name: str) -> int:
        """Return the ONNX type of a value: what the file says, or what it is made of."""
        if known := self._elements.get(name):
            return known
        node = self._makers[name]
        if node.op_type == "Cast":
            return int(_attribute(node, "to", _FLOAT))
        return self._element(node.input[1 if node.op_type in ("Conv", "NhwcConv") else 0])

    def _maker_of(self, name: str) -> str:
        node = self._makers.get(name)
        return "" if node is None else node.op_type

    def _array(self, name: str) -> Array | None:
        """Return the values of a constant."""
        from onnx import numpy_helper

        if name in self._tensors:
            return numpy_helper.to_array(self.tensor(name))
        if self._maker_of(name) == "Constant" and (value := _attribute(self._makers[name], "value", None)) is not None:
            return numpy_helper.to_array(value)
        return None

    def _vector(self, name: str) -> Array:
        import numpy as np

        array = self._array(name)
        if array is None:
            raise CutError(f"a normalisation has {name}, which is no constant")
        return array.astype(np.float32).reshape(-1)

    def _read_norm(self, node: NodeProto) -> tuple[Norm, bool, bool]:
        """Return a normalisation, whether it is in NCHW, and whether it has a SiLU behind it.

        Raises `CutError` if it is in a spelling that is not known.
        """
        result, epsilon = node.output[0], float(_attribute(node, "epsilon", 1e-5))
        if node.op_type == "InstanceNormalization":
            return self._read_instance_norm(node), True, False
        weight, bias = self._vector(node.input[1]), self._vector(node.input[2])
        if node.op_type == "GroupNormalization":
            opset = max(entry.version for entry in self.proto.opset_import if not entry.domain)
            if opset < _FIRST_BY_CHANNEL:
                raise CutError(f"it has GroupNormalization of opset {opset}, with a scale per group")
            return Norm(result, node.input[0], _attribute(node, "num_groups", 0), epsilon, weight, bias), True, False
        value = self._sum(node) if node.op_type == "SkipGroupNorm" else node.input[0]
        norm = Norm(result, value, _attribute(node, "groups", 0), epsilon, weight, bias)
        return norm, not _attribute(node, "channels_last", 1), bool(_attribute(node, "activation", 0))

    def _sum(self, node: NodeProto) -> str:
        """Write what a SkipGroupNorm normalises as additions, and return its name."""
        from onnx import helper

        total = node.output[1] if len(node.output) > 1 and node.output[1] else f"{node.output[0]}.sum"
        self._elements.setdefault(total, self._element(node.input[0]))
        operands = [name for name in node.input[4:5] if name]
        parts = [total, *(f"{total}.{number}" for number, _ in enumerate(operands))]
        left = node.input[0]
        for part, right in zip(reversed(parts), [node.input[3], *operands], strict=True):
            self._makers[part] = helper.make_node("Add", [left, right], [part])
            left = part
        return total

    def _read_instance_norm(self, node: NodeProto) -> Norm:
        """Read `Reshape`, `InstanceNormalization`, `Reshape`, `Mul`, `Add`: groups as channels, or as pictures."""
        ones, zeros = self._vector(node.input[1]), self._vector(node.input[2])
        value, shape = node.input[0], None
        while shape is None and self._maker_of(value) in ("Cast", "Unsqueeze", "Reshape"):
            before = self._makers[value]
            value, shape = before.input[0], self._array(before.input[1]) if before.op_type == "Reshape" else None
        while self._maker_of(value) == "Cast":
            value = self._makers[value].input[0]
        factor = node
        while (factor := self._only_user(factor)).op_type in ("Cast", "Squeeze", "Reshape"):
            pass
        offset = self._only_user(factor)
        while offset.op_type == "Cast":
            offset = self._only_user(offset)
        if shape is None or (ones != 1).any() or zeros.any() or (factor.op_type, offset.op_type) != ("Mul", "Add"):
            raise CutError("it has an InstanceNormalization that is no group normalisation")
        weight, bias = (
            next(self._vector(name) for name in one.input if self._array(name) is not None) for one in (factor, offset)
        )
        groups = len(ones) if len(shape) == 3 else len(weight) // int(shape[1])
        return Norm(offset.output[0], value, groups, float(_attribute(node, "epsilon", 1e-5)), weight, bias)

    def _only_user(self, node: NodeProto) -> NodeProto:
        users = self._users.get(node.output[0], [])
        if len(users) != 1:
            raise CutError("it has an InstanceNormalization whose result is used elsewhere")
        return users[0]

    def _replace(self, norm: Norm, *, activated: bool) -> None:
        """Write a normalisation as its factor and its offset, in float32 inside."""
        from onnx import helper

        element, made = self._element(norm.result), norm.value

        def write(kind: str, *inputs: str, last: bool = False, **attributes: int) -> str:
            name = norm.result if last else f"{norm.result}.{len(steps)}"
            steps.append(helper.make_node(kind, inputs, [name], **attributes))
            self._makers[name] = steps[-1]
            return name

        steps: list[NodeProto] = []
        rounds = element != _FLOAT
        if self._element(norm.value) != _FLOAT:
            made = write("Cast", made, to=_FLOAT)
        made = write("Mul", made, norm.inputs[0])
        made = write("Add", made, norm.inputs[1], last=not (activated or rounds))
        if activated:
            made = write("Mul", made, write("Sigmoid", made), last=not rounds)
        if rounds:
            write("Cast", made, last=True, to=element)


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)
