"""Nodes of a graph that a target's provider would leave to the CPU, and why.

Asked are the providers whose registries can be listed, with every operator that has a kernel.

An operator of the standard domain is followed by the newest opset at which the provider knows it: runtimes
match kernels by the opset that an operator's form dates from, so `Conv 11` does not run a `Conv` of opset 22.
Source: the kernel registries of onnxruntime 1.31.1 (CPU, CUDA) and ONNX Runtime's OperatorKernels.md (DirectML).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.model.graph import weight_values
from olivelike.model.targets import CONTRIB_DOMAIN, CPU, Kernel, Target

_LETTERS = {ir.DataType.FLOAT: "f", ir.DataType.FLOAT16: "h", ir.DataType.BFLOAT16: "b", ir.DataType.DOUBLE: "d"}

_WITH_FLOAT8 = frozenset({"cpu", "cuda"})
"""Their registries have QuantizeLinear and DequantizeLinear of float8."""
_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Gather", "Identity", "Reshape"}
    | {"Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that move values of any type."""


@dataclass(frozen=True)
class Registry:
    """The kernels of one provider."""

    standard: Mapping[str, int]
    """Newest opset known, by standard operator."""
    contrib: frozenset[str]
    """Operators of the domain com.microsoft."""


def _registry(standard: str, contrib: str) -> Registry:
    pairs = (entry.split() for entry in standard.split(","))
    return Registry({name: int(opset) for name, opset in pairs}, frozenset(contrib.split()))


_CPU = _registry(
    """
    Abs 13, Acos 22, Acosh 22, Add 14, AffineGrid 20, And 7, ArgMax 13, ArgMin 13, Asin 22, Asinh 22, Atan
    22, Atanh 22, Attention 24, AveragePool 22, BatchNormalization 15, BitCast 26, BitShift 11, BitwiseAnd
    18, BitwiseNot 18, BitwiseOr 18, BitwiseXor 18, BlackmanWindow 17, Cast 25, Ceil 13, Celu 12, Clip 13,
    Col2Im 18, Compress 11, Concat 13, ConcatFromSequence 11, ConstantOfShape 25, Conv 22, ConvInteger 10,
    ConvTranspose 22, Cos 22, Cosh 22, CumProd 26, CumSum 14, DFT 20, DeformConv 22, DepthToSpace 13,
    DequantizeLinear 25, Det 22, Div 14, Dropout 22, DynamicQuantizeLinear 11, Einsum 12, Elu 22, Equal 19,
    Erf 13, Exp 13, Expand 13, EyeLike 22, Flatten 25, Floor 13, GRU 22, Gather 13, GatherElements 13,
    GatherND 13, Gelu 20, Gemm 13, GlobalAveragePool 22, GlobalLpPool 2, GlobalMaxPool 22, Greater 13,
    GreaterOrEqual 16, GridSample 22, HammingWindow 17, HannWindow 17, HardSigmoid 22, Hardmax 13, Identity
    25, If 25, InstanceNormalization 22, IsInf 20, IsNaN 20, LRN 13, LSTM 22, LayerNormalization 17,
    LeakyRelu 16, Less 13, LessOrEqual 16, Log 13, LogSoftmax 13, Loop 25, LpNormalization 22, LpPool 22,
    MatMul 13, MatMulInteger 10, Max 13, MaxPool 22, MaxRoiPool 1, MaxUnpool 22, Mean 13,
    MeanVarianceNormalization 13, MelWeightMatrix 17, Min 13, Mod 13, Mul 14, Multinomial 7, Neg 13,
    NonMaxSuppression 11, NonZero 13, Not 1, OneHot 11, Optional 15, OptionalGetElement 18,
    OptionalHasElement 18, Or 7, PRelu 16, Pad 25, Pow 15, QLinearConv 10, QLinearMatMul 21, QuantizeLinear
    25, RMSNormalization 23, RNN 22, RandomNormal 1, RandomNormalLike 1, RandomUniform 1, RandomUniformLike
    1, Range 27, Reciprocal 13, ReduceL1 18, ReduceL2 18, ReduceLogSum 18, ReduceLogSumExp 18, ReduceMax 20,
    ReduceMean 18, ReduceMin 20, ReduceProd 18, ReduceSum 13, ReduceSumSquare 18, RegexFullMatch 20, Relu
    14, Reshape 25, Resize 19, ReverseSequence 10, RoiAlign 16, RotaryEmbedding 23, Round 22, STFT 17, Scan
    25, Scatter 9, ScatterElements 18, ScatterND 18, Selu 22, SequenceAt 11, SequenceConstruct 11,
    SequenceEmpty 11, SequenceErase 11, SequenceInsert 11, SequenceLength 11, Shape 25, Shrink 9, Sigmoid
    13, Sign 13, Sin 22, Sinh 22, Size 25, Slice 13, Softmax 13, Softplus 22, Softsign 22, SpaceToDepth 13,
    Split 18, SplitToSequence 24, Sqrt 13, Squeeze 25, StringConcat 20, StringNormalizer 10, StringSplit 20,
    Sub 14, Sum 13, Tan 22, Tanh 13, TensorScatter 24, TfIdfVectorizer 9, ThresholdedRelu 22, Tile 13, TopK
    24, Transpose 25, Trilu 14, Unique 11, Unsqueeze 25, Upsample 9, Where 16, Xor 7
    """,
    """
    Attention AttnLSTM BeamSearch BiasGelu BifurcationDetector BranchwiseRMSNorm CDist CausalConvWithState
    ConvTransposeWithDynamicPads CropAndResize DecoderMaskedMultiHeadAttention DequantizeLinear
    DynamicQuantizeLSTM DynamicQuantizeMatMul DynamicTimeWarping EmbedLayerNormalization EngramGate
    ExpandDims FastGelu FusedConv FusedGemm FusedMatMul GatedAdd GatedRMSNorm GatherBlockQuantized GatherND
    Gelu GreedySearch GridSample GroupQueryAttention HyperConnectionPostMix HyperConnectionPreMix Inverse
    LinearAttention LinearAttentionGate MRotaryEmbedding MatMulBnb4 MatMulFpQ4 MatMulInteger16
    MatMulIntegerToFloat MatMulNBits MaxpoolWithMask MoE MultiHeadAttention MurmurHash3 NGramHashMapping
    NGramRepeatBlock NhwcMaxPool Pad QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool
    QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid
    QLinearSoftmax QLinearWhere QMoE QuantizeLinear QuickGelu Range RotaryEmbedding SampleOp Sampling
    ScaledSiLU SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention SparseToDenseMatMul
    Tokenizer TransposeMatMul Trilu UnfoldTensor Unique VarlenNGramHashMapping WhisperBeamSearch
    WordConvEmbedding
    """,
)

