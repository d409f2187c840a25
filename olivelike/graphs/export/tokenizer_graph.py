"""A CLIP tokenizer as an ONNX model, for clients without Python.

The model needs the operators of onnxruntime-extensions (`RegisterOrtExtensions` in C#). Its `CLIPTokenizer` splits
texts in another way than CLIP in four cases, which are mended in front of it; see `docs/clients.md`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from olivelike.errors import PassError
from olivelike.model import Graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    import onnx

    from olivelike.model import Architecture

DOMAIN = "ai.onnx.contrib"
"""Domain of the operators of onnxruntime-extensions."""
_START, _END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"


def export_tokenizer(architecture: Architecture) -> Graph:
    """Return the ONNX model of a CLIP tokenizer.

    Raises `PassError` if the vocabulary has words that its merges do not make, as no trained one has.

    Args:
        architecture: As `olivelike.engine.output.tokenizer_step` makes it.

    Returns:
        A graph with the input `string_input` (texts) and the outputs `input_ids` and `attention_mask` (int64, of shape
        (texts, length)): what transformers' `CLIPTokenizer` returns with `padding="max_length", truncation=True`.
    """
    import onnx
    from onnx import helper

    config = architecture.config
    _check_words(config["vocab"], config["merges"])
    builder = _Builder()
    text = builder.replaced("string_input", _replacements(config["added"]))
    added = "\n".join(f"{token.lower()}={index}" for token, index in config["added"].items())
    ids, mask = builder.node(
        "CLIPTokenizer",
        [text],
        ["ids", "mask"],
        domain=DOMAIN,
        vocab=json.dumps(config["vocab"], ensure_ascii=False),
        merges="\n".join(["#version: 0.2", *config["merges"]]) + "\n",
        padding_length=-1,
        **({"added_token": added} if added else {}),
    )
    builder.fit(ids, mask, config["length"], config["pad"], config["vocab"][_END])
    outputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["texts", config["length"]])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        builder.nodes,
        architecture.component,
        [helper.make_tensor_value_info("string_input", onnx.TensorProto.STRING, ["texts"])],
        outputs,
        builder.initializers,
    )
    # Opset 17 and IR 8 are read by ONNX Runtime 1.12 and later, which C# projects of that time pin.
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="olivelike")
    return Graph(model.SerializeToString(deterministic=True))


def _check_words(vocabulary: Mapping[str, int], merges: Iterable[str]) -> None:
    """Refuse words that the operator finds in the vocabulary and CLIP's merges do not lead to."""
    from tokenizers.models import BPE

    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in merges)]
    model = BPE(vocab=dict(vocabulary), merges=pairs, end_of_word_suffix=_WORD_END, unk_token=_END)
    for token, index in vocabulary.items():
        if token.endswith(_WORD_END):
            found = [piece.id for piece in model.tokenize(token.removesuffix(_WORD_END))]
            if found != [index]:
                raise PassError(
                    f"the vocabulary holds {token!r}, which its merges take apart; ONNX's CLIPTokenizer would take it "
                    "whole and give other ids; leave `onnx_tokenizer` out, or use a trained vocabulary"
                )


def _replacements(added: Iterable[str]) -> list[tuple[str, str]]:
    """Return what is replaced in texts so that the operator splits them as CLIP does, as expressions of RE2."""
    tokens = sorted([*added, _START, _END], key=len, reverse=True)
    special = "|".join(map(re.escape, tokens))
    return [
        # It knows few of the characters that are spaces, and drops line ends without a gap.
        (r"[\s\x0b\p{Z}\x{85}]+", " "),
        # It takes a number whole, and CLIP takes digits one by one; tokens are let alone.
        (rf"(?i)({special})|(\p{{N}})", r" \1\2 "),
        # It misses 's, 're and the like behind a space.
        (r"([\p{L}\p{N}]) +('(?i:s|t|re|ve|m|ll|d))", r"\1\2"),
        # Version 0.15 dies of a space in front of a token.
        (rf"(?i) *({special}) *", r"\1"),
    ]


class _Builder:
    """Nodes and constants of the model, in order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return list(outputs)

    def constant(self, name: str, value: np.ndarray[Any, Any] | str) -> str:
        """Add a constant; return its name."""
        from onnx import TensorProto, helper, numpy_helper

        tensor = (
            helper.make_tensor(name, TensorProto.STRING, [1], [value.encode()])
            if isinstance(value, str)
            else numpy_helper.from_array(value, name)
        )
        self.initializers.append(tensor)
        return name

    def replaced(self, text: str, replacements: Iterable[tuple[str, str]]) -> str:
        """Add a replacement after another."""
        for index, (pattern, rewrite) in enumerate(replacements):
            names = self.constant(f"pattern.{index}", pattern), self.constant(f"rewrite.{index}", rewrite)
            (text,) = self.node(
                "StringRegexReplace", [text, *names], [f"text.{index}"], domain=DOMAIN, global_replace=1
            )
        return text

    def fit(self, ids: str, mask: str, length: int, pad: int, end: int) -> None:
        """Pad with `pad` and cut to `length`; what is cut ends with `end`, as every text does."""
        import numpy as np

        def integers(name: str, *values: int) -> str:
            return self.constant(name, np.array(values, np.int64))

        first, last, whole = integers("0", 0), integers("last", length - 1), integers("length", length)
        axis, filled = integers("axis", 1), self.constant("pad", np.array(pad, np.int64))
        zeros = self.constant("zeros", np.zeros((1, length), np.int64))
        nothing = self.constant("nothing", np.array(0, np.int64))
        ending = self.constant("end", np.array(end, np.int64))
        # One row of zeros becomes one for each text.
        (sizes,) = self.node("Shape", [ids], ["texts"], start=0, end=1)
        (shape,) = self.node("Concat", [sizes, whole], ["padding.shape"], axis=0)
        (padding,) = self.node("Expand", [zeros, shape], ["padding"])
        (long_ids,) = self.node("Concat", [ids, padding], ["ids.padded"], axis=1)
        (long_mask,) = self.node("Concat", [mask, padding], ["mask.padded"], axis=1)
        (cut_ids,) = self.node("Slice", [long_ids, first, last, axis], ["ids.cut"])
        (cut_mask,) = self.node("Slice", [long_mask, first, last, axis], ["mask.cut"])
        (final_mask,) = self.node("Slice", [long_mask, last, whole, axis], ["mask.last"])
        (used,) = self.node("Greater", [cut_mask, nothing], ["used"])
        (kept,) = self.node("Where", [used, cut_ids, filled], ["ids.kept"])
        (ends,) = self.node("Greater", [final_mask, nothing], ["ends"])
        (final,) = self.node("Where", [ends, ending, filled], ["ids.last"])
        self.node("Concat", [kept, final], ["input_ids"], axis=1)
        self.node("Concat", [cut_mask, final_mask], ["attention_mask"], axis=1)
