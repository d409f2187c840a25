"""Operators that a network is traced with where its library spells them out: RMS norms and rotary embeddings.

The exporter traces every network so, and nothing need be done for classes of diffusers and transformers that call
`apply_rotary_emb` or `apply_rotary_pos_emb`. `Network.as_operators` is for what a class spells otherwise.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from olivelike.families.network import norms_as_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Turn pairs of numbers of each head: ONNX's RotaryEmbedding in a graph, the same sums elsewhere.

    Args:
        x: (batch, sequence, heads, width).
        cos: Cosines of the angles, (sequence, width / 2), or that for each of the batch, or for all: of a batch of 1.
        sin: Their sines.
        interleaved: Whether pairs are neighbours; else the first half of the width is paired with the second.
    """
    import torch

    batch, sequence, heads, width = x.shape
    cos, sin = (part.expand(batch, sequence, width // 2) for part in (cos, sin))
    flat = x.reshape(batch, sequence, heads * width)
    turned = torch.onnx.ops.rotary_embedding(flat, cos, sin, interleaved=interleaved, num_heads=heads)
    return turned.reshape(batch, sequence, heads, width)


@contextlib.contextmanager
def with_operators(network: torch.nn.Module) -> Iterator[None]:
    """Let a network of diffusers or transformers call torch's own operators as it is traced; its norms keep them.

    The functions of its module are everybody's in the process, so other networks of its class are traced so, too.
    """
    home = sys.modules[type(network).__module__]
    own = {name: getattr(home, name) for name in _ROTARY if hasattr(home, name)}
    norms_as_operators(network)
    for name, function in own.items():
        setattr(home, name, _ROTARY[name](function))
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(home, name, function)


def _of_diffusers(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for diffusers' `apply_rotary_emb`, whose tables have each angle twice."""

    def apply_rotary_emb(
        x: torch.Tensor, freqs_cis: Any, use_real: bool = True, use_real_unbind_dim: int = -1, sequence_dim: int = 2
    ) -> Any:
        # Networks are traced with a batch of 2, which torch takes for the same number as 2 heads.
        if not use_real or x.shape[2 if sequence_dim == 1 else 1] == 2:
            return own(x, freqs_cis, use_real, use_real_unbind_dim, sequence_dim)
        interleaved = use_real_unbind_dim == -1
        cos, sin = (part[:, ::2] if interleaved else part[:, : part.shape[-1] // 2] for part in freqs_cis)
        by_sequence = x if sequence_dim == 1 else x.transpose(1, 2)
        turned = rotary(by_sequence, cos, sin, interleaved=interleaved)
        return turned if sequence_dim == 1 else turned.transpose(1, 2)

    return apply_rotary_emb


def _of_transformers(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for transformers' `apply_rotary_pos_emb`, whose tables have the same halves."""
    del own

    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, ...]:
        half = cos.shape[-1] // 2
        cos, sin = cos[..., :half], sin[..., :half]
        if unsqueeze_dim == 2:
            return tuple(rotary(one, cos, sin, interleaved=False) for one in (q, k))
        return tuple(rotary(one.transpose(1, 2), cos, sin, interleaved=False).transpose(1, 2) for one in (q, k))

    return apply_rotary_pos_emb


def _of_pairs(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for Qwen-Image's `apply_rotary_emb_qwen`, with cosines and sines for complex numbers."""
    del own

    def apply_rotary_emb_qwen(x: torch.Tensor, freqs_cis: Any, use_real: bool = True) -> torch.Tensor:
        assert not use_real
        return rotary(x, *freqs_cis, interleaved=True)

    return apply_rotary_emb_qwen


_ROTARY: Final = {
    "apply_rotary_emb_qwen": _of_pairs,
    "apply_rotary_emb": _of_diffusers,
    "apply_rotary_pos_emb": _of_transformers,
}
"""Function of a network's module → makes what stands in for it."""
