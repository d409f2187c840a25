"""`merge_lora`: add the workflow's LoRAs to a component's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from olivelike.families import LORA_COMPONENTS
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model, Tensor


class MergeLora(Pass):
    """Merge the workflow's `loras:` into the weights; the graph stays as it is, so it may stand anywhere."""

    reads: ClassVar = ("weights", "loras")
    writes: ClassVar = ("weights",)
    components: ClassVar = LORA_COMPONENTS
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=1000 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Check every key of every file; keep what can't be computed again cheaply whenever it is read."""
        import numpy as np

        from olivelike.model.tensor_file import DTYPES
        from olivelike.sources.adapters.lora_file import WeightedLora
        from olivelike.sources.adapters.merge import changes
        from olivelike.sources.adapters.open_lora import open_lora
        from olivelike.sources.files.pickled import read_pickle_table

        weights = model.require("weights")
        loras = [
            WeightedLora(open_lora(lora.path, adapter=lora.adapter, read_pickle=read_pickle_table), lora.weight)
            for lora in context.loras
        ]
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        digests = {lora.file.path: context.tensors.file(lora.file.path) for lora in loras}
        changed: dict[str, Tensor] = {}
        for name, change in changes(model.component, shapes, loras).items():
            tensor = weights[name]
            change.check_dtype(np.dtype(DTYPES[tensor.read_dtype]))
            if change.is_low_rank and not tensor.added:
                changed[name] = replace(tensor, added=change.low_rank(digests))
            else:
                changed[name] = context.tensors.write(change.apply(context.tensors.read(tensor)))
        context.report(changed=len(changed))
        return model.replace(weights=weights.replace(changed))
