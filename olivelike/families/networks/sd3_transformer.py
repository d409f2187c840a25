"""Stable Diffusion 3's denoiser, diffusers' `SD3Transformer2DModel`, and the CLIP that is its first text encoder."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import (
    DENOISER_PREFIXES,
    MOST_PATCHES,
    Input,
    Interface,
    Network,
    Rows,
    Shapes,
    Stored,
    Told,
    by_diffusers,
    first_shape,
    head_count,
    held,
    layer_count,
    layer_number,
    shown,
    swapped,
    with_own_names,
)
from olivelike.families.networks import clip

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_TOKENS: Final = 77


def _transformer(config: Config) -> Interface:
    patch = config["patch_size"]
    dims = ("transformer_batch", None, "transformer_height", "transformer_width")
    return Interface(
        (
            # Neither square nor a common size.
            Input("hidden_states", "float32", dims, (2, config["in_channels"], patch * 4, patch * 6)),
            Input("timestep", "float32", ("transformer_time_batch",), (1,)),
            Input(
                "encoder_hidden_states",
                "float32",
                ("transformer_hidden_batch", "transformer_hidden_sequence", None),
                (2, 2 * _TOKENS, config["joint_attention_dim"]),
            ),
            Input(
                "pooled_projections",
                "float32",
                ("transformer_pooled_batch", None),
                (2, config["pooled_projection_dim"]),
            ),
        ),
        ("out_hidden_states",),
        sized_like={"out_hidden_states": "hidden_states"},
    )


def _forward_transformer(
    self: Any,
    hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    pooled_projections: torch.Tensor,
) -> Any:
    return self.network(
        hidden_states,
        encoder_hidden_states,
        pooled_projections,
        timestep.expand(hidden_states.shape[0]),
        return_dict=False,
    )[0]


def _check_transformer(component: str, class_name: str, config: Config) -> None:
    """Refuse a denoiser whose positions are computed otherwise than from the table that its file holds."""
    places = config.get("pos_embed_max_size", 96)
    if places is None:
        raise SourceError(
            f"{component}: {class_name} with `pos_embed_max_size: null` is not supported: its file holds no table of "
            "positions"
        )
    if isinstance(places, int) and places > MOST_PATCHES:
        raise SourceError(
            f"{component}: the config of {class_name} has `pos_embed_max_size: {places}`, which are too many patches; "
            "get its config.json again"
        )
    made, taken = config.get("out_channels", 16), config.get("in_channels", 16)
    if made != taken:
        raise SourceError(
            f"{component}: {class_name} with `out_channels: {shown(made)}` and `in_channels: {shown(taken)}` is not "
            "supported: it takes more than latents, or makes more than them"
        )


_BLOCK: Final = "transformer_blocks.#."
_TIMES: Final = "time_text_embed."
HELD: Final = (
    held("x_embedder.proj", "pos_embed.proj"),
    held("t_embedder.mlp.0", f"{_TIMES}timestep_embedder.linear_1"),
    held("t_embedder.mlp.2", f"{_TIMES}timestep_embedder.linear_2"),
    held("y_embedder.mlp.0", f"{_TIMES}text_embedder.linear_1"),
    held("y_embedder.mlp.2", f"{_TIMES}text_embedder.linear_2"),
    held("context_embedder", "context_embedder"),
    held("joint_blocks.#.x_block.attn.qkv", *(f"{_BLOCK}attn.to_{part}" for part in "qkv")),
    held("joint_blocks.#.x_block.attn2.qkv", *(f"{_BLOCK}attn2.to_{part}" for part in "qkv")),
    held("joint_blocks.#.context_block.attn.qkv", *(f"{_BLOCK}attn.add_{part}_proj" for part in "qkv")),
    held("joint_blocks.#.x_block.attn.proj", f"{_BLOCK}attn.to_out.0"),
    held("joint_blocks.#.x_block.attn2.proj", f"{_BLOCK}attn2.to_out.0"),
    held("joint_blocks.#.context_block.attn.proj", f"{_BLOCK}attn.to_add_out"),
    held("joint_blocks.#.x_block.mlp.fc1", f"{_BLOCK}ff.net.0.proj"),
    held("joint_blocks.#.x_block.mlp.fc2", f"{_BLOCK}ff.net.2"),
    held("joint_blocks.#.context_block.mlp.fc1", f"{_BLOCK}ff_context.net.0.proj"),
    held("joint_blocks.#.context_block.mlp.fc2", f"{_BLOCK}ff_context.net.2"),
    held("joint_blocks.#.x_block.adaLN_modulation.1", f"{_BLOCK}norm1.linear"),
    held("joint_blocks.#.context_block.adaLN_modulation.1", Rows(f"{_BLOCK}norm1_context.linear", of=6)),
    # The last block's text goes no further: it has a scale and a shift alone.
    held("joint_blocks.#.context_block.adaLN_modulation.1", *swapped(f"{_BLOCK}norm1_context.linear")),
    held("final_layer.adaLN_modulation.1", *swapped("norm_out.linear")),
    held("final_layer.linear", "proj_out"),
)
"""Names of https://github.com/Stability-AI/sd3.5 (`mmditx.py`)."""
_TWICE: Final = re.compile(r"^(?:joint_blocks\.(\d+)\.x_block|transformer_blocks\.(\d+))\.attn2\.(?:qkv|to_q)\.weight$")


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    """Read a config off shapes in either spelling."""
    del published
    assert head_width is not None
    width, taken, patch, _ = first_shape(shapes, r"^(x_embedder|pos_embed)\.proj\.weight$")
    caption, joint = first_shape(shapes, r"^context_embedder\.weight$")
    made = first_shape(shapes, r"^(final_layer\.linear|proj_out)\.weight$")[0]
    twice = {layer_number(found[1] or found[2]) for found in map(_TWICE.match, shapes) if found}
    return {
        "patch_size": patch,
        "in_channels": taken,
        "out_channels": made // patch**2,
        "num_layers": layer_count(shapes, r"^(?:joint_blocks|transformer_blocks)\.(\d+)\."),
        "num_attention_heads": head_count(width, head_width),
        "joint_attention_dim": joint,
        "caption_projection_dim": caption,
        "pooled_projection_dim": first_shape(
            shapes, r"^(y_embedder\.mlp\.0|time_text_embed\.text_embedder\.linear_1)\.weight$"
        )[1],
        "pos_embed_max_size": math.isqrt(first_shape(shapes, r"^(pos_embed\.)?pos_embed$")[1]),
        "dual_attention_layers": sorted(twice),
        "qk_norm": "rms_norm" if any(".ln_q." in name or ".norm_q." in name for name in shapes) else None,
    }