_CUDA = _registry(
    """
    Abs 13, Add 14, And 7, ArgMax 13, ArgMin 13, Attention 24, AveragePool 22, BatchNormalization 15, Cast
    25, Ceil 13, Clip 13, Compress 11, Concat 13, ConcatFromSequence 11, ConstantOfShape 25, Conv 22,
    ConvTranspose 22, Cos 22, CumSum 14, DeformConv 22, DepthToSpace 13, DequantizeLinear 25, Div 14,
    Dropout 13, Einsum 12, Elu 6, Equal 19, Erf 13, Exp 13, Expand 13, EyeLike 9, Flatten 25, Floor 13, GRU
    22, Gather 13, GatherElements 13, GatherND 13, Gelu 20, Gemm 13, GlobalAveragePool 22, GlobalMaxPool 22,
    Greater 13, GreaterOrEqual 16, GridSample 22, HardSigmoid 22, HardSwish 22, Identity 25, If 25,
    InstanceNormalization 6, IsInf 20, IsNaN 20, LRN 13, LSTM 22, LayerNormalization 17, LeakyRelu 16, Less
    13, LessOrEqual 16, Log 13, LogSoftmax 13, Loop 25, LpNormalization 22, MatMul 13, MatMulInteger 10, Max
    13, MaxPool 12, Min 13, Mod 13, Mul 14, Neg 13, NonMaxSuppression 11, NonZero 13, Not 1, OneHot 11, Or
    7, PRelu 16, Pad 25, Pow 15, QuantizeLinear 25, RMSNormalization 23, RNN 22, RandomNormal 22,
    RandomNormalLike 22, RandomUniform 22, RandomUniformLike 22, Range 27, Reciprocal 13, ReduceL1 18,
    ReduceL2 18, ReduceLogSum 18, ReduceLogSumExp 18, ReduceMax 20, ReduceMean 18, ReduceMin 20, ReduceProd
    18, ReduceSum 13, ReduceSumSquare 18, Relu 14, Reshape 25, Resize 19, ReverseSequence 10, RoiAlign 22,
    RotaryEmbedding 23, Round 22, Scan 25, Scatter 9, ScatterElements 18, ScatterND 18, Selu 6, SequenceAt
    11, SequenceConstruct 11, SequenceEmpty 11, SequenceErase 11, SequenceInsert 11, SequenceLength 11,
    Shape 25, Shrink 9, Sigmoid 13, Sign 13, Sin 22, Size 25, Slice 13, Softmax 13, Softplus 22, Softsign
    22, SpaceToDepth 13, Split 18, Sqrt 13, Squeeze 25, Sub 14, Sum 13, Tanh 13, TensorScatter 24,
    ThresholdedRelu 10, Tile 13, TopK 24, Transpose 25, Trilu 14, Unsqueeze 25, Upsample 9, Where 16, Xor 7
    """,
    """
    Attention BeamSearch BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout
    BitmaskDropout BranchwiseRMSNorm CausalConvWithState ComplexMul ComplexMulConj
    ConvTransposeWithDynamicPads DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention
    DequantizeLinear DequantizeWithOrder DynamicSparseAttention DynamicTimeWarping EmbedLayerNormalization
    EngramGate FastGelu FusedConv FusedMatMul GatedAdd GatedDeltaNet GatedRMSNorm GatedRelativePositionBias
    GatherBlockQuantized Gelu GemmFloat8 GemmaRotaryEmbedding GreedySearch GridSample GroupNorm
    GroupQueryAttention HyperConnectionPostMix HyperConnectionPreMix Inverse Irfft LinearAttention
    LinearAttentionGate LongformerAttention MRotaryEmbedding MatMulBlockQuantizedFp4Weight
    MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulNBits MoE MultiHeadAttention NGramHashMapping
    NGramRepeatBlock NhwcConv PackedAttention PackedMultiHeadAttention PackedSparseAttentionIndexer
    PagedAttention QAttention QMoE QOrderedAttention QOrderedGelu QOrderedLayerNormalization
    QOrderedLongformerAttention QOrderedMatMul QuantizeLinear QuantizeWithOrder QuickGelu
    RelativePositionBias RemovePadding RestorePadding Rfft RotaryEmbedding Sampling ScaledSiLU SkipGroupNorm
    SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention SparseAttentionIndexer
    SparsePagedAttention TransposeMatMul Trilu UnfoldTensor VarlenCausalConvWithState VarlenNGramHashMapping
    WhisperBeamSearch
    """,
)

