"""Networks of families whose files are one for each, as architecture and values, and sources of such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from olivelike.model.tensor_file import read_tensor
from olivelike.sources import SourceSpec
from olivelike.sources.checkpoint import Checkpoint
from olivelike.sources.names.adapt import read_network
from tests.fixtures.maker_files import SMALL


def networks_of(family: str) -> list[str]:
    texts = [name for name in SMALL[family] if name.startswith("text")]
    return [*texts, "transformer", "vae_encoder", "vae_decoder"]


def values(checkpoint: Checkpoint):
    """Return architecture and float32 values of a network."""
    names = {path: str(path) for path in checkpoint.files}
    architecture, weights = read_network(checkpoint, names)
    paths = {name: path for path, name in names.items()}
    return architecture, {name: read_tensor(tensor, paths).astype(np.float32) for name, tensor in weights.items()}


def spec_of(parts: dict[str, Path]) -> SourceSpec:
    return SourceSpec(path=parts["transformer"], parts={n: p for n, p in parts.items() if n != "transformer"})


def check_same(found, expected) -> None:
    (architecture, weights), (wanted, theirs) = found, expected
    assert architecture == wanted
    assert weights.keys() == theirs.keys()
    assert all(np.array_equal(weights[name], theirs[name]) for name in theirs)
