"""All that the author of a pass needs; nothing else of olivelike has to be imported, and nothing else is public.

`PASS_API` is the version of what is exported here and described in `docs/passes.md`. Within one version names are
added, never changed or removed; a pass that is written for another version says so (`Pass.pass_api`) and is refused
with a remedy instead of failing somewhere.

A pass is a frozen pydantic model: its fields are the step's options, its one method `run` takes a model and returns a
model. It declares which facets it reads and writes; its cache key holds only what it reads.
"""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from
from olivelike.errors import PassError
from olivelike.model import (
    BARRIERS,
    BLOCK_KEY,
    PARAMETER_KEY,
    Architecture,
    Graph,
    Model,
    Tensor,
    Weights,
    block_of,
    parameter_inputs,
    real_inputs,
    weight_values,
)
from olivelike.model.targets import Target
from olivelike.pass_api.context import (
    Cache,
    Context,
    Drawing,
    EmbeddingInput,
    LoraInput,
    PrecisionPlan,
    Progress,
    TensorAccess,
)
from olivelike.pass_api.pass_class import ADAPTERS as ADAPTERS, INPUTS as INPUTS, PASS_API, Pass, Resources

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
    from olivelike.graphs.editing.values import (
        attribute,
        constant_array,
        dims_of,
        input_of,
        only_user,
        producer,
        same_shape,
    )
    from olivelike.graphs.fusion.rule import Rule, Scope

__all__ = [
    "BARRIERS", "BLOCK_KEY", "CONTRIB", "PARAMETER_KEY", "PASS_API", "Architecture", "Cache", "Context",
    "Drawing", "EmbeddingInput", "Graph", "GraphEditor", "LoraInput", "Model", "Pass", "PassError",
    "PrecisionPlan", "Progress", "Resources", "Rule", "Scope", "Target", "Tensor", "TensorAccess", "Weights",
    "attribute", "block_of", "constant_array", "dims_of", "input_of", "only_user", "parameter_inputs", "producer",
    "real_inputs", "same_shape", "weight_values",
]  # fmt: skip

# What edits graphs imports onnx_ir, so it is imported when it is first asked for.
__getattr__ = names_from(__name__, __file__)
