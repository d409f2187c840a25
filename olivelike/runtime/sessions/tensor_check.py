"""Whether tensors fit a network's inputs and outputs; both engines ask before they bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

    from olivelike.runtime.sessions.session import ValueSpec


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
