"""Weight-only quantisation of weightless graphs: blocks of whole numbers with a scale each, behind a barrier.

Matrices that a linear layer multiplies by go into MatMulNBits where the target has a kernel for it, else behind a
DequantizeLinear, as those of convolutions and of packed attention do. Where the target runs none, and for sensitive
weights, plain operators spell a weight, which a session folds to a constant as it opens; on the CPU sensitive weights
may also be two MatMulNBits, whose products are added, and a MatMulIntegerToFloat may stand for those of 8 bits: with a
scale for each column of the weight and each row of what it multiplies. Of an embedding, rows are looked up as numbers
and widened then. The numbers are an `olivelike.QuantizeBlocks` of the weight: derived weights, which the writing of the
output evaluates, one at a time.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
from olivelike.graphs.editing.values import (
    Dims,
    attribute,
    constant_array,
    dims_of,
    fixed_dims,
    input_of,
    is_used_once,
    node_of,
    producer,
    required,
    width_of,
)
from olivelike.graphs.rounded_rows import LEAST_STEP, MIDDLE, MOST, REST, Piece, RoundedRows
from olivelike.model.graph import BLOCK_KEY, QUANTISE_DOMAIN
from olivelike.model.quantised_values import QUANTISE, BlockFormat
from olivelike.model.targets import Target

_OPSET = 21
"""First opset whose DequantizeLinear has `block_size`."""
_BYTE = 8
_SPLIT = 12
"""Bits of numbers that come as two."""
_FINER = {4: 8, 8: _SPLIT}
"""Bits of a weight in `fine_blocks`."""
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_LEAST_VALUES = 4096
"""A smaller weight stays as it is: its scales, and what reads it, would cost what it saves."""
_MATRIX = 2
"""Axes of what is multiplied by, or of a table."""
_IN_8_BITS = 4
"""Accuracy level of MatMulNBits that rounds activations."""
_LEAST_DEPTH = 16
"""Values that are summed over; of fewer, the scales would be a large part."""


class BlockQuantisation:
    """One quantisation of one graph, in place."""

    def __init__(
        self,
        model: ir.Model,
        form: BlockFormat,
        target: Target | None,
        *,
        convolutions: bool = True,
        embeddings: bool = True,
        float_blocks: Sequence[str] = (),
        fine_blocks: Sequence[str] = (),
        paired_blocks: Sequence[str] = (),
        exact_blocks: Sequence[str] = (),
        accuracy_level: int = 0,
        rows: bool = False,
    ) -> None:
        """Set up.

        Args:
            model: Changed in place by `quantise`.
            form: Bits, size of a block, and method; axis and packing are each weight's own.
            target: Decides where MatMulNBits is written, and what is folded; without one neither is.
            convolutions: Whether their weights are quantised.
            embeddings: Whether tables are that rows are looked up in; always to 8 bits.
            float_blocks: Paths of modules whose weights stay as they are, with wildcards, and all inside them.
            fine_blocks: Paths of modules whose weights have 12 bits in place of 8, or 8 in place of 4, likewise, as
                those that are folded do; bfloat16, and tables, stay as they are.
            paired_blocks: Paths of modules whose weights have 12 bits in two products, likewise, and tables in two
                lookups; on targets without lookups of 8 bits they are as if not named here.
            exact_blocks: Paths of modules, likewise, where `accuracy_level` is 0 whatever it says; those in
                `paired_blocks` are such, too.
            accuracy_level: Of MatMulNBits: 4 computes on activations in 8 bits, 0 on those of the graph's type.
            rows: Whether float32 is multiplied in whole numbers by rows and columns where `accuracy_level` is 4, and
                where it is not for `exact_blocks`, in two products, of 16 bits of activations.
        """
        self._editor = GraphEditor(model)
        self._form = form
        self._multiplied = "" if target is None else target.block_matmul
        self._multiplied_bits = () if target is None else target.block_matmul_bits
        self._widened_bits = None if target is None else target.block_weights
        """`None` for any."""
        self._rows = target is not None and target.block_rows
        self._convolutions, self._embeddings = convolutions, embeddings
        self._float_blocks, self._fine_blocks = tuple(float_blocks), tuple(fine_blocks)
        self._paired_blocks = tuple(paired_blocks) if self._rows and {4, 8}.issubset(self._multiplied_bits) else ()
        self._exact_blocks = (*exact_blocks, *self._paired_blocks)
        self._accuracy_level, self._by_rows = accuracy_level, rows and accuracy_level == _IN_8_BITS
        self._rounded: dict[ir.Value, RoundedRows] = {}
        self._scaled: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        """Products by rows, as what they are without the scales of rows, and these."""
        self._halves: dict[tuple[ir.Value, int], ir.Value] = {}
        self._wide: dict[tuple[ir.Value, BlockFormat], ir.Value] = {}
        self._counts: Counter[str] = Counter()

    def quantise(self) -> dict[str, int]:
        """Quantise the graph.

        Raises `PassError` when it is quantised already, or of an opset that has no blocks.

        Returns:
            Counts for the run record: weights by what reads them now, and those left as they were.
        """
        model = self._editor.model
        if QUANTISE_DOMAIN in model.opset_imports:
            raise PassError("the graph is quantised already; keep one of `weights8` and `weights4` in this chain")
        self._raise_opset()
        for node in list(self._editor.graph):
            if node.outputs[0] in self._editor.weights:
                continue
            for index in self._places(node):
                value = node.inputs[index]
                if value is None or value not in self._editor.weights or value.dtype not in _FLOATS:
                    continue
                if (form := self._form_of(node, value)) is None:
                    self._counts["left"] += 1
                else:
                    self._rewrite(node, index, value, form)
        if self._counts.keys() - {"left"}:
            model.opset_imports[QUANTISE_DOMAIN] = 1
        self._editor.import_contrib()
        return {f"weights_{kind}": count for kind, count in sorted(self._counts.items())}

    def _raise_opset(self) -> None:
        """Stamp the graph with an opset that has blocks: of what 20 has, 21 changed GroupNormalization alone."""
        opsets = self._editor.model.opset_imports
        if (opset := opsets.get("", 0)) >= _OPSET:
            return
        if opset < _OPSET - 1 or self._editor.nodes("GroupNormalization"):
            raise PassError(f"the graph is of opset {opset}, and blocks need {_OPSET}; convert the checkpoint anew")
        opsets[""] = _OPSET

    def _places(self, node: ir.Node) -> tuple[int, ...]:
        """Return which inputs of an operator may be quantised weights."""
        match node.domain, node.op_type:
            case ("", "MatMul"):
                return (1,)
            case ("", "Gemm"):
                return (1,)
            case ("", "Conv") | ("com.microsoft", "NhwcConv"):
                return (1,) if self._convolutions else ()
            case ("com.microsoft", "Attention"):
                return (1,)
            case ("", "Gather"):
                return (0,) if self._embeddings and attribute(node, "axis", 0) == 0 else ()
        return ()

    def _form_of(self, node: ir.Node, value: ir.Value) -> BlockFormat | None:
        """Return how an operator's weight is written; `None` if it stays as it is."""
        path = node.metadata_props.get(BLOCK_KEY, "")
        shape = fixed_dims(value)
        if len(shape) < 2 or math.prod(shape) < _LEAST_VALUES or _within(path, self._float_blocks):
            return None
        axis = self._axis(node)
        form = replace(self._form, axis=axis)
        if (paired := self._paired(node, value, form)) is not None:
            return paired
        fine = _within(path, self._fine_blocks)
        if node.op_type == "Gather":  # It takes no fewer bits.
            if fine:
                return None
            form = replace(form, bits=8, symmetric=True, method="rtn")
        elif fine:
            form = replace(form, bits=_FINER[form.bits])
        form = replace(form, packed=form.bits in self._multiplied_bits and self._multiplies(node, value))
        if self._is_by_rows(value, form):
            return replace(form, block_size=shape[axis], symmetric=True, packed=False, method="rtn")
        if not form.packed and self._widened_bits is not None and form.bits not in self._widened_bits:
            form = replace(form, bits=_FINER.get(self._form.bits, form.bits))
        if self._folds(form):
            form = replace(form, block_size=shape[axis], symmetric=True, method="rtn")
            return None if value.dtype == ir.DataType.BFLOAT16 or (form.bits == _SPLIT and shape[0] % 2) else form
        size = math.gcd(shape[axis], form.block_size)  # OpenVINO has no blocks that do not divide a row.
        if size >= _LEAST_DEPTH:
            form = replace(form, block_size=size)
        return form if shape[axis] >= _LEAST_DEPTH and (form.packed or size >= _LEAST_DEPTH) else None

    def _paired(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> BlockFormat | None:
        """Return how a weight is written as two of 8 and of 4 bits; `None` if it isn't."""
        depth = dims_of(value)[form.axis]
        if not isinstance(depth, int) or not _within(node.metadata_props.get(BLOCK_KEY, ""), self._paired_blocks):
            return None
        size = math.gcd(depth, form.block_size)
        if node.op_type == "Gather":
            fits = self._rows and size >= _LEAST_DEPTH and len(dims_of(value)) == _MATRIX
            return (
                replace(form, bits=_SPLIT, block_size=size, symmetric=True, method="rtn", packed=True) if fits else None
            )
        if depth < _LEAST_DEPTH or not self._multiplies(node, value):
            return None
        return replace(form, bits=_SPLIT, block_size=size if size >= _LEAST_DEPTH else form.block_size, packed=True)

    def _folds(self, form: BlockFormat) -> bool:
        """Tell whether a session evaluates the weight as it opens, for want of a kernel that widens it."""
        if form.packed:
            return False
        return form.bits == _SPLIT or (self._widened_bits is not None and form.bits not in self._widened_bits)

    def _axis(self, node: ir.Node) -> int:
        """Return the axis of an operator's weight that is summed over; of a table, the one of a row."""
        match node.op_type:
            case "Gather" | "Conv":
                return 1
            case "NhwcConv":
                return 3
            case "Gemm":
                return 1 if attribute(node, "transB", 0) else 0
        return 0

    def _rewrite(self, node: ir.Node, index: int, value: ir.Value, form: BlockFormat) -> None:
        if node.op_type == "Gather" and self._rows:
            (self._look_up_both if form.packed else self._look_up)(node, value, form)
        elif form.packed:
            self._multiply(node, value, form)
        elif self._is_by_rows(value, replace(form, packed=True)):
            self._multiply_by_rows(node, value, form)
        else:
            if (value, form) not in self._wide:
                self._wide[value, form] = self._widened(node, value, form)
            node.replace_input_with(index, self._wide[value, form])
            self._counts["widened"] += 1

    def _multiplies(self, node: ir.Node, value: ir.Value) -> bool:
        """Tell whether MatMulNBits can do what the operator does."""
        if len(dims_of(value)) != 2:
            return False
        dtype = {"FLOAT": "f", "FLOAT16": "h", "BFLOAT16": "b"}[value.dtype.name if value.dtype else ""]
        if dtype not in self._multiplied:
            return False
        return node.op_type == "MatMul" or (
            node.op_type == "Gemm"
            and not attribute(node, "transA", 0)
            and attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1
        )

    def _numbers(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> list[ir.Value]:
        """Add what `form.quantise` makes of a weight, as one operator."""
        shapes = form.shapes(fixed_dims(value))
        paired = form.packed and form.bits == _SPLIT
        first = self._editor.add(
            QUANTISE, [value], shapes[0], before=node, name=f"{value.name}.int{form.bits}",
            domain=QUANTISE_DOMAIN, dtype=ir.DataType.from_numpy(form.dtype), attributes=form.attributes(),
        )  # fmt: skip
        made = [self._editor.value(f"{value.name}.scales", shapes[1], value.dtype)]
        if form.bits == _SPLIT and not paired:
            made.append(self._editor.value(f"{value.name}.lower", shapes[2], ir.DataType.UINT8))
        elif not form.symmetric:
            made.append(self._editor.value(f"{value.name}.zero_points", shapes[2], first.dtype))
        if paired:
            made.append(self._editor.value(f"{value.name}.rest", shapes[-2], ir.DataType.UINT8))
            made.append(self._editor.value(f"{value.name}.rest_scales", shapes[-1], value.dtype))
        for place, shape in enumerate(shapes[2:] if form.columns else ()):  # Those of the next pieces.
            kind, dtype = (("int8", first.dtype), ("scales", value.dtype))[place % 2]
            made.append(self._editor.value(f"{value.name}.{kind}", shape, dtype))
        maker = node_of(first)
        self._editor.add_outputs(maker, *made)
        self._editor.weights.update(maker.outputs)
        return list(maker.outputs)

    def _widened(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> ir.Value:
        if self._folds(form):
            return self._joined(node, value, form)
        return self._editor.add(
            "DequantizeLinear", self._numbers(node, value, form), dims_of(value), before=node,
            name=f"{value.name}.wide", dtype=value.dtype,
            attributes={"axis": form.axis, "block_size": form.block_size},
        )  # fmt: skip

    def _joined(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> ir.Value:
        """Spell a weight of 12 or 8 bits in operators that a session evaluates as it opens: it is a constant then.

        In float32, whatever the graph's type is: the CPU provider has no such kernels for float16.
        """
        assert value.dtype is not None
        wide = ir.DataType.FLOAT
        upper, scales, *rest = self._numbers(node, value, form)
        whole = dims_of(value)

        def add(operator: str, inputs: list[ir.Value], shape: Dims, dtype: ir.DataType = wide, **more: int) -> ir.Value:
            return self._editor.add(
                operator, inputs, shape, before=node, name=f"{value.name}.{operator.lower()}", dtype=dtype,
                attributes=more or None,
            )  # fmt: skip

        def cast(one: ir.Value, to: ir.DataType) -> ir.Value:
            return one if one.dtype == to else add("Cast", [one], dims_of(one), to, to=to)

        numbers = cast(upper, wide)
        for bytes_ in rest:
            half, sixteenth = dims_of(bytes_), self._editor.constant(1 / 16, wide.numpy().type)
            both = add("Mul", [cast(bytes_, wide), sixteenth], half)
            second = add("Floor", [both], half)
            first = add("Sub", [both, second], half)
            lower = add("Concat", [first, add("Mul", [second, sixteenth], half)], whole, axis=0)
            numbers = add("Add", [numbers, lower], whole)
        return cast(add("Mul", [numbers, cast(scales, wide)], whole), value.dtype)

    def _multiply(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> None:
        """Put MatMulNBits in an operator's place, or two and their sum; and an Add behind it for a Gemm's bias."""
        result, left = node.outputs[0], required(node, 0)
        depth, width = fixed_dims(value)[form.axis], fixed_dims(value)[1 - form.axis]
        exact = _within(node.metadata_props.get(BLOCK_KEY, ""), self._exact_blocks)
        level, dims = 0 if exact else self._accuracy_level, dims_of(result)
        in_two = self._by_rows and form.bits == _SPLIT and depth % form.block_size == 0
        if in_two:
            left, level, dims = self._in_two(left, form.block_size, node), self._accuracy_level, (2, *dims)

        def add(operator: str, inputs: list[ir.Value], name: str, domain: str = "", **more: int) -> ir.Value:
            return self._editor.add(
                operator, inputs, dims, before=node, name=f"{result.name}.{name}", domain=domain, dtype=result.dtype,
                attributes=more or None,
            )  # fmt: skip

        def multiply(bits: int, parts: list[ir.Value], name: str) -> ir.Value:
            return add(
                "MatMulNBits", [left, *parts], name, CONTRIB, K=depth, N=width, bits=bits, block_size=form.block_size,
                accuracy_level=level,
            )  # fmt: skip

        parts = self._numbers(node, value, form)
        if form.bits == _SPLIT:
            product = add("Add", [multiply(8, parts[:-2], "product"), multiply(4, parts[-2:], "rest")], "both")
        else:
            product = multiply(form.bits, parts, "product")
        if in_two:
            dims = dims_of(result)
            product = add("ReduceSum", [product, self._editor.shape_constant(0)], "whole", keepdims=0)
        if node.op_type == "Gemm" and (bias := input_of(node, 2)) is not None:
            product = add("Add", [product, bias], "sum")
        self._editor.replace(result, product)
        self._counts["multiplied"] += 1

    def _in_two(self, given: ir.Value, size: int, node: ir.Node) -> ir.Value:
        """Return blocks of a value as MatMulNBits rounds them to 8 bits and what that leaves, one behind the other.

        So two products that round are of 16 bits of what they multiply, and read the weights once.
        """
        if (known := self._halves.get((given, size))) is not None:
            return known
        dims = dims_of(given)
        outer, depth = dims[:-1], width_of(given)
        blocks = None if depth is None else depth // size
        each, all_ = (*outer, blocks, 1), (*outer, blocks, size)
        last = self._editor.shape_constant(-1)

        def add(operator: str, inputs: list[ir.Value], shape: Dims, **more: int) -> ir.Value:
            name = f"{given.name}.{operator.lower()}"
            return self._editor.add(operator, inputs, shape, before=node, name=name, attributes=more or None)

        apart = add("Reshape", [given, self._editor.shape_constant(*[0] * len(outer), -1, size)], all_)
        most = add("ReduceMax", [add("Abs", [apart], all_), last], each, keepdims=1)
        step = add("Mul", [most, self._editor.constant(1 / MOST, np.float32)], each)
        step = add("Max", [step, self._editor.constant(LEAST_STEP, np.float32)], each)
        upper = add("Mul", [add("Round", [add("Div", [apart, step], all_)], all_), step], all_)
        axis = self._editor.shape_constant(0)
        both = [add("Unsqueeze", [one, axis], (1, *all_)) for one in (upper, add("Sub", [apart, upper], all_))]
        stacked = add("Concat", both, (2, *all_), axis=0)
        shape = self._editor.shape_constant(*[0] * (len(outer) + 1), -1)
        joined = add("Reshape", [stacked, shape], (2, *dims))
        self._halves[given, size] = joined
        return joined

    def _is_by_rows(self, value: ir.Value, form: BlockFormat) -> bool:
        """Tell whether whole numbers are multiplied, and rows and columns scaled."""
        return (
            self._by_rows and form.packed and form.bits == _BYTE and form.axis == 0
            and value.dtype == ir.DataType.FLOAT and fixed_dims(value)[0] >= _LEAST_DEPTH
        )  # fmt: skip

    def _multiply_by_rows(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> None:
        """Put MatMulIntegerToFloat in an operator's place, or two and their sum; and an Add behind it for a bias.

        Columns that are read apart are products of their own, so that nobody copies them.
        """
        result, given = node.outputs[0], required(node, 0)
        if given not in self._rounded:
            pieces = self._pieces(given, fixed_dims(value)[0])
            self._rounded[given] = RoundedRows(self._editor, given, pieces, node)
        rounded = self._rounded[given]
        bias = input_of(node, 2) if node.op_type == "Gemm" else None
        width = fixed_dims(value)[1]
        parts = [(result, width)] if bias is not None else _columns(result, width)
        columns = tuple(width for _, width in parts) if len(parts) > 1 else ()
        weights = self._numbers(node, value, replace(form, columns=columns))
        exact = _within(node.metadata_props.get(BLOCK_KEY, ""), self._exact_blocks)

        def add(operator: str, inputs: list[ir.Value], to: ir.Value, name: str, domain: str = "") -> ir.Value:
            return self._editor.add(
                operator, inputs, dims_of(to), before=node, name=f"{to.name}.{name}", domain=domain, dtype=to.dtype
            )

        for (found, _), *weight in zip(parts, weights[::2], weights[1::2], strict=True):
            rows = [(rounded.numbers, 1.0, "product"), *([(rounded.rest(node), REST, "rest")] if exact else [])]
            products = []
            for left, scale, name in rows:
                inputs = [left, weight[0], self._editor.constant(scale, np.float32), weight[1]]
                inputs.append(self._editor.constant(MIDDLE, np.uint8))
                products.append(add("MatMulIntegerToFloat", inputs, found, name, CONTRIB))
            product = add("Add", products, found, "both") if exact else products[0]
            scaled = add("Mul", [product, rounded.scales], found, "scaled")
            self._scaled[scaled] = product, rounded.scales
            self._editor.replace(found, scaled if bias is None else add("Add", [scaled, bias], found, "sum"))
        self._counts["multiplied"] += 1

    def _pieces(self, given: ir.Value, depth: int) -> list[Piece]:
        """Return columns of what is multiplied, each as it is before a Concat, and before it was scaled by rows."""
        concat, rank = producer(given, "Concat"), len(dims_of(given))
        if concat is not None and is_used_once(given) and attribute(concat, "axis", 0) in (-1, rank - 1):
            values = [required(concat, place) for place in range(len(concat.inputs))]
            widths = [width for value in values if (width := width_of(value)) is not None]
            if len(widths) == len(values):
                return [self._unscaled(value, width) for value, width in zip(values, widths, strict=True)]
        return [self._unscaled(given, depth)]

    def _unscaled(self, value: ir.Value, width: int) -> Piece:
        """Return a product with what is scaled by rows as the product with what isn't, which saves a reading."""
        product = producer(value, "Mul")
        if product is not None and is_used_once(value):
            for place in (0, 1):
                factor, other = required(product, place), required(product, 1 - place)
                if factor in self._scaled and is_used_once(factor):
                    plain, scales = self._scaled[factor]
                    inputs, dims = [other, plain], dims_of(value)
                    name = f"{value.name}.plain"
                    return Piece(self._editor.add("Mul", inputs, dims, before=product, name=name), width, scales)
        return Piece(value, width)

    def _look_up(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> None:
        """Look up rows of numbers, and of scales, and widen them."""
        result, ids = node.outputs[0], node.inputs[1]
        numbers, scales = self._numbers(node, value, form)
        outer = dims_of(result)[:-1]
        rows = [
            self._editor.add(
                "Gather", [table, ids], (*outer, dims_of(table)[1]), before=node, name=f"{table.name}.rows",
                attributes={"axis": 0},
            )
            for table in (numbers, scales)
        ]  # fmt: skip
        wide = self._editor.add(
            "DequantizeLinear", rows, dims_of(result), before=node, name=f"{result.name}.wide", dtype=value.dtype,
            attributes={"axis": len(outer), "block_size": form.block_size},
        )  # fmt: skip
        self._editor.replace(result, wide)
        self._counts["looked_up"] += 1

    def _look_up_both(self, node: ir.Node, value: ir.Value, form: BlockFormat) -> None:
        """Look up rows of both numbers of 12 bits, and of their scales, and widen them: byte b holds b mod 16, b / 16.

        In float32 until the last step, as `_joined`.
        """
        assert value.dtype is not None
        result, ids = node.outputs[0], node.inputs[1]
        outer = dims_of(result)[:-1]
        blocks, size = form.shapes(fixed_dims(value))[0][1:]
        wide = ir.DataType.FLOAT

        def add(operator: str, inputs: list[ir.Value], shape: Dims, dtype: ir.DataType = wide, **more: int) -> ir.Value:
            return self._editor.add(
                operator, inputs, shape, before=node, name=f"{value.name}.{operator.lower()}", dtype=dtype,
                attributes=more or None,
            )  # fmt: skip

        def constant(number: float) -> ir.Value:
            return self._editor.constant(number, wide.numpy().type)

        def cast(one: ir.Value, to: ir.DataType) -> ir.Value:
            return one if one.dtype == to else add("Cast", [one], dims_of(one), to, to=to)

        rows = []
        for table in self._numbers(node, value, form):
            assert table.dtype is not None and ids is not None
            found = add("Gather", [table, ids], (*outer, *dims_of(table)[1:]), table.dtype, axis=0)
            rows.append(cast(found, wide))
        upper, scales, bytes_, rest_scales = rows
        half = (*outer, blocks, size // 2)
        second = add("Floor", [add("Mul", [bytes_, constant(1 / 16)], half)], half)
        first = add("Sub", [bytes_, add("Mul", [second, constant(16)], half)], half)
        axis = self._editor.shape_constant(-1)
        pair = [add("Unsqueeze", [one, axis], (*half, 1)) for one in (first, second)]
        whole = (*outer, blocks, size)
        places = self._editor.shape_constant(*[0] * len(outer), blocks, size)
        lower = add("Reshape", [add("Concat", pair, (*half, 2), axis=-1), places], whole)
        widened = []
        for numbers, middle, scale in ((upper, 128.0, scales), (lower, 8.0, rest_scales)):
            centred = add("Sub", [numbers, constant(middle)], whole)
            widened.append(add("Mul", [centred, add("Unsqueeze", [scale, axis], (*outer, blocks, 1))], whole))
        shape = self._editor.shape_constant(*[0] * len(outer), blocks * size)
        joined = add("Reshape", [add("Add", widened, whole), shape], dims_of(result))
        self._editor.replace(result, cast(joined, value.dtype))
        self._counts["looked_up"] += 1


def _columns(value: ir.Value, width: int) -> list[tuple[ir.Value, int]]:
    """Return values that hold all columns of a value, in order, and how many: itself, if it is read as a whole."""
    whole = [(value, width)]
    found: dict[tuple[int, int], ir.Value] = {}
    pieces = _pieces_of(value, 0, width)
    for one, start, stop in pieces:
        found[start, stop] = one
    if len(found) < len(pieces):  # Columns that are read twice, by nodes of their own.
        return whole
    bounds = sorted(found)
    ends = [start for start, _ in bounds[1:]] + [width]
    if bounds[0][0] != 0 or [stop for _, stop in bounds] != ends:
        return whole
    return [(found[one], one[1] - one[0]) for one in bounds]


def _pieces_of(value: ir.Value, start: int, stop: int) -> list[tuple[ir.Value, int, int]]:
    """Return what holds columns of a value that nothing reads as a whole, and which; else itself."""
    whole, found = [(value, start, stop)], []
    if value.is_graph_output() or not value.uses():
        return whole
    for user, place in value.uses():
        if place or user.domain:
            return whole
        bounds = _split_at(user, len(dims_of(value)), stop - start)
        if bounds is None:
            return whole
        for output, (first, last) in zip(user.outputs, bounds, strict=True):
            found += _pieces_of(output, start + first, start + last)
    return found


def _split_at(node: ir.Node, rank: int, width: int) -> list[tuple[int, int]] | None:
    """Return which columns the outputs of a Split or a Slice along the last axis are; `None` for what is neither."""
    if node.op_type == "Split" and attribute(node, "axis", 0) in (-1, rank - 1):
        sizes = constant_array(input_of(node, 1))
        count = len(node.outputs)
        if sizes is None and width % count:
            return None
        ends = np.cumsum([width // count] * count if sizes is None else sizes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True)) if ends[-1] == width else None
    if node.op_type != "Slice":
        return None
    given = [constant_array(input_of(node, place)) for place in range(1, 5)]
    if any(one is None or one.size != 1 for one in given):
        return None
    start, stop, axis, step = (int(one.item()) for one in given if one is not None)
    if axis not in (-1, rank - 1) or step != 1 or not 0 <= start < stop:
        return None
    return [(start, min(stop, width))]


def _within(path: str, blocks: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, block) or fnmatch.fnmatchcase(path, f"{block}.*") for block in blocks)
