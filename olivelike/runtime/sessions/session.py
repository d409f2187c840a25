"""What the pipeline asks of an inference engine: one network, opened for one device.

Tensors that go in and out are torch's: on the CPU, or on the GPU that the session runs on (`tensor_device`), where
the engine reads and writes them in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from olivelike.errors import SessionError

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


def check_tensors(
    network: str,
    specs: tuple[Mapping[str, ValueSpec], Mapping[str, ValueSpec]],
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    constant: Collection[str],
    device: str,
) -> None:
    """Check names, dtypes, shapes, memory layout and device of what is to be bound.

    Args:
        network: Named in errors.
        specs: The network's inputs and outputs.
        inputs: Must be all inputs.
        outputs: May be some.
        constant: Must be names of inputs.
        device: Where tensors must be, as torch names it.

    Raises:
        SessionError: for the first that does not fit; the message names both sides.
    """
    wanted, made = specs
    if missing := [name for name in wanted if name not in inputs]:
        raise SessionError(f"{network}: input {missing[0]!r} is not bound; inputs: {', '.join(wanted)}")
    if not outputs:
        raise SessionError(f"{network}: no output is bound; outputs: {', '.join(made)}")
    for name in constant:
        if name not in inputs:
            raise SessionError(f"{network}: constant input {name!r} is not bound")
    for kind, known, given in (("input", wanted, inputs), ("output", made, outputs)):
        for name, tensor in given.items():
            if name not in known:
                raise SessionError(f"{network}: has no {kind} {name!r}; {kind}s: {', '.join(known)}")
            _check_tensor(f"{network}: {kind} {name!r}", known[name], tensor, device)


def _check_tensor(what: str, spec: ValueSpec, tensor: torch.Tensor, device: str) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != spec.dtype:
        raise SessionError(f"{what} is {spec.dtype}, the tensor is {dtype}")
    shape = tuple(tensor.shape)
    fits = len(shape) == len(spec.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(spec.dims, shape, strict=True)
    )
    if not fits:
        dims = ", ".join(map(str, spec.dims))
        raise SessionError(f"{what} has the shape ({dims}), the tensor {shape}")
    if 0 in shape:
        raise SessionError(f"{what}: the tensor of shape {shape} is empty")
    if not tensor.is_contiguous():
        raise SessionError(f"{what}: the tensor is not contiguous")
    if str(tensor.device) != device:
        raise SessionError(f"{what}: the tensor is on {tensor.device}, the session reads tensors on {device}")
