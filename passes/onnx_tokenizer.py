"""`onnx_tokenizer`: a tokenizer as an ONNX model, for clients without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.families import TOKENIZERS
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class OnnxTokenizer(Pass):
    """Write a CLIP tokenizer as `cliptokenizer.onnx`: texts in, ids out, through onnxruntime-extensions."""

    reads: ClassVar = ("architecture",)
    writes: ClassVar = ("graph",)
    components: ClassVar = TOKENIZERS
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Put vocabulary and merges into one operator, and mend what it splits in another way than CLIP."""
        from olivelike.graphs.export.tokenizer_graph import export_tokenizer

        architecture = model.require("architecture")
        context.report(tokens=len(architecture.config["vocab"]))
        return model.replace(graph=export_tokenizer(architecture))
