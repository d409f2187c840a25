"""Embeddings (textual inversion) as tables: which tensor holds the vectors of which text encoder.

Formats: A1111's `emb_params` (safetensors) and `string_to_param` (pickled), SDXL's pair `clip_l` and `clip_g`, and
diffusers' one tensor under the token itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from olivelike.errors import SourceError
from olivelike.sources.files.weight_header import RawTensor, check_dtype
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify
from olivelike.sources.identify.identity import PLACES

_ENCODERS = {"clip_l": "text_encoder", "clip_g": "text_encoder_2", "emb_params": "text_encoder"}
_NESTED = "string_to_param."
_FLOATING = ("F", "BF")


@dataclass(frozen=True)
class EmbeddingTable:
    """The vectors of one embedding, still in their file."""

    path: Path
    token: str | None
    """The token, where the file stores it; most formats mean the file's own name."""
    vectors: Mapping[str, RawTensor]
    """Text encoder (`text_encoder`, `text_encoder_2`) → its vectors, of shape (count, width) or (width,)."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The header's own metadata."""

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Number and width of the vectors of each text encoder."""
        return {
            name: (1 if len(tensor.shape) == 1 else tensor.shape[0], tensor.shape[-1])
            for name, tensor in self.vectors.items()
        }


def read_embedding_table(path: Path, read_pickle: ReadPickle | None = None) -> EmbeddingTable:
    """Return token and vectors of an embedding file, from its header alone.

    Raises `SourceError` if the file is no embedding, damaged, or pickled and may not be read. `read_pickle` reads
    the table of a pickled file; `None` refuses such files.
    """
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    if identity.kind != "embedding":
        place = PLACES.get(identity.kind, "`embeddings:` takes textual inversion files")
        raise SourceError(f"{path}: this is {identity.description}, no embedding; {place}")
    token: str | None = None
    vectors: dict[str, RawTensor] = {}
    for name, tensor in header.tensors.items():
        if name in _ENCODERS:
            encoder = _ENCODERS[name]
        elif name.startswith(_NESTED):
            encoder = "text_encoder"
        elif len(header.tensors) == 1:
            encoder, token = "text_encoder", name
        else:
            raise SourceError(f"{path}: an embedding with a tensor {name!r}, which is of no known format")
        if encoder in vectors:
            raise SourceError(f"{path}: it has several embeddings for one text encoder; keep one per file")
        check_dtype(path, name, tensor)
        if len(tensor.shape) not in (1, 2) or not tensor.dtype.startswith(_FLOATING) or 0 in tensor.shape:
            raise SourceError(
                f"{path}: {name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; an embedding is a row of "
                "floating-point vectors"
            )
        vectors[encoder] = tensor
    return EmbeddingTable(path, token, vectors, header.metadata)
