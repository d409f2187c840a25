"""A CLIP tokenizer as an architecture: all that decides which ids a text gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from olivelike.errors import SourceError
from olivelike.model import Architecture

_ENDS = ("<|startoftext|>", "<|endoftext|>")
_LENGTH = 77
"""Ids per text where the config does not say: the positions of CLIP's text encoders."""
_UNLIMITED = 1 << 31
"""Bound on lengths; what transformers writes for an unknown one lies far beyond."""


def tokenizer_architecture(component: str, files: Mapping[str, bytes]) -> Architecture:
    """Return the architecture of a tokenizer, from its files as `normalise_assets` writes them.

    Raises `SourceError` if there is no such tokenizer, or it is none of CLIP's.

    Args:
        component: `tokenizer` or `tokenizer_2`: the folder.
        files: Content of its files, by path relative to the pipeline.

    Returns:
        A config with `vocab` (token → id), `merges` (pairs, a line each), `added` (token → id of what is no word:
        textual inversions, and a padding token of its own), `pad` (the id that fills short texts), `length` (ids per
        text).
    """
    if not files:
        raise SourceError(f"the source has no {component}; fetch it, or remove `{component}` from `components`")

    def read(name: str) -> Any:
        data = files.get(f"{component}/{name}")
        return {} if data is None else json.loads(data)

    config = read("tokenizer_config.json")
    kind = config.get("tokenizer_class", "CLIPTokenizer")
    if not kind.startswith("CLIPTokenizer"):
        raise SourceError(f"the source's {component} is a {kind}; an ONNX model can be made of CLIP's tokenizers alone")
    vocabulary, added = read("vocab.json"), read("added_tokens.json")
    pad = config.get("pad_token", "<|endoftext|>")
    if isinstance(pad, dict):  # as transformers before 5 wrote it
        pad = pad["content"]
    if pad not in _ENDS:  # A padding token of its own, such as the `!` of SD 2, is taken out of texts first.
        added = {**added, pad: vocabulary[pad]}
    length = config.get("model_max_length", _LENGTH)
    merges = files[f"{component}/merges.txt"].decode().splitlines()
    return Architecture(
        component,
        "transformers",
        "CLIPTokenizer",
        {
            "vocab": vocabulary,
            "merges": [line for line in merges if line and not line.startswith("#version")],
            "added": added,
            "pad": {**vocabulary, **added}[pad],
            "length": int(length) if length < _UNLIMITED else _LENGTH,
        },
    )
