"""The denoiser of FLUX.1: diffusers' `FluxTransformer2DModel`, which takes squares of latents and their places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import (
    DENOISER_PREFIXES,
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    Tensors,
    Told,
    check_turns,
    diffusers_converter,
    first_shape,
    head_count,
    held,
    layer_count,
    shown,
    size_of,
    swapped,
    with_own_names,
)

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_TOKENS, _SQUARES, _AXES = 77, 24, 3


def _transformer(config: Config) -> Interface:
    batch, squares, text = "transformer_batch", "transformer_squares", "transformer_text_sequence"
    guidance = Input("guidance", "float32", ("transformer_guidance_batch",), (1,))
    return Interface(
        (
            Input("hidden_states", "float32", (batch, squares, None), (2, _SQUARES, config["in_channels"])),
            Input("encoder_hidden_states", "float32", (batch, text, None), (2, _TOKENS, config["joint_attention_dim"])),
            Input("pooled_projections", "float32", (batch, None), (2, config["pooled_projection_dim"])),
            Input("timestep", "float32", ("transformer_time_batch",), (1,), share=True),
            Input("img_ids", "float32", (squares, None), (_SQUARES, _AXES)),
            Input("txt_ids", "float32", (text, None), (_TOKENS, _AXES)),
            *([guidance] if config.get("guidance_embeds") else []),
        ),
        ("out_hidden_states",),
        sized_like={"out_hidden_states": "hidden_states"},
    )


def _forward_transformer(
    self: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    pooled_projections: torch.Tensor,
    timestep: torch.Tensor,
    img_ids: torch.Tensor,
    txt_ids: torch.Tensor,
    guidance: torch.Tensor | None = None,
) -> Any:
    rows = hidden_states.shape[0]
    return self.network(
        hidden_states,
        encoder_hidden_states,
        pooled_projections,
        timestep.expand(rows),
        img_ids,
        txt_ids,
        None if guidance is None else guidance.expand(rows),
        return_dict=False,
    )[0]


def _check_transformer(component: str, class_name: str, config: Config) -> None:
    """Refuse a denoiser that takes more than latents, as those of FLUX.1's tools do."""
    taken = config.get("in_channels", 64)
    made = config.get("out_channels") or taken
    if made != taken or config.get("patch_size", 1) != 1:
        raise SourceError(
            f"{component}: {class_name} with `out_channels: {shown(made)}`, `in_channels: {shown(taken)}` and "
            f"`patch_size: {shown(config.get('patch_size', 1))}` is not supported: it takes or makes more than latents"
        )
    head = size_of(config, "attention_head_dim", 128)
    check_turns(component, class_name, config, ("axes_dims_rope", (16, 56, 56)), head)


_IMAGE: Final = "transformer_blocks.#."
_SINGLE: Final = "single_transformer_blocks.#."
_QKV: Final = tuple(f"{_IMAGE}attn.to_{part}" for part in "qkv")
_TEXT_QKV: Final = tuple(f"{_IMAGE}attn.add_{part}_proj" for part in "qkv")
_SINGLE_QKV: Final = tuple(f"{_SINGLE}attn.to_{part}" for part in "qkv")
_TIMES: Final = "time_text_embed."
HELD: Final = (
    held("img_in", "x_embedder"),
    held("txt_in", "context_embedder"),
    held("time_in.in_layer", f"{_TIMES}timestep_embedder.linear_1"),
    held("time_in.out_layer", f"{_TIMES}timestep_embedder.linear_2"),
    held("vector_in.in_layer", f"{_TIMES}text_embedder.linear_1"),
    held("vector_in.out_layer", f"{_TIMES}text_embedder.linear_2"),
    held("guidance_in.in_layer", f"{_TIMES}guidance_embedder.linear_1"),
    held("guidance_in.out_layer", f"{_TIMES}guidance_embedder.linear_2"),
    held("double_blocks.#.img_mod.lin", f"{_IMAGE}norm1.linear"),
    held("double_blocks.#.txt_mod.lin", f"{_IMAGE}norm1_context.linear"),
    held("double_blocks.#.img_attn.qkv", *_QKV),
    held("double_blocks.#.txt_attn.qkv", *_TEXT_QKV),
    held("double_blocks.#.img_attn.proj", f"{_IMAGE}attn.to_out.0"),
    held("double_blocks.#.txt_attn.proj", f"{_IMAGE}attn.to_add_out"),
    held("double_blocks.#.img_mlp.0", f"{_IMAGE}ff.net.0.proj"),
    held("double_blocks.#.img_mlp.2", f"{_IMAGE}ff.net.2"),
    held("double_blocks.#.txt_mlp.0", f"{_IMAGE}ff_context.net.0.proj"),
    held("double_blocks.#.txt_mlp.2", f"{_IMAGE}ff_context.net.2"),
    held("single_blocks.#.modulation.lin", f"{_SINGLE}norm.linear"),
    held("single_blocks.#.linear1", *_SINGLE_QKV, f"{_SINGLE}proj_mlp"),
    held("single_blocks.#.linear2", f"{_SINGLE}proj_out"),
    held("final_layer.adaLN_modulation.1", *swapped("norm_out.linear")),
    held("final_layer.linear", "proj_out"),
    # Names of x-flux: https://github.com/XLabs-AI/x-flux
    held("double_blocks.#.processor.qkv_lora1", *_QKV),
    held("double_blocks.#.processor.qkv_lora2", *_TEXT_QKV),
    held("double_blocks.#.processor.proj_lora1", f"{_IMAGE}attn.to_out.0"),
    held("double_blocks.#.processor.proj_lora2", f"{_IMAGE}attn.to_add_out"),
    held("single_blocks.#.processor.qkv", *_SINGLE_QKV),
    held("single_blocks.#.processor.proj", f"{_SINGLE}proj_out"),
)
"""Names of https://github.com/black-forest-labs/flux (`model.py`, `modules/layers.py`)."""


