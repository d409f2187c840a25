"""ControlNets (https://arxiv.org/abs/2302.05543) beside a pipeline: a folder, a hub id, or one file in either names.

A file has no config. What its network shares with the UNet it has from there, as `ControlNetModel.from_unet` of
diffusers; where it attends, and how deeply, is read off its names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_text_width
from olivelike.families.supported import check_network
from olivelike.model.records.origin import Origin
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.model.architecture import Config
    from olivelike.sources.source_spec import SourceSpec

CLASS: Final = ("diffusers", "ControlNetModel")
_HINTS: Final = "input_hint_block.0.weight"
_SHARED: Final = (
    "flip_sin_to_cos", "freq_shift", "down_block_types", "mid_block_type", "only_cross_attention", "block_out_channels",
    "layers_per_block", "downsample_padding", "mid_block_scale_factor", "act_fn", "norm_num_groups", "norm_eps",
    "cross_attention_dim", "transformer_layers_per_block", "attention_head_dim", "num_attention_heads",
    "use_linear_projection", "addition_embed_type", "addition_time_embed_dim", "upcast_attention",
    "resnet_time_scale_shift", "projection_class_embeddings_input_dim",
)  # fmt: skip
"""Settings that a ControlNet has from its UNet."""
_POOLED: Final = "shuffle"
"""In a file's name: its conditions are means over the picture, of which no tensor tells."""
_LATENTS: Final = 4


