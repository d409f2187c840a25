"""A network's config, from its family's published one and the shapes of the stored tensors.

Widths, depths and counts are read off the shapes, in the names of the LDM code
(https://github.com/CompVis/stable-diffusion, https://github.com/Stability-AI/generative-models) and of open_clip.
So distilled and small networks of a family open as well as the published ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.families.supported import first_line

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config
    from olivelike.model.components import Prediction
    from olivelike.sources.identify.identity import Part

Shapes = dict[str, tuple[int, ...]]
_CLIP_HEAD_WIDTH = 64
_STORED_OPEN_CLIP_H_LAYERS = 24
_LONGEST_NUMBER = 3
_BLOCK = re.compile(r"^(input_blocks|middle_block|output_blocks)\.(\d+)\.")
_DEPTH = re.compile(r"^(input_blocks|output_blocks)\.(\d+)\.1\.transformer_blocks\.(\d+)\.")
_MIDDLE_DEPTH = re.compile(r"^middle_block\.1\.transformer_blocks\.(\d+)\.")


def derive_config(family: Family, part: Part, tensors: Mapping[str, tuple[int, ...]], prediction: Prediction) -> Config:
    """Return the `config.json` of a part of a checkpoint.

    Raises `SourceError` if a tensor that tells a width is missing, or the structure is none that diffusers builds.
    `tensors` are shapes by stored name, of this part at least.
    """
    template = family.published.configs[part.folder]
    shapes = {name.removeprefix(part.prefix): shape for name, shape in tensors.items() if name.startswith(part.prefix)}
    try:
        match part.converter:
            case "unet":
                template = {**template, **family.published.changes.get(prediction, {})}
                return {**template, **_unet(family, template, shapes)}
            case "vae":
                return {**template, **_vae(template, shapes)}
            case "clip":
                return {**template, **_clip(shapes)}
            case "open_clip":
                return {**template, **_open_clip(template, shapes)}
    except (KeyError, IndexError, ValueError) as error:
        raise SourceError(
            f"{part.folder}: its structure can't be read from the tensors' names and shapes ({first_line(error)}); the "
            "file is incomplete or of another network"
        ) from error


def _unet(family: Family, template: Config, shapes: Shapes) -> Config:
    levels = _read_levels(shapes)
    widths = levels.widths
    found: Json = {
        "block_out_channels": widths,
        "cross_attention_dim": _first(shapes, r"\.attn2\.to_k\.weight$")[-1],
        "down_block_types": [f"{'CrossAttn' if any(d) else ''}DownBlock2D" for d in levels.down],
        "in_channels": shapes["input_blocks.0.0.weight"][1],
        "layers_per_block": levels.layers,
        "out_channels": shapes["out.2.weight"][0],
        "up_block_types": [f"{'CrossAttn' if any(d) else ''}UpBlock2D" for d in levels.up],
    }
    if (guidance := shapes.get("time_embed.cond_proj.weight")) is not None:
        found["time_cond_proj_dim"] = guidance[-1]
    linear = len(_first(shapes, r"\.proj_in\.weight$")) == 2
    if linear or "use_linear_projection" in template:
        found["use_linear_projection"] = linear
    if "projection_class_embeddings_input_dim" in template:
        found["projection_class_embeddings_input_dim"] = shapes["label_emb.0.0.weight"][1]
    if family.published.head_width is not None:
        attends = [any(level) for level in levels.down]
        found["attention_head_dim"] = [
            _heads(width, family.published.head_width) if attention else max(1, width // family.published.head_width)
            for width, attention in zip(widths, attends, strict=True)
        ]
    depths = _depths(template.get("transformer_layers_per_block", 1), levels)
    return {**found, **depths, **_middle(levels)}


def _heads(width: int, head_width: int) -> int:
    if width % head_width:
        raise ValueError(f"{width} channels, no multiple of {head_width}, the width of a head")
    return width // head_width


def _middle(levels: _UnetLevels) -> Config:
    if levels.middle is None:
        return {"mid_block_type": None}
    return {} if levels.middle else {"mid_block_type": "UNetMidBlock2D"}


def _depths(published: int | list[int], levels: _UnetLevels) -> Config:
    """Return how many transformer blocks each level has, spelled as the published config does where that fits."""
    found = {depth for level in (*levels.down, *levels.up, [levels.middle or 0]) for depth in level if depth}
    if len(found) == 1 and not isinstance(published, list):
        (depth,) = found
        return {} if depth == published else {"transformer_layers_per_block": depth}
    usual = published if isinstance(published, list) else [published] * len(levels.down)
    depths: list[int | list[int]] = [
        _level_depth(level) if any(level) else (usual[i] if i < len(usual) else 1)
        for i, level in enumerate(levels.down)
    ]
    if levels.middle and not any(levels.down[-1]):
        depths[-1] = levels.middle
    if levels.middle and depths[-1] != levels.middle:
        raise ValueError(f"middle block of depth {levels.middle} behind a level of depth {depths[-1]}")
    mirrored = [_level_depth(level) if any(level) else depths[-1 - i] for i, level in enumerate(levels.up)]
    if mirrored == depths[::-1]:
        return {"transformer_layers_per_block": depths}
    return {"transformer_layers_per_block": depths, "reverse_transformer_layers_per_block": mirrored}


def _level_depth(depths: list[int]) -> int | list[int]:
    return depths[0] if len(set(depths)) == 1 else depths


def _vae(template: Config, shapes: Shapes) -> Config:
    count = _count(shapes, r"^decoder\.up\.(\d+)\.")
    blocks = {match[1] for match in _matches(shapes, r"^decoder\.up\.0\.block\.(\d+)\.")}
    return {
        "block_out_channels": [shapes[f"decoder.up.{i}.block.0.conv1.weight"][0] for i in range(count)],
        "down_block_types": template["down_block_types"][:1] * count,
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "layers_per_block": len(blocks) - 1,
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "in_channels": shapes.get("encoder.conv_in.weight", (0, template["in_channels"]))[1],
        "up_block_types": template["up_block_types"][:1] * count,
    }


def _clip(shapes: Shapes) -> Config:
    return _text(
        {name.removeprefix("text_model."): shape for name, shape in shapes.items()},
        tokens="embeddings.token_embedding.weight",
        positions="embeddings.position_embedding.weight",
        layer=r"^encoder\.layers\.(\d+)\.",
        inner="encoder.layers.0.mlp.fc1.weight",
    )


def _open_clip(template: Config, shapes: Shapes) -> Config:
    found = _text(
        shapes,
        tokens="token_embedding.weight",
        positions="positional_embedding",
        layer=r"^transformer\.resblocks\.(\d+)\.",
        inner="transformer.resblocks.0.mlp.c_fc.weight",
    )
    if template["num_hidden_layers"] != _STORED_OPEN_CLIP_H_LAYERS - 1:
        projection = shapes.get("text_projection", (0, template["projection_dim"]))
        return {**found, "projection_dim": projection[1]}
    # SD 2 takes the last but one layer; files that programs wrote without the last have no projection either.
    layers = found["num_hidden_layers"]
    if "text_projection" in shapes or layers == _STORED_OPEN_CLIP_H_LAYERS:
        return {**found, "num_hidden_layers": layers - 1}
    return found


def _text(shapes: Shapes, *, tokens: str, positions: str, layer: str, inner: str) -> Config:
    vocabulary, width = shapes[tokens]
    return {
        "hidden_size": width,
        "intermediate_size": shapes[inner][0],
        "max_position_embeddings": shapes[positions][0],
        "num_attention_heads": _heads(width, _CLIP_HEAD_WIDTH),
        "num_hidden_layers": _count(shapes, layer),
        "vocab_size": vocabulary,
    }


def _count(shapes: Shapes, pattern: str) -> int:
    return 1 + max(_layer_number(match[1]) for match in _matches(shapes, pattern))


def _matches(shapes: Shapes, pattern: str) -> list[re.Match[str]]:
    found = [match for match in map(re.compile(pattern).search, shapes) if match]
    if not found:
        raise KeyError(pattern)
    return found


def _first(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    return shapes[_matches(shapes, pattern)[0].string]


@dataclass(frozen=True)
class _UnetLevels:
    """Structure of a UNet, from the outermost level inwards, and back."""

    widths: list[int]
    """Channels of each level."""
    layers: int
    """Residual blocks of each level on the way in; one more on the way out."""
    down: list[list[int]]
    """For each level, for each of its layers, the number of transformer blocks; 0 without attention."""
    middle: int | None
    """Widths of the middle; `None` if there is none."""
    up: list[list[int]]
    """Widths on the way out, innermost level first."""


def _layer_number(text: str) -> int:
    """Return the number of a layer in a stored name. Raises `ValueError` if no network has so many."""
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a layer of number {text[:20]}")
    return int(text)


def _read_levels(shapes: Shapes) -> _UnetLevels:
    """Read the structure off the stored names.

    Raises `KeyError` if a block is missing, and `ValueError` if levels have different numbers of layers.
    """
    counts = {"input_blocks": 0, "middle_block": 0, "output_blocks": 0}
    depths: dict[tuple[str, int], int] = {}
    for name in shapes:
        block = _BLOCK.match(name)
        if block:
            counts[block[1]] = max(counts[block[1]], _layer_number(block[2]) + 1)
        depth = _DEPTH.match(name)
        if depth:
            key = depth[1], _layer_number(depth[2])
            depths[key] = max(depths.get(key, 0), _layer_number(depth[3]) + 1)

    widths: list[int] = [0]
    down: list[list[int]] = [[]]
    for i in range(1, counts["input_blocks"]):
        if f"input_blocks.{i}.0.op.weight" in shapes:
            widths.append(0)
            down.append([])
            continue
        widths[-1] = shapes[f"input_blocks.{i}.0.out_layers.3.weight"][0]
        down[-1].append(depths.get(("input_blocks", i), 0))
    lengths = {len(level) for level in down}
    if len(lengths) != 1:
        raise ValueError(f"levels of {sorted(lengths)} layers")
    (layers,) = lengths

    out = [depths.get(("output_blocks", i), 0) for i in range(counts["output_blocks"])]
    if len(out) != len(down) * (layers + 1):
        raise ValueError(f"{len(out)} output blocks for {len(down)} levels of {layers} layers")
    up = [out[start : start + layers + 1] for start in range(0, len(out), layers + 1)]
    middle = None
    if counts["middle_block"]:
        found = [_layer_number(match[1]) for match in map(_MIDDLE_DEPTH.match, shapes) if match]
        middle = 1 + max(found) if found else 0
    return _UnetLevels(widths, layers, down, middle, up)
