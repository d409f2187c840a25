"""Inputs and outputs of a pipeline that Triton serves: the tensors of its requests, and of its networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NETWORKS_FILE: Final = "networks.json"
"""Inputs and outputs of a served pipeline's networks, which its loop can't ask the server for."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output."""

    name: str
    dtype: str
    """A numpy name, or `string`."""
    dims: tuple[int | str, ...]
    """Sizes; a name for each that is free."""


PIPELINE_INPUTS: Final = (
    TensorSpec("prompt", "string", ("pictures",)),
    TensorSpec("negative_prompt", "string", (1,)),
    TensorSpec("seed", "int64", (1,)),
    TensorSpec("steps", "int32", (1,)),
    TensorSpec("guidance", "float32", (1,)),
    TensorSpec("width", "int32", (1,)),
    TensorSpec("height", "int32", (1,)),
    TensorSpec("scheduler", "string", (1,)),
)
"""Inputs of a request; all but the prompt may be left out."""
PIPELINE_OUTPUTS: Final = (
    TensorSpec("images", "uint8", ("pictures", "height", "width", 3)),
    TensorSpec("seeds", "int64", ("pictures",)),
    TensorSpec("has_nsfw_concepts", "bool", ("pictures",)),
)
"""Outputs of a request; the last with a safety checker alone."""
