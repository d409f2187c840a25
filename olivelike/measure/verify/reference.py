"""The original network in torch, in float64, with the weights of one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from olivelike.errors import PassError
from olivelike.graphs.export.torch_network import build_network, wrap

if TYPE_CHECKING:
    from olivelike.model import Architecture

    Array = np.ndarray[Any, Any]


class Reference:
    """A component's network of diffusers or transformers, which reads its weights as its layers run."""

    def __init__(self, architecture: Architecture, read: Callable[[str], Array]) -> None:
        """Build the network. Raises `PassError` when the library refuses the config.

        Args:
            read: Returns a parameter's values, in any float dtype.
        """
        # Parameters are on the meta device, so that this changes nothing but what layers take for their dtype.
        network = build_network(architecture).double()
        for prefix, module in network.named_modules():
            own = dict(module.named_parameters(prefix, recurse=False))
            if own and next(module.children(), None) is None:
                _stream(network, module, own, read)
            else:
                # What belongs to no layer, such as a class token, is small, and others than its owner may use it.
                fill(network, own, read)
        self._module = wrap(architecture.component, network)

    def __call__(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the component's outputs in order, float64 or boolean.

        Args:
            feeds: Inputs by name, in the order of the component's interface.
        """
        return run_torch(self._module, feeds)


def run_torch(network: torch.nn.Module, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a float64 network that takes a component's inputs in order."""
    arguments = [torch.from_numpy(value.copy()) for value in feeds.values()]
    arguments = [value.double() if value.is_floating_point() else value for value in arguments]
    with torch.no_grad():
        outputs = network(*arguments)
    return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _stream(
    network: torch.nn.Module,
    layer: torch.nn.Module,
    own: Mapping[str, torch.nn.Parameter],
    read: Callable[[str], Array],
) -> None:
    def load(_: object, __: object) -> None:
        fill(network, own, read)

    def unload(layer: torch.nn.Module, _: object, __: object) -> None:
        for name, empty in own.items():
            setattr(layer, name.rpartition(".")[2], empty)

    layer.register_forward_pre_hook(load)
    layer.register_forward_hook(unload)


def fill(
    network: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    read: Callable[[str], Array],
    dtype: torch.dtype = torch.float64,
) -> None:
    """Give a network parameters with values. Raises `PassError` when values do not fit.

    Args:
        parameters: Those to replace, by name.
        read: Returns a parameter's values, in any float dtype.
        dtype: Of the new parameters.
    """
    for name, empty in parameters.items():
        values = torch.from_numpy(np.ascontiguousarray(read(name), dtype=str(dtype).removeprefix("torch.")))
        if values.numel() != empty.numel():
            raise PassError(
                f"parameter {name!r} has shape {tuple(values.shape)}, the network needs {tuple(empty.shape)}; the "
                "config and the weights belong to different networks"
            )
        owner, _, leaf = name.rpartition(".")
        parameter = torch.nn.Parameter(values.reshape(empty.shape), requires_grad=False)
        setattr(network.get_submodule(owner), leaf, parameter)