STORED: Final = with_own_names(
    Stored(
        name="sd3",
        to_library=by_diffusers("convert_sd3_transformer_checkpoint_to_diffusers"),
        prefixes=DENOISER_PREFIXES,
        marks=("joint_blocks.0.context_block.attn.qkv.weight", "x_embedder.proj.weight", "pos_embed"),
        config=_config,
        tell=lambda shapes, of_texts: Told("sd3", "blocks that pictures and texts go through together"),  # noqa: ARG005
    ),
    "transformer_blocks.0.norm1_context.linear.weight", "pos_embed.proj.weight", "pos_embed.pos_embed",
)  # fmt: skip
NETWORKS: Final = (
    Network(
        "SD3Transformer2DModel",
        ("transformer",),
        _transformer,
        lambda network: _forward_transformer,  # noqa: ARG005
        _check_transformer,
        held=HELD,
        stored=STORED,
        counts=frozenset({"num_layers"}),
        sizes=frozenset(
            {
                "in_channels",
                "out_channels",
                "patch_size",
                "attention_head_dim",
                "num_attention_heads",
                "joint_attention_dim",
                "caption_projection_dim",
                "pooled_projection_dim",
                "pos_embed_max_size",
            }
        ),
        inert=frozenset({"sample_size"}),
    ),
    replace(clip.PROJECTED, components=("text_encoder",), stored=(clip.CLIP,)),
)