_DIRECTML = _registry(
    """
    Abs 13, Acos 7, Acosh 9, Add 14, And 7, ArgMax 13, ArgMin 13, Asin 7, Asinh 9, Atan 7, Atanh 9,
    AveragePool 19, BatchNormalization 15, BitShift 11, BitwiseAnd 18, BitwiseNot 18, BitwiseOr 18,
    BitwiseXor 18, Cast 21, CastLike 21, Ceil 13, Celu 12, Clip 13, Col2Im 18, Concat 13, ConcatFromSequence
    11, ConstantOfShape 21, Conv 11, ConvInteger 10, ConvTranspose 11, Cos 7, Cosh 9, CumSum 14, DFT 20,
    DepthToSpace 13, DequantizeLinear 21, Div 14, Dropout 7, DynamicQuantizeLinear 11, Einsum 12, Elu 6,
    Equal 19, Erf 13, Exp 13, Expand 13, EyeLike 9, Flatten 21, Floor 13, GRU 14, Gather 13, GatherElements
    13, GatherND 13, Gemm 13, GlobalAveragePool 1, GlobalLpPool 2, GlobalMaxPool 1, Greater 13,
    GreaterOrEqual 16, GridSample 16, HardSigmoid 6, Hardmax 13, Identity 21, If 19, InstanceNormalization
    6, IsInf 20, IsNaN 20, LRN 13, LSTM 14, LayerNormalization 17, LeakyRelu 16, Less 13, LessOrEqual 16,
    Log 13, LogSoftmax 13, LpNormalization 1, LpPool 18, MatMul 13, MatMulInteger 10, Max 13, MaxPool 12,
    MaxRoiPool 1, MaxUnpool 11, Mean 13, MeanVarianceNormalization 13, Min 13, Mod 13, Mul 14, Neg 13,
    NonZero 13, Not 1, OneHot 11, OptionalGetElement 18, OptionalHasElement 18, Or 7, PRelu 16, Pad 21, Pow
    15, QLinearConv 10, QLinearMatMul 21, QuantizeLinear 21, RNN 14, Range 11, Reciprocal 13, ReduceL1 18,
    ReduceL2 18, ReduceLogSum 18, ReduceLogSumExp 18, ReduceMax 20, ReduceMean 18, ReduceMin 20, ReduceProd
    18, ReduceSum 13, ReduceSumSquare 18, Relu 14, Reshape 21, Resize 19, ReverseSequence 10, RoiAlign 16,
    Round 11, STFT 17, Scatter 13, ScatterElements 16, ScatterND 16, Selu 6, SequenceAt 11,
    SequenceConstruct 11, SequenceEmpty 11, SequenceErase 11, SequenceInsert 11, SequenceLength 11, Shape
    21, Shrink 9, Sigmoid 13, Sign 13, Sin 7, Sinh 9, Size 21, Slice 13, Softmax 13, Softplus 1, Softsign 1,
    SpaceToDepth 13, Split 18, Sqrt 13, Squeeze 21, Sub 14, Sum 13, Tan 7, Tanh 13, ThresholdedRelu 10, Tile
    13, TopK 11, Transpose 21, Trilu 14, Unsqueeze 21, Upsample 10, Where 16, Xor 7
    """,
    """
    Attention BiasAdd BiasGelu BiasSplitGelu ConvTransposeWithDynamicPads DequantizeLinear
    DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedMatMul FusedMatMulActivation Gelu GroupNorm
    GroupQueryAttention MatMulIntegerToFloat MatMulNBits MultiHeadAttention NhwcConv QAttention QLinearAdd
    QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearSigmoid QuantizeLinear QuickGelu
    RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization
    """,
)

