"""The denoiser of FLUX.2: diffusers' `Flux2Transformer2DModel`, which takes latents as a row of tokens with places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike._text import size as size_in_words
from olivelike.errors import SourceError
from olivelike.families.network import (
    DENOISER_PREFIXES,
    Input,
    Interface,
    Network,
    Rows,
    Shapes,
    Stored,
    Told,
    by_diffusers,
    check_turns,
    first_shape,
    held,
    shown,
    size_of,
    swapped,
    with_own_names,
)
from olivelike.families.networks.flux_transformer import shared_config

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_TOKENS, _CELLS, _AXES = 40, 24, 4
_MOST_PARAMETERS: Final = 6_000_000_000
"""Parameters of a denoiser that is drawn with: klein of 4B has 3.9 billion."""
_NUMBERS: Final = (
    "num_attention_heads", "attention_head_dim", "mlp_ratio", "in_channels", "joint_attention_dim", "num_layers",
    "num_single_layers",
)  # fmt: skip
"""Keys of its config that parameters are counted by."""
_LARGEST: Final = 1 << 20


def _interface(config: Config) -> Interface:
    batch, cells, text = "transformer_batch", "transformer_cells", "transformer_text_sequence"
    return Interface(
        (
            Input("hidden_states", "float32", (batch, cells, None), (2, _CELLS, config["in_channels"])),
            Input("encoder_hidden_states", "float32", (batch, text, None), (2, _TOKENS, config["joint_attention_dim"])),
            Input("timestep", "float32", ("transformer_time_batch",), (1,), share=True),
            Input("img_ids", "int64", (cells, None), (_CELLS, _AXES)),
            Input("txt_ids", "int64", (text, None), (_TOKENS, _AXES)),
        ),
        ("out_hidden_states",),
        sized_like={"out_hidden_states": "hidden_states"},
    )


def _forward(
    self: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    img_ids: torch.Tensor,
    txt_ids: torch.Tensor,
) -> Any:
    return self.network(hidden_states, encoder_hidden_states, timestep, img_ids, txt_ids, return_dict=False)[0]


def parameters(config: Config) -> int:
    """Return how many parameters a denoiser has, defaults of its class filled in."""
    width = config.get("num_attention_heads", 48) * config.get("attention_head_dim", 128)
    inner = int(width * config.get("mlp_ratio", 3.0))
    taken = config.get("in_channels", 128)
    # Two streams of a double block have q, k, v and out, and a gated network; a single one has both in two layers.
    double, single = 2 * (4 * width + 3 * inner) * width, (4 * width + 3 * inner) * width
    around = 18 * width * width + (2 * taken + config.get("joint_attention_dim", 15360) + 256) * width
    return int(config.get("num_layers", 8) * double + config.get("num_single_layers", 48) * single + around)


def _check(component: str, class_name: str, config: Config) -> None:
    """Refuse a denoiser that is larger than klein's of 4B, or that takes more than text and latents."""
    for key in _NUMBERS:
        value = config.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
            raise SourceError(
                f"{component}: the config of {class_name} has `{key}: {shown(value)}`, where numbers from 0 to "
                f"{_LARGEST:,} make sense; get its config.json again"
            )
    count = parameters(config)
    if count > _MOST_PARAMETERS:
        whole, packed = size_in_words(4 * count), size_in_words(count * 17 // 16)
        raise SourceError(
            f"{component}: this {class_name} has {count / 1e9:.1f} billion parameters, {whole} in float32 and "
            f"{packed} in 8 bits; of FLUX.2, klein of 4B is supported, and larger ones, as klein of 9B and dev, are not"
        )
    taken = config.get("in_channels", 128)
    for key, usual in (("patch_size", 1), ("out_channels", taken), ("guidance_embeds", False)):
        if (value := config.get(key, usual)) not in (usual, None):
            raise SourceError(
                f"{component}: {class_name} with `{key}: {shown(value)}` is not supported: it takes or makes more than "
                "klein's denoiser does"
            )
    head = size_of(config, "attention_head_dim", 128)
    check_turns(component, class_name, config, ("axes_dims_rope", (32,) * _AXES), head, "rope_theta")


_BLOCK: Final = "transformer_blocks.#."
_SINGLE: Final = "single_transformer_blocks.#.attn."
_PACKED: Final = f"{_SINGLE}to_qkv_mlp_proj"
_TIMES: Final = "time_guidance_embed."
_DOUBLE: Final = (
    held("double_blocks.#.img_attn.qkv", *(f"{_BLOCK}attn.to_{part}" for part in "qkv")),
    held("double_blocks.#.txt_attn.qkv", *(f"{_BLOCK}attn.add_{part}_proj" for part in "qkv")),
    held("double_blocks.#.img_attn.proj", f"{_BLOCK}attn.to_out.0"),
    held("double_blocks.#.txt_attn.proj", f"{_BLOCK}attn.to_add_out"),
    held("double_blocks.#.img_mlp.0", f"{_BLOCK}ff.linear_in"),
    held("double_blocks.#.img_mlp.2", f"{_BLOCK}ff.linear_out"),
    held("double_blocks.#.txt_mlp.0", f"{_BLOCK}ff_context.linear_in"),
    held("double_blocks.#.txt_mlp.2", f"{_BLOCK}ff_context.linear_out"),
)
HELD: Final = (
    *_DOUBLE,
    held("img_in", "x_embedder"),
    held("txt_in", "context_embedder"),
    held("time_in.in_layer", f"{_TIMES}timestep_embedder.linear_1"),
    held("time_in.out_layer", f"{_TIMES}timestep_embedder.linear_2"),
    held("guidance_in.in_layer", f"{_TIMES}guidance_embedder.linear_1"),
    held("guidance_in.out_layer", f"{_TIMES}guidance_embedder.linear_2"),
    held("double_stream_modulation_img.lin", "double_stream_modulation_img.linear"),
    held("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"),
    held("single_stream_modulation.lin", "single_stream_modulation.linear"),
    held("single_blocks.#.linear1", _PACKED),
    held("single_blocks.#.linear2", f"{_SINGLE}to_out"),
    held("final_layer.adaLN_modulation.1", *swapped("norm_out.linear")),
    held("final_layer.linear", "proj_out"),
    # A single block's layers as FLUX.1 has them.
    *(held(f"{_SINGLE}to_{part}", Rows(_PACKED, number, number + 1)) for number, part in enumerate("qkv")),
    held("single_transformer_blocks.#.proj_mlp", Rows(_PACKED, 3)),
    # A name that some programs cut.
    *(
        held(f"sformer_blocks{row.layer.removeprefix('transformer_blocks')}", row)
        for one in _DOUBLE
        for row in one.rows
    ),
)
"""Names of https://github.com/black-forest-labs/flux2 (`model.py`)."""


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del published
    inner = first_shape(shapes, r"^(double_blocks\.0\.img_mlp\.2|transformer_blocks\.0\.ff\.linear_out)\.weight$")
    times = first_shape(shapes, r"^time_.*(in_layer|timestep_embedder\.linear_1)\.weight$")
    return {
        **shared_config(shapes, head_width),
        "mlp_ratio": inner[1] / inner[0],
        "timestep_guidance_channels": times[1],
    }


STORED: Final = with_own_names(
    Stored(
        name="flux2",
        to_library=by_diffusers("convert_flux2_transformer_checkpoint_to_diffusers"),
        prefixes=DENOISER_PREFIXES,
        marks=("single_stream_modulation.lin.weight", "double_blocks.0.img_attn.qkv.weight"),
        config=_config,
        tell=lambda shapes, of_texts: Told("flux2", "one modulation for all of its single blocks"),  # noqa: ARG005
    ),
    "single_stream_modulation.linear.weight", "transformer_blocks.0.attn.add_q_proj.weight",
)  # fmt: skip
NETWORKS: Final = (
    Network(
        "Flux2Transformer2DModel",
        ("transformer",),
        _interface,
        lambda network: _forward,  # noqa: ARG005
        _check,
        held=HELD,
        counts=frozenset({"num_layers", "num_single_layers"}),
        stored=STORED,
        sizes=frozenset(
            {
                "in_channels", "out_channels", "patch_size", "attention_head_dim", "num_attention_heads",
                "joint_attention_dim", "timestep_guidance_channels", "axes_dims_rope",
            }
        ),
    ),
)  # fmt: skip
