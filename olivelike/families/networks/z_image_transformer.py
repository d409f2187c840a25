"""The denoiser of Z-Image: diffusers' `ZImageTransformer2DModel`, by a forward of its own.

The library's forward takes lists of pictures and texts, whose sizes a trace would keep, and turns heads by complex
numbers, which ONNX has no operators for. This one takes texts of one length, and computes positions from sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import (
    DENOISER_PREFIXES,
    Interface,
    Network,
    Shapes,
    Stored,
    Told,
    by_diffusers,
    check_turns,
    first_shape,
    head_count,
    held,
    layer_count,
    packing_interface,
    shown,
    size_of,
    with_own_names,
)
from olivelike.families.networks.operators import rotary

if TYPE_CHECKING:
    import torch

    from olivelike.model.architecture import Config

_PATCH: Final = 2
"""Latents along a side of the squares that are one token, as in all that is published."""
_FORM: Final = f"{_PATCH}-1"
"""Name of what embeds such squares, and of what makes them."""
_MULTIPLE: Final = 32
"""Tokens of a picture, and those of a text, are filled up to a multiple of it by tokens that are learned."""
_IS_TRACED: Final = "is_traced"
"""Attribute of a network whose forward is `_traced`."""
_EXAMPLE: Final = 24
"""Tokens of the text that it is traced with."""


def _interface(config: Config) -> Interface:
    return packing_interface(_PATCH, config["in_channels"], _EXAMPLE, config["cap_feat_dim"])


def _forward(self: Any, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor) -> Any:
    """Run the library's own forward."""
    import torch

    moments = timestep.expand(len(sample))
    return torch.stack(self.network(list(sample[:, :, None]), moments, list(encoder_hidden_states)).sample)[:, :, 0]


def _traced(self: Any, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor) -> Any:
    """Make what the library's forward makes, of texts of one length."""
    import torch

    network = self.network
    batch, channels, height, width = sample.shape
    rows, columns = height // _PATCH, width // _PATCH
    count, moment = rows * columns, network.t_embedder(timestep * network.t_scale)

    squares = sample.reshape(batch, channels, rows, _PATCH, columns, _PATCH).permute(0, 2, 4, 3, 5, 1)
    picture = network.all_x_embedder[_FORM](squares.reshape(batch, count, _PATCH * _PATCH * channels))
    picture = _filled(picture, network.x_pad_token)
    text = _filled(network.cap_embedder(encoder_hidden_states), network.cap_pad_token)

    places = torch.arange(text.shape[1]) + 1
    in_text = torch.stack([places, places * 0, places * 0], dim=-1)
    row, column = (
        part.expand(rows, columns).reshape(-1) for part in (torch.arange(rows)[:, None], torch.arange(columns)[None])
    )
    behind = torch.full_like(row, 1) * (text.shape[1] + 1)
    in_picture = _filled(torch.stack([behind, row, column], dim=-1)[None], torch.zeros(1, 3, dtype=torch.int64))[0]
    turns = _turns(network.rope_embedder, in_picture), _turns(network.rope_embedder, in_text)

    for layer in network.noise_refiner:
        picture = layer(picture, None, turns[0], moment)
    for layer in network.context_refiner:
        text = layer(text, None, turns[1])
    joined = torch.cat([picture, text], dim=1)
    both = tuple(torch.cat(pair, dim=1) for pair in zip(*turns, strict=True))
    for layer in network.layers:
        joined = layer(joined, None, both, moment)
    made = network.all_final_layer[_FORM](joined, c=moment)[:, :count]
    made = made.reshape(batch, rows, columns, _PATCH, _PATCH, channels).permute(0, 5, 1, 3, 2, 4)
    return made.reshape(batch, channels, height, width)


