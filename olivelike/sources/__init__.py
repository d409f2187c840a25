"""Sources of pipelines: folders and hub ids, read as tables without copying a weight byte.

Opening a source needs no library but the standard one (a hub id that is not cached needs `huggingface_hub`).
`olivelike.sources.names.adapt` asks diffusers and transformers what the stored names mean; it runs in a worker.
"""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.sources.checkpoint import Checkpoint
    from olivelike.sources.files.weight_header import Header, RawTensor, read_header
    from olivelike.sources.hub import known_digest
    from olivelike.sources.names.adaptation import Adaptation, StoredView, bind
    from olivelike.sources.opened_source import PipelineSource, available_components, open_source
    from olivelike.sources.source_spec import SourceSpec

__all__ = [
    "Adaptation", "Checkpoint", "Header", "PipelineSource", "RawTensor", "SourceSpec", "StoredView",
    "available_components", "bind", "known_digest", "open_source", "read_header",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