_FUNCTION: Final = 0
"""In place of an opset: an operator that ONNX spells out in others, which each target runs."""

REGISTRIES: Final[Mapping[str, Registry]] = {"cpu": _CPU, "cuda": _CUDA, "directml": _DIRECTML}
"""By target name."""


@dataclass(frozen=True)
class LeftNode:
    """A node that the provider does not run."""

    name: str
    operator: str
    """As `domain::name`; standard operators by their name alone."""
    reason: str
    on_cpu: bool = True
    """Whether the CPU has a kernel for it; without one no session opens."""


def left_to_cpu(model: ir.Model, target: Target) -> tuple[LeftNode, ...]:
    """Return the nodes without a kernel, in graph order; for `cpu`, those that do not run at all.

    Nodes over weights alone do not count: they are gone once the graph has its weights.
    Operators that ONNX defines by a function body count as run: the runtime puts the body in their place.
    Types are checked for fused operators, and where a standard one computes in bfloat16. Where a provider's
    registry can't be listed (those of `REGISTRIES` can), standard operators count as run up to the target's opset.
    """
    local = {(function.domain, function.name) for function in model.functions.values()}
    opsets = model.graph.opset_imports
    folded = weight_values(model.graph)
    found = []
    for node in RecursiveGraphIterator(model.graph):
        if (node.domain, node.op_type) in local or folded.issuperset(node.outputs):
            continue
        reason = _why_left(node, target, opsets)
        if reason is not None:
            operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            on_cpu = target is not CPU and _why_left(node, CPU, opsets) is None
            found.append(LeftNode(node.name or "unnamed", operator, reason, on_cpu))
    return tuple(found)


