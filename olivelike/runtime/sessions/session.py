"""What the pipeline asks of an inference engine: one network, opened for one device.

Tensors that go in and out are torch's: on the CPU, or on the GPU that the session runs on (`tensor_device`), where
the engine reads and writes them in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch


@dataclass(frozen=True)
class ValueSpec:
    """An input or output of a network."""

    name: str
    dtype: str
    """A numpy name: `float32`, `float16`, `int32`, `int64`, `bool`."""
    dims: tuple[int | str, ...]
    """Sizes; a name for each dynamic one."""


class BoundCall(Protocol):
    """A call whose buffers are bound once; change the tensors in place between runs."""

    def run(self) -> None:
        """Read the bound inputs, compute, and fill the bound outputs.

        Raises:
            SessionError: if the engine fails, out of memory included.
        """


class Session(Protocol):
    """One network, ready to run."""

    @property
    def inputs(self) -> Mapping[str, ValueSpec]:
        """The inputs, in the graph's order."""

    @property
    def outputs(self) -> Mapping[str, ValueSpec]:
        """The outputs, in the graph's order."""

    @property
    def provider(self) -> str:
        """The execution provider that runs most of the graph, or the OpenVINO device."""

    @property
    def tensor_device(self) -> str:
        """Where bound tensors live: `cpu`, or `cuda:0` and the like."""

    @property
    def moves_inputs(self) -> bool:
        """Whether each run takes inputs to another memory, unless they are bound as constant."""

    def bind(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        constant: Collection[str] = (),
    ) -> BoundCall:
        """Bind contiguous tensors on `tensor_device`, of the dtypes that the graph has.

        Args:
            inputs: Every input of the network, by name.
            outputs: The outputs that are wanted, by name, with their final shapes.
            constant: Inputs that do not change between runs of the call; they go to the device once.

        Raises:
            SessionError: if a name, a dtype or a shape does not fit; the message names both sides.
        """
