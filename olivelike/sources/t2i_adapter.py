"""T2I-Adapters (https://arxiv.org/abs/2302.08453) beside a pipeline: a folder, a hub id, or one file in either names.

A file has no config: all of it is read off names and shapes, but for which of two kinds of network it is, of which the
size of its first squares tells. Original names are those of https://github.com/TencentARC/T2I-Adapter (`adapter.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.supported import check_network
from olivelike.model.adapter_features import TYPES, given_features, taken_features
from olivelike.model.records.origin import Origin
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify

if TYPE_CHECKING:
    from olivelike.model.adapter_features import Feature
    from olivelike.model.architecture import Config
    from olivelike.sources.source_spec import SourceSpec

CLASS: Final = ("diffusers", "T2IAdapter")
_FOLDERS: Final = ("t2i_adapter", "adapter")
"""Folders of such a network in a pipeline's folder."""
_COLOURS: Final = (1, 3)
"""Channels of pictures that lead: grey, or RGB."""
_ORIGINAL_LAYERS: Final = 2
"""Layers of a level in the original code, where no name tells."""


def open_t2i_adapter(
    spec: SourceSpec, component: str, own: Config, vae_factor: int, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    """Open a T2I-Adapter for a pipeline.

    Raises `SourceError` if it is missing or damaged, something else, or for another family than the pipeline.

    Args:
        spec: a folder with `config.json` and weights, a file, or a hub id.
        component: what it becomes: one of its kind's components.
        own: config of the pipeline's UNet; empty if nobody knows it.
        vae_factor: pixels per latent, along one side.
        read_pickle: reads the table of a pickled file; `None` refuses such files.

    Returns:
        The checkpoint, and where it comes from, for the record.
    """
    found, origin = spec.open(
        lambda path: _from_file(path, component, vae_factor, read_pickle),
        lambda files: _from_files(files, component, spec.variant, read_pickle),
    )
    _check_family(origin.place, found.config, own, vae_factor)
    return found, origin


def _from_files(
    files: SourceFiles, component: str, variant: str | None, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    folder = next((name for name in _FOLDERS if "config.json" in files.names(name)), "")
    config = read_json(files, f"{folder}/config.json" if folder else "config.json")
    class_name = str(config.get("_class_name", CLASS[1]))
    try:
        check_network(component, class_name, config)
    except SourceError as error:
        raise SourceError(f"{files.where}: {error}") from None
    read = read_checkpoint(files, component, folder, CLASS[0], class_name, variant=variant, read_pickle=read_pickle)
    return read, files.origin


def _from_file(
    path: Path, component: str, vae_factor: int, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    if identity.kind != "t2i_adapter" or not identity.supported:
        raise SourceError(f"{path}: {identity.misplaced}`t2i_adapters:` takes a T2I-Adapter")
    original = identity.naming == "original"
    shapes = {name.removeprefix("adapter."): tensor.shape for name, tensor in header.tensors.items()}
    config = _config(path, shapes, vae_factor, original=original)
    table = {name: (tensor, path) for name, tensor in header.tensors.items()}
    checkpoint = Checkpoint(component, *CLASS, config, table, original="t2i_adapter" if original else None)
    return checkpoint, Origin.local("file", path)


def _config(path: Path, shapes: Mapping[str, tuple[int, ...]], vae_factor: int, *, original: bool) -> Config:
    """Return the config of a network in a file, read off its names and shapes."""
    light = "body.0.out_conv.weight" in shapes
    first = shapes.get("body.0.in_conv.weight" if light else "conv_in.weight", ())
    inside = r"body\.(\d+)\.body\.(\d+)\." if original and light else r"body\.(\d+)\.resnets\.(\d+)\."
    layers: dict[int, int] = {}
    widths: dict[int, int] = {}
    for name, shape in shapes.items():
        if original and not light and (match := re.fullmatch(r"body\.(\d+)\.block1\.weight", name)):
            level, layer = divmod(int(match[1]), _ORIGINAL_LAYERS)
        elif match := re.fullmatch(rf"{inside}block1\.weight", name):
            level, layer = int(match[1]), int(match[2])
        else:
            continue
        layers[level] = max(layers.get(level, 0), layer + 1)
        widths[level] = shape[0] if shape else 0
    if light:
        widths = {level: sum(shapes.get(f"body.{level}.out_conv.weight", ())[:1]) for level in layers}
    sides = _first_squares(first[1]) if len(first) > 1 else None
    if sides is None or set(layers) != {*range(len(layers))} or len({*layers.values()}) != 1:
        raise SourceError(f"{path}: this T2I-Adapter lacks layers, or has them in sizes of its own; get the file again")
    in_channels, downscale = sides
    channels = [widths[level] for level in range(len(widths))]
    kind = "light_adapter" if light else TYPES[downscale == 2 * vae_factor]
    return {
        "in_channels": in_channels, "channels": channels[:-1] if light else channels, "num_res_blocks": layers[0],
        "downscale_factor": downscale, "adapter_type": kind,
    }  # fmt: skip


def _first_squares(values: int) -> tuple[int, int] | None:
    """Return channels and side of the squares of pixels that have so many values; `None` if there are none such."""
    found = ((channels, math.isqrt(values // channels)) for channels in _COLOURS)
    return next(((channels, side) for channels, side in found if channels * side * side == values), None)


def _check_family(where: str, config: Config, own: Config, vae_factor: int) -> None:
    """Refuse a T2I-Adapter whose features do not go into the pipeline's UNet."""
    try:
        given, taken = given_features(config), taken_features(own)
    except (LookupError, TypeError, ValueError):
        return  # The UNet's config is not known, or is none: it is refused as such where its network is built.
    wanted = [(feature.channels, feature.scale * vae_factor) for feature in taken]
    if (features := [(feature.channels, feature.scale) for feature in given]) != wanted:
        raise SourceError(
            f"{where}: this T2I-Adapter is for {_title(given[0], vae_factor)}: it gives features of "
            f"{_shown(features)}, and the pipeline's UNet takes {_shown(wanted)}; take one that was made for this "
            "family of checkpoints"
        )


def _title(first: Feature, vae_factor: int) -> str:
    """Return which pipelines have their first features there."""
    titles = {vae_factor: "Stable Diffusion 1.x", 2 * vae_factor: "Stable Diffusion XL"}
    return titles.get(first.scale, "another network")


def _shown(features: list[tuple[int, int]]) -> str:
    return ", ".join(f"{channels} channels at 1/{scale}" for channels, scale in features)


def pixels_per_latent(vae: Config | None) -> int:
    """Return how many pixels a latent has along a side, by the config of a VAE; 8 if there is none."""
    levels: Any = (vae or {}).get("block_out_channels") or (vae or {}).get("decoder_block_out_channels")
    return int(2 ** (len(levels) - 1)) if levels else 8