def open_controlnet(
    spec: SourceSpec, component: str, own: Config, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    """Open a ControlNet for a pipeline.

    Raises `SourceError` if it is missing or damaged, something else, or for another family than the pipeline.

    Args:
        spec: a folder with `config.json` and weights, a file, or a hub id.
        component: what it becomes: one of its kind's components.
        own: config of the pipeline's UNet; empty if nobody knows it.
        read_pickle: reads the table of a pickled file; `None` refuses such files.

    Returns:
        The checkpoint, and where it comes from, for the record.
    """
    return spec.open(
        lambda path: _from_file(path, component, own, read_pickle),
        lambda files: _from_files(files, component, spec.variant, own, read_pickle),
    )


def _from_files(
    files: SourceFiles, component: str, variant: str | None, own: Config, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    folder = "controlnet" if "config.json" in files.names("controlnet") else ""
    if not folder and "model_index.json" in files.names(""):
        raise SourceError(f"{files.where}: this is a pipeline; name it as `source:`; `controlnets:` takes a ControlNet")
    config = read_json(files, f"{folder}/config.json" if folder else "config.json")
    class_name = str(config.get("_class_name", CLASS[1]))
    try:
        check_network(component, class_name, config)
    except SourceError as error:
        raise SourceError(f"{files.where}: {error}") from None
    _check_family(files.where, config, own)
    read = read_checkpoint(files, component, folder, CLASS[0], class_name, variant=variant, read_pickle=read_pickle)
    return read, files.origin


def _from_file(path: Path, component: str, own: Config, read_pickle: ReadPickle | None) -> tuple[Checkpoint, Origin]:
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    if identity.kind != "controlnet" or not identity.supported:
        raise SourceError(f"{path}: {identity.misplaced}`controlnets:` takes a ControlNet")
    if "block_out_channels" not in own:
        raise SourceError(
            f"{path}: a ControlNet in one file has no config, and the source has none of its UNet to go by; name a "
            "ControlNet's folder"
        )
    original = identity.naming == "original"
    prefix = next((prefix for prefix in ("control_model.", "") if f"{prefix}{_HINTS}" in header.tensors), "")
    table = {name: (tensor, path) for name, tensor in header.tensors.items() if name.startswith(prefix)}
    shapes = {name.removeprefix(prefix): tensor.shape for name, (tensor, _) in table.items()}
    config = _config(path, shapes, own, original=original)
    _check_family(str(path), config, own)
    checkpoint = Checkpoint(component, *CLASS, config, table, original="controlnet" if original else None)
    return checkpoint, Origin.local("file", path)


def _config(path: Path, shapes: Mapping[str, tuple[int, ...]], own: Config, *, original: bool) -> Config:
    """Return the config of a network in a file, from that of its UNet and what shapes and names tell."""
    config: Json = {name: own[name] for name in _SHARED if name in own}
    first = "input_blocks.0.0.weight" if original else "conv_in.weight"
    hints = (
        (r"input_hint_block\.(\d+)\.weight")
        if original
        else r"controlnet_cond_embedding\.(?:conv_in|blocks\.\d+)\.weight"
    )
    widths = [shape[0] for name, shape in shapes.items() if re.fullmatch(hints, name) and len(shape) == 4]
    keys = [shape for name, shape in shapes.items() if name.endswith(".attn2.to_k.weight") and len(shape) == 2]
    if first not in shapes or not shapes[first] or len(shapes[first]) < 2 or not widths:
        raise SourceError(f"{path}: this ControlNet lacks {first} or its hints' layers; get the file again")
    if original:
        # The last of the layers is as wide as the UNet's first level.
        last = max(int(match[1]) for name in shapes if (match := re.fullmatch(hints, name)))
        widths = [s[0] for name, s in shapes.items() if re.fullmatch(hints, name) and f".{last}." not in name]
    config["in_channels"] = shapes[first][1]
    config["conditioning_embedding_out_channels"] = sorted(set(widths))
    config["block_out_channels"] = [shapes[first][0], *own["block_out_channels"][1:]]
    if keys:
        config["cross_attention_dim"] = keys[0][-1]
    if _POOLED in path.stem.lower():
        config["global_pool_conditions"] = True
    return {**config, **_depths(shapes, own, original=original)}


def _depths(shapes: Mapping[str, tuple[int, ...]], own: Config, *, original: bool) -> Config:
    """Return what differs from the UNet in where the network attends, and with how many blocks."""
    levels = len(own["block_out_channels"])
    layers = own.get("layers_per_block", 2) + 1
    pattern = (
        r"(?:input_blocks\.(\d+)|middle_block)\.1\.transformer_blocks\.(\d+)\."
        if original
        else r"(?:down_blocks\.(\d+)|mid_block)\.attentions\.0\.transformer_blocks\.(\d+)\."
    )
    depths, middle = [0] * levels, 0
    for match in filter(None, (re.match(pattern, name) for name in shapes)):
        depth = int(match[2]) + 1
        if match[1] is None:
            middle = max(middle, depth)
            continue
        level = (int(match[1]) - 1) // layers if original else int(match[1])
        if level < levels:
            depths[level] = max(depths[level], depth)
    found: Json = {}
    types = [f"{'CrossAttn' if depth else ''}DownBlock2D" for depth in depths]
    if types != list(own.get("down_block_types", types)):
        found["down_block_types"] = types
    if not middle:
        found["mid_block_type"] = "UNetMidBlock2D"
    whole = own.get("transformer_layers_per_block", 1)
    usual = list(whole) if isinstance(whole, list | tuple) else [whole] * levels
    wanted = [depth or usual[place] for place, depth in enumerate(depths)]
    if middle and not depths[-1]:
        wanted[-1] = middle
    return found if wanted == usual else {**found, "transformer_layers_per_block": wanted}


def _check_family(where: str, config: Config, own: Config) -> None:
    """Refuse a ControlNet of another family than the pipeline's UNet, or for one of other sizes."""
    width, needed = config.get("cross_attention_dim"), own.get("cross_attention_dim")
    if isinstance(width, int) and isinstance(needed, int) and width != needed:
        raise SourceError(
            f"{where}: this ControlNet is for {_title(width)}: it takes text of width {width}, and the pipeline's UNet "
            f"is {_title(needed)}, with text of width {needed}; take a ControlNet for that"
        )
    for key in ("block_out_channels", "layers_per_block"):
        if key in config and key in own and _plain(config[key]) != _plain(own[key]):
            raise SourceError(
                f"{where}: this ControlNet is for a UNet of {key} {_plain(config[key])}, and the pipeline's has "
                f"{_plain(own[key])}; take one that was made for this family of checkpoints"
            )
    if (channels := config.get("in_channels", _LATENTS)) != own.get("out_channels", _LATENTS):
        raise SourceError(
            f"{where}: this ControlNet takes latents of {channels} channels, and the pipeline's have "
            f"{own.get('out_channels', _LATENTS)}; take one that was made for this family of checkpoints"
        )


def _title(width: int) -> str:
    family = family_of_text_width(width)
    return FAMILIES[family].title if family else "another network"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