def _to_diffusers(config: Config, tensors: Tensors) -> Tensors:
    """Convert names; diffusers splits the first layers of single blocks by the published width alone."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    fused = {name: tensor for name, tensor in tensors.items() if name.startswith("single_blocks.") and _FUSED in name}
    stand_ins = {name: tensor.new_empty((_SPLIT, *tensor.shape[1:])) for name, tensor in fused.items()}
    converted = diffusers_converter("convert_flux_transformer_checkpoint_to_diffusers")({**tensors, **stand_ins})
    for name, tensor in fused.items():
        _, block, _, kind = name.split(".")
        pieces = tensor.split((width, width, width, len(tensor) - 3 * width))
        for layer, piece in zip(("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), pieces, strict=True):
            converted[f"single_transformer_blocks.{block}.{layer}.{kind}"] = piece
    return converted


_FUSED: Final = ".linear1."
_SPLIT: Final = 7 * 3072
"""Rows that diffusers' converter splits."""


def shared_config(shapes: Shapes, head_width: int | None) -> Config:
    """Return what FLUX.1 and FLUX.2 have alike in a config, off shapes in either spelling."""
    assert head_width is not None
    width, taken = first_shape(shapes, r"^(img_in|x_embedder)\.weight$")
    return {
        "num_attention_heads": head_count(width, head_width),
        "in_channels": taken,
        "joint_attention_dim": first_shape(shapes, r"^(txt_in|context_embedder)\.weight$")[1],
        "num_layers": layer_count(shapes, r"^(?:double_blocks|transformer_blocks)\.(\d+)\."),
        "num_single_layers": layer_count(shapes, r"^single_(?:transformer_)?blocks\.(\d+)\."),
        "guidance_embeds": any("guidance_in." in name or "guidance_embedder." in name for name in shapes),
    }


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del published
    pooled = first_shape(shapes, r"^(vector_in\.in_layer|time_text_embed\.text_embedder\.linear_1)\.weight$")
    return {**shared_config(shapes, head_width), "pooled_projection_dim": pooled[1]}


STORED: Final = with_own_names(
    Stored(
        name="flux",
        to_library=_to_diffusers,
        prefixes=DENOISER_PREFIXES,
        marks=(
            "double_blocks.0.img_mod.lin.weight", "single_blocks.0.modulation.lin.weight", "vector_in.in_layer.weight",
        ),
        config=_config,
        tell=lambda shapes, of_texts: Told("flux", "double and single blocks, each with a modulation"),  # noqa: ARG005
    ),
    "single_transformer_blocks.0.norm.linear.weight", "transformer_blocks.0.attn.add_q_proj.weight",
    "time_text_embed.text_embedder.linear_1.weight",
)  # fmt: skip
NETWORKS: Final = (
    Network(
        "FluxTransformer2DModel",
        ("transformer",),
        _transformer,
        lambda network: _forward_transformer,  # noqa: ARG005
        _check_transformer,
        held=HELD,
        counts=frozenset({"num_layers", "num_single_layers"}),
        stored=STORED,
        sizes=frozenset(
            {
                "in_channels", "out_channels", "patch_size", "attention_head_dim", "num_attention_heads",
                "joint_attention_dim", "pooled_projection_dim", "axes_dims_rope",
            }
        ),
    ),
)  # fmt: skip
