"""The norm after a text encoder's last layer, for hidden states of an earlier one.

Clients take `hidden_states.N` as they are and norm them with the network's own weights, which are in its model file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

_OUTPUT: Final = "last_hidden_state"
_WEIGHTS: Final = {"LayerNormalization": (1, 2), "SkipLayerNormalization": (2, 3)}
"""Operator → positions of scale and bias among its inputs."""
_EPSILON: Final = {"LayerNormalization": 1e-5, "SkipLayerNormalization": 1e-12}
"""Defaults of the operators' schemas."""


@dataclass(frozen=True, eq=False)
class FinalNorm:
    """Scale and bias, of shape (width,), float32."""

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float

    def apply(self, states: torch.Tensor) -> torch.Tensor:
        """Norm hidden states of shape (rows, tokens, width); computed in float32, returned in their dtype."""
        from torch.nn.functional import layer_norm

        weight, bias = self.weight.to(states.device), self.bias.to(states.device)
        return layer_norm(states.float(), weight.shape, weight, bias, self.epsilon).to(states.dtype)


def read_final_norm(path: Path) -> FinalNorm:
    """Read the norm that gives `last_hidden_state` from a model file.

    Raises:
        SourceError: if the file can't be read, or its last operator is no norm.
    """
    import onnx
    import torch
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise SourceError(f"{path}: can't be read: {error}; run the workflow again") from error
    node = next((node for node in _chain(model) if node.op_type in _WEIGHTS), None)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    names = [node.input[place] for place in _WEIGHTS[node.op_type]] if node is not None else []
    if node is None or not stored.keys() >= set(names):
        raise SourceError(
            f"{path}: {_OUTPUT} is no layer norm with weights of its own, which clip_skip needs; "
            "convert the checkpoint with `olivelike run`"
        )
    weight, bias = (_tensor(stored[name], path) for name in names)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), _EPSILON[node.op_type])
    return FinalNorm(torch.from_numpy(weight), torch.from_numpy(bias), epsilon)


def _chain(model: Any) -> list[Any]:
    """Return the node that gives `last_hidden_state`, or those that cast what it gives."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found, name = [], _OUTPUT
    while (node := makers.get(name)) is not None:
        found.append(node)
        if node.op_type != "Cast":
            break
        name = node.input[0]
    return found


def _tensor(stored: Any, path: Path) -> Any:
    import numpy as np
    import onnx

    try:
        array = onnx.numpy_helper.to_array(stored, str(path.parent))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {stored.name} can't be read: {error}; run the workflow again") from error
    return np.array(array, np.float32)
