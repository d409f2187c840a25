"""`add_embeddings`: give a text encoder the vectors of the workflow's textual inversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.families import TEXT_ENCODERS
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class AddEmbeddings(Pass):
    """Append the vectors of the workflow's `embeddings:` to the table of tokens; comes first by itself."""

    reads: ClassVar = ("architecture", "weights", "embeddings")
    writes: ClassVar = ("architecture", "weights")
    components: ClassVar = TEXT_ENCODERS
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=600 << 20)

    def run(self, model: Model, context: Context) -> Model:
        """Keep one larger table in float32; the architecture's vocabulary grows with it."""
        import dataclasses

        import numpy as np

        from olivelike.errors import SourceError
        from olivelike.model import Tensor
        from olivelike.model.tensor_file import read_tensor
        from olivelike.sources.adapters.embeddings import read_embedding_table
        from olivelike.sources.files.pickled import read_pickle_table

        weights, architecture = model.require("weights"), model.require("architecture")
        (name,) = (name for name in weights if name.endswith("token_embedding.weight"))
        rows = [context.tensors.read(weights[name]).astype(np.float32)]
        for embedding in context.embeddings:
            table = read_embedding_table(embedding.path, read_pickle_table)
            raw = table.vectors[model.component]
            shape = table.shapes[model.component]
            vectors = read_tensor(Tensor(raw.dtype, shape, "", raw.offset), {"": embedding.path}).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise SourceError(
                    f"{embedding.path}: its vectors hold NaN or infinity; the training went wrong, use another file"
                )
            rows.append(vectors)
        whole = np.concatenate(rows)
        config = {**architecture.config, "vocab_size": len(whole)}
        context.report(tokens={e.token: len(v) for e, v in zip(context.embeddings, rows[1:], strict=True)})
        return model.replace(
            architecture=dataclasses.replace(architecture, config=config),
            weights=weights.replace({name: context.tensors.write(whole)}),
        )
