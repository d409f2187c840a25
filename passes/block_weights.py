"""`weights8` and `weights4`: keep weights in eight or four bits, with a scale for each block of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from olivelike.families import blocks_for
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.model.targets import Target

BlockSize = Annotated[
    Literal[16, 32, 64, 128, 256],
    Field(
        description="Weights that share a scale; of a row that it does not divide, the largest part of it that does."
    ),
]
Symmetric = Annotated[bool, Field(description="Without zero points; `k_quant` has them always.")]
FloatBlocks = Annotated[
    tuple[str, ...],
    Field(description="Blocks whose weights stay as they are: module paths with wildcards, and what lies inside."),
]


class BlockWeights(Pass):
    """Keep weights as whole numbers of some bits, with a scale for each block of them."""

    reads: ClassVar = ("graph", "target")
    writes: ClassVar = ("graph",)
    once: ClassVar = True

    block_size: BlockSize

    method: Literal["rtn", "k_quant"] = "rtn"
    """`rtn` rounds to nearest; `k_quant` searches scale and zero point for the least error, some ten times slower."""

    symmetric: Symmetric

    convolutions: bool = True
    """Quantise their weights too: for size alone, since each run widens them first."""

    embeddings: bool = True
    """Quantise tables that rows are looked up in, to 8 bits at that."""

    float_blocks: FloatBlocks

    fine_blocks: tuple[str, ...]
    """Blocks whose weights have more bits, likewise: few weights with a large part in the error."""

    paired_blocks: tuple[str, ...]
    """Blocks whose weights have 12 bits, likewise, as two products or lookups, of 8 bits and of 4, on target `cpu`."""

    int8_compute: bool = False
    """Let MatMulNBits round activations to 8 bits as well: faster on a CPU, and less exact."""

    exact_blocks: tuple[str, ...]
    """Blocks, likewise, where `int8_compute` rounds no activations, as in `paired_blocks`; to 16 bits with
    `int8_rows`."""

    @property
    def rows(self) -> bool:
        """Whether products are of whole numbers, scaled by rows and columns."""
        return False

    @property
    @abstractmethod
    def bits(self) -> Literal[4, 8]:
        """Bits of a weight's number."""

    def unsupported_reason(self, target: Target) -> str | None:
        """Each weight needs MatMulNBits or DequantizeLinear in blocks, or else is folded as a session opens."""
        if not _runs(target, self.bits):
            from olivelike.model.targets import targets_that

            known = targets_that(lambda one: _runs(one, self.bits))
            other = ", or `weights8`" if _runs(target, 8) else ""
            return (
                f"target {target.name!r} has no kernel that is known to run weights in blocks of {self.bits} bits; "
                f"use target {known}{other}"
            )
        if self.symmetric and self.method == "rtn" and not target.block_symmetric:
            return f"target {target.name!r} needs zero points; set `symmetric: false`"
        return None

    def run(self, model: Model, context: Context) -> Model:
        """Put numbers and scales in the place of weights, and count."""
        from olivelike.graphs.inspect.quantised import facts
        from olivelike.graphs.quantisation import BlockQuantisation
        from olivelike.model import Graph
        from olivelike.model.quantised_values import BlockFormat

        graph = model.require("graph").to_ir()
        symmetric = self.symmetric and self.method == "rtn"
        form = BlockFormat(self.bits, self.block_size, 0, symmetric, packed=False, method=self.method)
        quantisation = BlockQuantisation(
            graph,
            form,
            context.target,
            convolutions=self.convolutions,
            embeddings=self.embeddings,
            float_blocks=self.float_blocks,
            fine_blocks=self.fine_blocks,
            paired_blocks=self.paired_blocks,
            exact_blocks=self.exact_blocks,
            accuracy_level=4 if self.int8_compute else 0,
            rows=self.rows,
        )
        context.report(**quantisation.quantise(), kept_weights=facts(graph))
        return model.replace(graph=Graph.from_ir(graph))


class Weights8(BlockWeights):
    """Keep weights in 8 bits, scale and zero point for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights4",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.27)

    block_size: BlockSize = 256

    symmetric: Symmetric = False

    float_blocks: FloatBlocks = blocks_for("weights8").in_float

    fine_blocks: tuple[str, ...] = blocks_for("weights8").fine
    """Blocks whose weights have 12 bits, likewise: few weights with a large part in the error."""

    paired_blocks: tuple[str, ...] = blocks_for("weights8").paired

    exact_blocks: tuple[str, ...] = blocks_for("weights8").exact

    int8_rows: bool = False
    """With `int8_compute`, on target `cpu`: a scale for each row of activations and each output of a layer, in place of
    those of blocks. Faster on processors with AMX; on those without VNNI sums overflow."""

    @property
    def rows(self) -> bool:
        """Whether products are of whole numbers, scaled by rows and columns."""
        return self.int8_rows

    @property
    def bits(self) -> Literal[4, 8]:
        """Bits of a weight's number."""
        return 8


class Weights4(BlockWeights):
    """Keep weights in 4 bits, scale and zero point for each block; run it after all fusions and conversions."""

    conflicts: ClassVar = ("weights8",)
    resources: ClassVar = Resources(memory_bytes=400 << 20, weights_scale=0.16)

    block_size: BlockSize = 64

    symmetric: Symmetric = False

    float_blocks: FloatBlocks = blocks_for("weights4").in_float

    fine_blocks: tuple[str, ...] = blocks_for("weights4").fine
    """Blocks whose weights have 8 bits, likewise: few weights with a large part in the error."""

    paired_blocks: tuple[str, ...] = blocks_for("weights4").paired

    exact_blocks: tuple[str, ...] = blocks_for("weights4").exact

    @property
    def bits(self) -> Literal[4, 8]:
        """Bits of a weight's number."""
        return 4


def _runs(target: Target, bits: int) -> bool:
    return bits in (*target.block_weights, *(target.block_matmul_bits if target.block_matmul else ()))
