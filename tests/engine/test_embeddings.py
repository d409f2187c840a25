"""Textual inversions in a workflow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from olivelike.engine.output.initializers import Initializers
from olivelike.errors import SourceError
from olivelike.model import Architecture
from olivelike.testing import load_model
from olivelike.testing.models import lend_graphs

from .conftest import Project

ONE = ("components.vae_decoder=",)


def embedding(project: Project, name: str, rows: int = 2, width: int = 32, token: str = "<cat>") -> Path:
    vectors = np.random.default_rng(rows).standard_normal((rows, width), np.float32)
    save_file({token: vectors}, project.folder / name)
    return project.folder / name


@pytest.fixture
def project(project: Project) -> Project:
    """The project, with the graph of a text encoder that has two tokens more."""
    found = load_model(project.folder / "checkpoint", "text_encoder").architecture
    assert found is not None
    config = {**found.config, "vocab_size": found.config["vocab_size"] + 2}
    wider = Architecture(found.component, found.library, found.class_name, config)
    lend_graphs(project.folder / "cache", [wider])
    return project


def test_vectors_and_tokens_are_added(project: Project) -> None:
    path = embedding(project, "cat.safetensors")
    project.run(*ONE, f"embeddings=[{path}]")
    assert "text_encoder.convert" not in project.executed(), "the graph that was lent is that of another network"
    tokens = json.loads((project.output / "tokenizer" / "added_tokens.json").read_bytes())
    assert tokens == {"<cat>": 1000, "<cat>_1": 1001}
    from transformers import CLIPTokenizer

    ids = CLIPTokenizer.from_pretrained(project.output / "tokenizer")("a <cat> <cat>_1").input_ids
    assert {1000, 1001} <= set(ids)
    stored = Initializers(project.output / "text_encoder" / "model.onnx")
    record = json.loads((project.output / "olivelike.json").read_bytes())
    (name,) = (n for n in record["components"]["text_encoder"]["derivations"] if n.endswith("token_embedding.weight"))
    table = stored.read(name)
    vectors = np.random.default_rng(2).standard_normal((2, 32), np.float32)
    assert table.shape == (1002, 32)
    np.testing.assert_array_equal(table[1000:], vectors.astype(table.dtype))
    assert record["embeddings"][0]["token"] == "<cat>"
    config = json.loads((project.output / "text_encoder" / "config.json").read_bytes())
    assert config["vocab_size"] == 1002


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("a", {}), ("b", {})], "both add the token '<cat>'"),
        ([("a", {"width": 48})], "have 48 numbers, and this pipeline's have 32"),
        ([("a", {"token": "a</w>"})], "has the token 'a</w>' already"),
    ],
)
def test_what_does_not_fit_is_refused(project: Project, files, message: str) -> None:
    before = project.files()
    paths = [embedding(project, f"{name}.safetensors", **options) for name, options in files]
    with pytest.raises(SourceError, match=message):
        project.run(*ONE, f"embeddings=[{', '.join(map(str, paths))}]")
    assert project.files() == before


def test_a_vector_that_is_no_number_is_refused(project: Project) -> None:
    save_file({"<cat>": np.full((1, 32), np.nan, np.float32)}, project.folder / "cat.safetensors")
    with pytest.raises(SourceError, match="NaN"):
        project.run(*ONE, "embeddings=[cat.safetensors]")
