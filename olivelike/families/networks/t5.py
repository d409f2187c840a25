"""The text encoder of Stable Diffusion 3 and FLUX.1 that is no CLIP: transformers' `T5EncoderModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import (
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    head_count,
    in_llamas_names,
    layer_count,
)

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_TOKENS: Final = 77
_OF_A_DECODER: Final = frozenset({"decoder_start_token_id", "tie_word_embeddings", "output_past"})
"""Keys of its config that an encoder reads nothing of."""


def _interface(config: Config) -> Interface:  # noqa: ARG001
    ids = Input("input_ids", "int32", ("text_batch", "text_sequence"), (2, _TOKENS))
    return Interface((ids,), ("last_hidden_state",))


def _forward(self: Any, input_ids: torch.Tensor) -> Any:
    return self.network(input_ids, return_dict=False)[0]


def _spelled(config: Config) -> Config:
    """Return a config without what transformers makes of other keys, and without what is the decoder's."""
    found = {key: value for key, value in config.items() if key not in _OF_A_DECODER}
    if found.get("num_decoder_layers") is None and "num_layers" in found:
        found["num_decoder_layers"] = found["num_layers"]
    kind = str(found.get("feed_forward_proj", "relu"))
    made = {
        "dense_act_fn": "gelu_new" if kind == "gated-gelu" else kind.rpartition("-")[2],
        "is_gated_act": kind.startswith("gated-"),
    }
    return {key: value for key, value in found.items() if key not in made or value != made[key]}


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del published, head_width
    (vocabulary, width), heads = (
        shapes["shared.weight"],
        shapes[f"{_FIRST}0.SelfAttention.relative_attention_bias.weight"],
    )
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_ff": shapes[f"{_FIRST}1.DenseReluDense.wo.weight"][1],
        "d_kv": head_count(shapes[f"{_FIRST}0.SelfAttention.q.weight"][0], heads[1]),
        "num_heads": heads[1],
        "relative_attention_num_buckets": heads[0],
        "num_layers": layer_count(shapes, r"^encoder\.block\.(\d+)\."),
    }


_FIRST: Final = "encoder.block.0.layer."
_MARK: Final = f"{_FIRST}0.SelfAttention.relative_attention_bias.weight"
STORED: Final = Stored(
    name="t5",
    to_library=lambda config, tensors: tensors,  # noqa: ARG005
    prefix_at=lambda name: name.removesuffix(_MARK) if name.endswith(_MARK) else None,
    config=_config,
)
IN_LLAMA: Final = in_llamas_names(
    STORED,
    {
        "token_embd": "shared", "enc.output_norm": "encoder.final_layer_norm",
        "enc.blk.#.attn_norm": "encoder.block.#.layer.0.layer_norm",
        "enc.blk.#.ffn_norm": "encoder.block.#.layer.1.layer_norm",
        "enc.blk.#.attn_rel_b": "encoder.block.#.layer.0.SelfAttention.relative_attention_bias",
        **{f"enc.blk.#.attn_{one}": f"encoder.block.#.layer.0.SelfAttention.{one}" for one in "qkvo"},
        **{
            f"enc.blk.#.ffn_{own}": f"encoder.block.#.layer.1.DenseReluDense.{one}"
            for own, one in (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo"))
        },
    },
    "enc.blk.0.attn_rel_b.weight",
)  # fmt: skip
NETWORKS: Final = (
    Network(
        "T5EncoderModel",
        ("text_encoder_3", "text_encoder_2"),
        _interface,
        lambda network: _forward,  # noqa: ARG005
        stored=(STORED, IN_LLAMA),
        counts=frozenset({"num_layers", "num_decoder_layers"}),
        sizes=frozenset({"vocab_size", "d_model", "d_ff", "d_kv", "num_heads"}),
        inert=frozenset(
            {
                "classifier_dropout", "dropout_rate", "eos_token_id", "initializer_factor", "is_encoder_decoder",
                "num_decoder_layers", "pad_token_id", "use_cache",
            }
        ),
        spelled=_spelled,
    ),
)  # fmt: skip
