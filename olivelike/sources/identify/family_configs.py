"""A network's config, from its family's published one and the shapes of the stored tensors.

Widths, depths and counts are read off the shapes, in the names of the LDM code
(https://github.com/CompVis/stable-diffusion, https://github.com/Stability-AI/generative-models) and of open_clip.
So distilled and small networks of a family open as well as the published ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.model.supported import first_line
from olivelike.sources.identify.unet_levels import UnetLevels, layer_number, read_levels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.model.families import Prediction
    from olivelike.sources.identify.identity import Part
    from olivelike.sources.identify.published import Published

Shapes = dict[str, tuple[int, ...]]
_CLIP_HEAD_WIDTH = 64
_STORED_OPEN_CLIP_H_LAYERS = 24


def derive_config(
    family: Published, part: Part, tensors: Mapping[str, tuple[int, ...]], prediction: Prediction
) -> dict[str, Any]:
    """Return the `config.json` of a part of a checkpoint.

    Args:
        family: the family of the checkpoint.
        part: which of its networks.
        tensors: stored name → shape, of this part at least.
        prediction: what the UNet predicts.

    Raises:
        SourceError: if a tensor that tells a width is missing, or the structure is none that diffusers builds.
    """
    template = dict(family.configs[part.folder])
    shapes = {
        name.removeprefix(part.prefix): shape
        for name, shape in tensors.items()
        if name.startswith(part.prefix)
    }
    try:
        match part.converter:
            case "unet":
                template |= family.changes.get(prediction, {})
                return template | _unet(family, template, shapes)
            case "vae":
                return template | _vae(template, shapes)
            case "clip":
                return template | _clip(shapes)
            case "open_clip":
                return template | _open_clip(template, shapes)
    except (KeyError, IndexError, ValueError) as error:
        raise SourceError(
            f"{part.folder}: its structure can't be read from the tensors' names and shapes ({first_line(error)}); the "
            "file is incomplete or of another network",
        ) from error


def _unet(family: Published, template: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    levels = read_levels(shapes)
    widths = levels.widths
    found: dict[str, Any] = {
        "block_out_channels": widths,
        "cross_attention_dim": _first(shapes, r"\.attn2\.to_k\.weight$")[-1],
        "down_block_types": [f"{'CrossAttn' if any(d) else ''}DownBlock2D" for d in levels.down],
        "in_channels": shapes["input_blocks.0.0.weight"][1],
        "layers_per_block": levels.layers,
        "out_channels": shapes["out.2.weight"][0],
        "up_block_types": [f"{'CrossAttn' if any(d) else ''}UpBlock2D" for d in levels.up],
    }
    linear = len(_first(shapes, r"\.proj_in\.weight$")) == 2
    if linear or "use_linear_projection" in template:
        found["use_linear_projection"] = linear
    if "projection_class_embeddings_input_dim" in template:
        found["projection_class_embeddings_input_dim"] = shapes["label_emb.0.0.weight"][1]
    if family.head_width is not None:
        attends = [any(level) for level in levels.down]
        found["attention_head_dim"] = [
            _heads(width, family.head_width) if attention else max(1, width // family.head_width)
            for width, attention in zip(widths, attends, strict=True)
        ]
    return found | _depths(template.get("transformer_layers_per_block", 1), levels) | _middle(levels)


def _heads(width: int, head_width: int) -> int:
    if width % head_width:
        raise ValueError(f"{width} channels, no multiple of {head_width}, the width of a head")
    return width // head_width


def _middle(levels: UnetLevels) -> dict[str, Any]:
    if levels.middle is None:
        return {"mid_block_type": None}
    return {} if levels.middle else {"mid_block_type": "UNetMidBlock2D"}


def _depths(published: int | list[int], levels: UnetLevels) -> dict[str, Any]:
    """Return how many transformer blocks each level has, spelled as the published config does where that fits."""
    found = {depth for level in (*levels.down, *levels.up, [levels.middle or 0]) for depth in level if depth}
    if len(found) == 1 and not isinstance(published, list):
        (depth,) = found
        return {} if depth == published else {"transformer_layers_per_block": depth}
    usual = published if isinstance(published, list) else [published] * len(levels.down)
    depths: list[Any] = [
        _level_depth(level) if any(level) else (usual[i] if i < len(usual) else 1)
        for i, level in enumerate(levels.down)
    ]
    if levels.middle and not any(levels.down[-1]):
        depths[-1] = levels.middle
    if levels.middle and depths[-1] != levels.middle:
        raise ValueError(f"middle block of depth {levels.middle} behind a level of depth {depths[-1]}")
    mirrored = [_level_depth(level) if any(level) else depths[-1 - i] for i, level in enumerate(levels.up)]
    settings = {"transformer_layers_per_block": depths}
    return (
        settings
        if mirrored == depths[::-1]
        else settings | {"reverse_transformer_layers_per_block": mirrored}
    )


def _level_depth(depths: list[int]) -> int | list[int]:
    return depths[0] if len(set(depths)) == 1 else depths


def _vae(template: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    count = 1 + max(layer_number(match[1]) for match in _matches(shapes, r"^decoder\.up\.(\d+)\."))
    blocks = {layer_number(match[1]) for match in _matches(shapes, r"^decoder\.up\.0\.block\.(\d+)\.")}
    last = shapes["decoder.conv_in.weight"]
    return {
        "block_out_channels": [shapes[f"decoder.up.{i}.block.0.conv1.weight"][0] for i in range(count)],
        "down_block_types": template["down_block_types"][:1] * count,
        "latent_channels": last[1],
        "layers_per_block": len(blocks) - 1,
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "in_channels": shapes.get("encoder.conv_in.weight", (0, template["in_channels"]))[1],
        "up_block_types": template["up_block_types"][:1] * count,
    }


def _clip(shapes: Shapes) -> dict[str, Any]:
    named = {name.removeprefix("text_model."): shape for name, shape in shapes.items()}
    vocabulary, width = named["embeddings.token_embedding.weight"]
    return _text(
        vocabulary,
        width,
        named["embeddings.position_embedding.weight"][0],
        1 + max(layer_number(match[1]) for match in _matches(named, r"^encoder\.layers\.(\d+)\.")),
        named["encoder.layers.0.mlp.fc1.weight"][0],
    )


def _open_clip(template: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    vocabulary, width = shapes["token_embedding.weight"]
    layers = 1 + max(
        layer_number(match[1]) for match in _matches(shapes, r"^transformer\.resblocks\.(\d+)\.")
    )
    found = _text(
        vocabulary,
        width,
        shapes["positional_embedding"][0],
        layers,
        shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
    )
    projection = shapes.get("text_projection", (0, template["projection_dim"]))
    if template["num_hidden_layers"] != _STORED_OPEN_CLIP_H_LAYERS - 1:
        return found | {"projection_dim": projection[1]}
    # SD 2 takes the last but one layer; files that programs wrote without the last have no projection either.
    if "text_projection" in shapes or layers == _STORED_OPEN_CLIP_H_LAYERS:
        found["num_hidden_layers"] = layers - 1
    return found


def _text(vocabulary: int, width: int, positions: int, layers: int, inner: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "num_attention_heads": _heads(width, _CLIP_HEAD_WIDTH),
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
    }


def _matches(shapes: Shapes, pattern: str) -> list[re.Match[str]]:
    found = [match for match in map(re.compile(pattern).search, shapes) if match]
    if not found:
        raise KeyError(pattern)
    return found


def _first(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    return shapes[_matches(shapes, pattern)[0].string]
