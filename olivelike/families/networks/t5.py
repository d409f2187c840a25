"""The text encoder of Stable Diffusion 3 and FLUX.1 that is no CLIP: transformers' `T5EncoderModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import Input, Interface, Network

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_TOKENS: Final = 77


def _interface(config: Config) -> Interface:  # noqa: ARG001
    ids = Input("input_ids", "int32", ("text_batch", "text_sequence"), (2, _TOKENS))
    return Interface((ids,), ("last_hidden_state",))


def _forward(self: Any, input_ids: torch.Tensor) -> Any:
    return self.network(input_ids, return_dict=False)[0]


NETWORKS: Final = (
    Network(
        "T5EncoderModel",
        ("text_encoder_3", "text_encoder_2"),
        _interface,
        lambda network: _forward,  # noqa: ARG005
        counts=frozenset({"num_layers", "num_decoder_layers"}),
        sizes=frozenset({"vocab_size", "d_model", "d_ff", "d_kv", "num_heads"}),
    ),
)