def _why_left(node: ir.Node, target: Target, opsets: dict[str, int]) -> str | None:
    if node.domain == "":
        if node.op_type not in _MOVES and not target.runs_bfloat16(node.op_type) and _in_bfloat16(node):
            return f"{target.name} is not known to have it in bfloat16"
        if (reason := _why_quantised(node, target)) is not None:
            return reason
        return _why_standard(node.op_type, target, opsets.get("", 1))
    if node.domain != CONTRIB_DOMAIN:
        return f"{target.name} knows no domain {node.domain!r}"
    kernel = target.kernels.get(node.op_type)
    if kernel is not None:
        return _why_form(node, kernel, target.name)
    registry = REGISTRIES.get(target.name)
    known = registry is not None and node.op_type in registry.contrib
    # What a weight is multiplied by is in the type that the kernel has to take.
    dtype = _dtype(node.inputs[0])
    known |= node.op_type == "MatMulNBits" and dtype is not None and _LETTERS.get(dtype) in (*target.block_matmul,)
    return None if known else f"{target.name} has no kernel for it"


def _why_quantised(node: ir.Node, target: Target) -> str | None:
    """Return why numbers of 8 bits or others are not widened or made there, if that is known."""
    if node.op_type not in {"DequantizeLinear", "QuantizeLinear"}:
        return None
    numbers = _dtype((node.outputs if node.op_type == "QuantizeLinear" else node.inputs)[0])
    if numbers is None:
        return None
    if numbers.is_floating_point():
        known = target.rounded == "fp8" or target.name in _WITH_FLOAT8
        return None if known else f"{target.name} is not known to have it in float8"
    if "block_size" in node.attributes and target.block_weights and numbers.bitwidth not in target.block_weights:
        return f"{target.name} has no kernel for blocks of {numbers.bitwidth} bits"
    return None


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _in_bfloat16(node: ir.Node) -> bool:
    values = (*node.inputs, *node.outputs)
    return any(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in values)


def _why_standard(op_type: str, target: Target, opset: int) -> str | None:
    if op_type == "Constant":
        return None
    since = _since(op_type, opset)
    if since is None:
        return f"ONNX has no such operator at opset {opset}"
    if since == _FUNCTION:
        return None
    registry = REGISTRIES.get(target.name)
    if registry is not None and op_type not in registry.standard:
        return f"{target.name} has no kernel for it"
    newest, knows = target.opset, "reads up to"
    if registry is not None:
        newest, knows = registry.standard[op_type], "knows it up to"
    return f"its form dates from opset {since}, and {target.name} {knows} {newest}" if since > newest else None


@cache
def _since(op_type: str, opset: int) -> int | None:
    """Return the opset that an operator's form dates from, or `_FUNCTION`; `None` if ONNX has no such operator."""
    if not onnx.defs.has(op_type, opset):
        return None
    schema = onnx.defs.get_schema(op_type, opset)
    return _FUNCTION if schema.has_function or schema.has_context_dependent_function else int(schema.since_version)


def _why_form(node: ir.Node, kernel: Kernel, target: str) -> str | None:
    first = node.inputs[0] if node.inputs else None
    if first is not None and first.dtype in _LETTERS and not _takes(kernel, _LETTERS[first.dtype], target):
        return f"{target} has no kernel for {first.dtype.name.lower()}"
    width = None if first is None or first.shape is None or not first.shape else first.shape[-1]
    if kernel.channels is not None and isinstance(width, int) and width not in kernel.channels:
        allowed = ", ".join(map(str, sorted(kernel.channels)))
        return f"{target} has kernels for widths of {allowed}, not {width}"
    if kernel.layouts == {"NHWC"} and not _flag(node, "channels_last", default=1):
        return f"{target} has a kernel for the channels-last layout alone"
    if node.op_type != "MultiHeadAttention":
        return None
    packed = sum(value is not None for value in node.inputs[:3]) < 3
    return f"{target} has no kernel for packed inputs" if packed and not kernel.packed else None


def _takes(kernel: Kernel, letter: str, target: str) -> bool:
    """The CPU provider casts around a kernel that lacks float16."""
    return letter in kernel.dtypes or (target == "cpu" and letter == "h" and "f" in kernel.dtypes)


def _flag(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default