def _filled(tokens: torch.Tensor, filling: torch.Tensor) -> torch.Tensor:
    """Return tokens of shape (batch, count, width), filled up to a multiple of their number by one, (1, width)."""
    import torch

    count = tokens.shape[1]
    place = torch.arange((count + _MULTIPLE - 1) // _MULTIPLE * _MULTIPLE)
    return torch.where((place < count)[None, :, None], tokens[:, place.clamp(max=count - 1)], filling)


def _turns(embedder: Any, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of places, (tokens, axes): of shape (1, tokens, half a head)."""
    import torch

    angles = []
    for axis, width in enumerate(embedder.axes_dims):
        frequencies = 1.0 / embedder.theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles.append(places[:, axis, None].float() * frequencies.float())
    whole = torch.cat(angles, dim=-1)[None]
    return whole.cos(), whole.sin()


class _Attend:
    """Attention of diffusers' `ZSingleStreamAttnProcessor`, whose rotations are single operators."""

    def __call__(
        self,
        attention: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,
        freqs_cis: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Any:
        import torch

        del encoder_hidden_states, attention_mask
        assert freqs_cis is not None
        batch, tokens, _ = hidden_states.shape

        def turned(project: Any, norm: Any) -> torch.Tensor:
            values = project(hidden_states).reshape(batch, tokens, attention.heads, -1)
            return rotary(values if norm is None else norm(values), *freqs_cis, interleaved=True).transpose(1, 2)

        query, key = turned(attention.to_q, attention.norm_q), turned(attention.to_k, attention.norm_k)
        value = attention.to_v(hidden_states).reshape(batch, tokens, attention.heads, -1).transpose(1, 2)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return attention.to_out[0](found.transpose(1, 2).reshape(batch, tokens, -1))


def _forward_of(network: Any) -> Any:
    return _traced if getattr(network, _IS_TRACED, False) else _forward


def _as_operators(network: Any) -> None:
    """Write rotations as single operators, and sizes as what is computed of inputs."""
    setattr(network, _IS_TRACED, True)
    for layer in (*network.noise_refiner, *network.context_refiner, *network.layers):
        layer.attention.set_processor(_Attend())


def _check(component: str, class_name: str, config: Config) -> None:
    """Refuse a denoiser of other squares, and one that takes pictures beside the text."""
    patches = config.get("all_patch_size", [_PATCH]), config.get("all_f_patch_size", [1])
    if any(one not in ([size], (size,)) for one, size in zip(patches, (_PATCH, 1), strict=True)):
        raise SourceError(
            f"{component}: {class_name} with `all_patch_size: {shown(patches[0])}` and `all_f_patch_size: "
            f"{shown(patches[1])}` is not supported: its tokens are no squares of {_PATCH} by {_PATCH} latents"
        )
    if config.get("siglip_feat_dim") is not None:
        raise SourceError(
            f"{component}: {class_name} with `siglip_feat_dim: {shown(config['siglip_feat_dim'])}` is not supported: "
            "it takes pictures beside the text"
        )
    head = size_of(config, "dim", 3840) // size_of(config, "n_heads", 30)
    check_turns(component, class_name, config, ("axes_dims", (32, 48, 48)), head, "rope_theta")


HELD: Final = (
    held("x_embedder", "all_x_embedder.2-1"),
    held("t_embedder.mlp.0", "t_embedder.mlp.0"),
    held("t_embedder.mlp.2", "t_embedder.mlp.2"),
    held("cap_embedder.1", "cap_embedder.1"),
    held("final_layer.linear", "all_final_layer.2-1.linear"),
    held("final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1"),
    *(
        held(f"{block}.#.{name}", *(f"{block}.#.{layer}" for layer in layers))
        for block in ("layers", "noise_refiner", "context_refiner")
        for name, *layers in (
            ("attention.qkv", "attention.to_q", "attention.to_k", "attention.to_v"),
            ("attention.out", "attention.to_out.0"),
            ("feed_forward.w1", "feed_forward.w1"),
            ("feed_forward.w2", "feed_forward.w2"),
            ("feed_forward.w3", "feed_forward.w3"),
            ("adaLN_modulation.0", "adaLN_modulation.0"),
        )
    ),
)
"""Names of https://github.com/Tongyi-MAI/Z-Image (`transformer.py`), and of ComfyUI's files."""


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    """Read a config off shapes in either spelling."""
    del published
    assert head_width is not None
    width, values = first_shape(shapes, r"^(all_)?x_embedder\.(2-1\.)?weight$")
    return {
        "dim": width,
        "in_channels": values // _PATCH**2,
        "n_heads": head_count(width, head_width),
        "n_kv_heads": head_count(width, head_width),
        "n_layers": layer_count(shapes, r"^layers\.(\d+)\."),
        "n_refiner_layers": layer_count(shapes, r"^noise_refiner\.(\d+)\."),
        "cap_feat_dim": first_shape(shapes, r"^cap_embedder\.1\.weight$")[1],
        "qk_norm": any(name.endswith((".q_norm.weight", ".norm_q.weight")) for name in shapes),
    }


_MARKS: Final = ("layers.0.adaLN_modulation.0.weight", "cap_embedder.1.weight", "x_pad_token")
STORED: Final = with_own_names(
    Stored(
        name="z_image",
        to_library=by_diffusers("convert_z_image_transformer_checkpoint_to_diffusers"),
        prefixes=DENOISER_PREFIXES,
        marks=("layers.0.attention.qkv.weight", *_MARKS),
        config=_config,
        tell=lambda shapes, of_texts: Told("z_image", "refiners, and tokens that fill pictures and texts"),  # noqa: ARG005
    ),
    "layers.0.attention.to_q.weight", *_MARKS,
)  # fmt: skip
NETWORKS: Final = (
    Network(
        "ZImageTransformer2DModel",
        ("transformer",),
        _interface,
        _forward_of,
        _check,
        as_operators=_as_operators,
        held=HELD,
        stored=STORED,
        counts=frozenset({"n_layers", "n_refiner_layers"}),
        sizes=frozenset({"in_channels", "dim", "n_heads", "n_kv_heads", "cap_feat_dim", "axes_dims", "axes_lens"}),
        inert=frozenset({"axes_lens"}),
    ),
)
