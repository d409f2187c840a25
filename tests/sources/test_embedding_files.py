"""Embedding files as tables."""

from __future__ import annotations

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from olivelike.errors import SourceError
from olivelike.sources.adapters.embeddings import read_embedding_table
from olivelike.sources.files.pickled import describe_pickle
from olivelike.sources.files.weight_header import RawTensor


def in_process(path):
    return {name: RawTensor(dtype, tuple(shape), at) for name, (dtype, shape, at) in describe_pickle(path).items()}


@pytest.mark.parametrize(
    ("content", "token", "shapes"),
    [
        ({"emb_params": torch.ones(3, 768)}, None, {"text_encoder": (3, 768)}),
        (
            {"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)},
            None,
            {"text_encoder": (2, 768), "text_encoder_2": (2, 1280)},
        ),
        ({"<cat-toy>": torch.ones(768)}, "<cat-toy>", {"text_encoder": (768,)}),
    ],
)
def test_each_format_gives_token_and_vectors(tmp_path, content, token, shapes) -> None:
    path = tmp_path / "a.safetensors"
    save_file(content, path)
    table = read_embedding_table(path)
    assert (table.token, {name: t.shape for name, t in table.vectors.items()}) == (token, shapes)
    assert load_file(path).keys() == content.keys()


@pytest.mark.parametrize(
    ("content", "token"),
    [
        ({"string_to_token": {"*": 265}, "string_to_param": {"*": torch.ones(2, 768)}, "step": 3}, None),
        ({"<cat-toy>": torch.ones(768)}, "<cat-toy>"),
    ],
)
def test_pickled_embeddings_need_the_flag(tmp_path, content, token) -> None:
    path = tmp_path / "a.pt"
    torch.save(content, path)
    with pytest.raises(SourceError, match=r"a\.pt: this is a pickled file.*--allow-pickle"):
        read_embedding_table(path)
    table = read_embedding_table(path, in_process)
    assert table.token == token
    data = path.read_bytes()
    vectors = table.vectors["text_encoder"]
    assert data[vectors.offset : vectors.offset + 8] == torch.ones(2).numpy().tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.lora_down.weight": torch.ones(4, 8)}, "this is a LoRA, no embedding; name it under `loras:`"),
        ({"emb_params": torch.ones(2, 768), "other": torch.ones(1)}, "a tensor 'other', which is of no known"),
        ({"emb_params": torch.ones(2, 768), "clip_l": torch.ones(2, 768)}, "several embeddings for one text encoder"),
        ({"emb_params": torch.ones(2, 3, 768)}, "emb_params has shape \\[2, 3, 768\\]"),
        ({"emb_params": torch.ones(2, 768, dtype=torch.int32)}, "dtype I32; an embedding is a row of floating"),
    ],
)
def test_what_is_no_embedding_is_refused_by_name(tmp_path, content, message) -> None:
    path = tmp_path / "a.safetensors"
    save_file(content, path)
    with pytest.raises(SourceError, match=message):
        read_embedding_table(path)
