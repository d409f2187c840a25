"""The original network in torch, in float64, with the weights of one layer in memory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from olivelike.errors import PassError
from olivelike.graphs.export.torch_network import build_network, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from olivelike.model import Architecture

    Array = np.ndarray[Any, Any]


class Reference:
    """A component's network of diffusers or transformers, which reads its weights as its layers run."""

    def __init__(self, architecture: Architecture, read: Callable[[str], Array]) -> None:
        """Build the network.

        Args:
            architecture: Class and config.
            read: Returns a parameter's values, in any float dtype.

        Raises:
            PassError: when the library refuses the config.
        """
        self._read = read
        # Parameters are on the meta device, so that this changes nothing but what layers take for their dtype.
        network = build_network(architecture).double()
        for prefix, module in network.named_modules():
            own = dict(module.named_parameters(prefix, recurse=False))
            if not own:
                continue
            if next(module.children(), None) is None:
                self._stream(module, own)
            else:
                # What belongs to no layer, such as a class token, is small, and others than its owner may use it.
                _put(module, own, read)
        self._module = wrap(architecture.component, network)

    def __call__(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the component's outputs in order, float64 or boolean.

        Args:
            feeds: Inputs by name, in the order of the component's interface.
        """
        arguments = [torch.from_numpy(value.copy()) for value in feeds.values()]
        arguments = [value.double() if value.is_floating_point() else value for value in arguments]
        with torch.no_grad():
            outputs = self._module(*arguments)
        return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]

    def _stream(self, layer: torch.nn.Module, own: dict[str, torch.nn.Parameter]) -> None:
        def load(layer: torch.nn.Module, _: object) -> None:
            _put(layer, own, self._read)

        def unload(layer: torch.nn.Module, _: object, __: object) -> None:
            for name, empty in own.items():
                setattr(layer, name.rpartition(".")[2], empty)

        layer.register_forward_pre_hook(load)
        layer.register_forward_hook(unload)


def _put(
    module: torch.nn.Module, own: Mapping[str, torch.nn.Parameter], read: Callable[[str], Array]
) -> None:
    """Give a module its own parameters, by full name, in float64."""
    for name, empty in own.items():
        values = torch.from_numpy(np.ascontiguousarray(read(name), dtype=np.float64))
        if values.numel() != empty.numel():
            raise PassError(
                f"parameter {name!r} has shape {tuple(values.shape)}, the network needs {tuple(empty.shape)}; the "
                "config and the weights belong to different networks"
            )
        parameter = torch.nn.Parameter(values.reshape(empty.shape), requires_grad=False)
        setattr(module, name.rpartition(".")[2], parameter)
