"""Guides beside a pipeline: a folder, a hub id, or one file.

A file has no config. What a ControlNet (https://arxiv.org/abs/2302.05543) shares with the UNet it has from there, as
`ControlNetModel.from_unet` of diffusers; where it attends, and how deeply, is read off its names. All of a T2I-Adapter
(https://arxiv.org/abs/2302.08453) is read off names and shapes, but for which of two kinds of network it is, of which
the size of its first squares tells; original names are those of https://github.com/TencentARC/T2I-Adapter
(`adapter.py`). An IP-Adapter's image encoder is found as h94/IP-Adapter on the hub has the two, or named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from olivelike._text import did_you_mean_path
from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_text_width
from olivelike.families.networks import STORED
from olivelike.families.supported import check_network
from olivelike.model.adapter_features import TYPES, Feature, given_features, taken_features
from olivelike.model.architecture import Config
from olivelike.model.components import INDEX_FILE
from olivelike.model.guides import GuideKind
from olivelike.model.records.origin import Origin
from olivelike.sources.adapters.ip_adapter_file import IpAdapterFile, read_ip_adapter
from olivelike.sources.checkpoint import Checkpoint, FolderFiles, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.hub import fetch_hub_file, open_hub
from olivelike.sources.identify.identify import identify
from olivelike.sources.source_licenses import licensed, origin_of
from olivelike.sources.source_spec import SourceSpec

Shapes = Mapping[str, tuple[int, ...]]
FileGuide = IpAdapterFile
"""A guide that is a file of weights for the UNet."""


@dataclass(frozen=True)
class Host:
    """The pipeline that guides have to fit, as far as it is known."""

    where: str = ""
    """Its place, for messages."""
    unet: Config = field(default_factory=dict)
    """Config of its UNet; empty if nobody knows it."""
    pixels: int = 8
    """Pixels per latent, along one side."""
    denoiser: Checkpoint | None = None
    """Its UNet, if that is opened."""


@dataclass(frozen=True)
class OpenedGuide:
    """A guide, opened as far as headers and config."""

    network: Checkpoint
    """The network that makes what the UNet takes; of a file, with what that adds to it."""
    origin: Origin
    """Origin of the network."""
    file: tuple[FileGuide, Origin] | None = None
    """The file of weights for the UNet, of a kind that is one."""


def open_beside(
    spec: SourceSpec, kind: GuideKind, component: str, host: Host, read_pickle: ReadPickle | None
) -> OpenedGuide:
    """Open a guide for a pipeline.

    Raises `SourceError` if it is missing or damaged, something else, or for another family than the pipeline.

    Args:
        spec: a folder with `config.json` and weights, a file, or a hub id.
        kind: what it has to be.
        component: what its network becomes: one of its kind's components.
        host: the pipeline.
        read_pickle: reads the table of a pickled file; `None` refuses such files.
    """
    if kind.is_file:
        return _with_encoder(spec, kind, component, host, read_pickle)
    found, origin = spec.open(
        lambda path: _from_file(path, kind, component, host, read_pickle),
        lambda files: _from_files(files, kind, component, spec.variant, host, read_pickle),
    )
    return OpenedGuide(found, licensed(origin, spec.license))


def _from_files(
    files: SourceFiles, kind: GuideKind, component: str, variant: str | None, host: Host, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    folder = next((name for name in kind.folders if "config.json" in files.names(name)), "")
    if not folder and INDEX_FILE in files.names(""):
        raise SourceError(f"{files.where}: this is a pipeline; name it as `source:`; `{kind.key}:` takes {kind.one}")
    library, usual = kind.network
    config = read_json(files, f"{folder}/config.json" if folder else "config.json")
    class_name = str(config.get("_class_name", usual))
    try:
        check_network(component, class_name, config)
    except SourceError as error:
        raise SourceError(f"{files.where}: {error}") from None
    if kind.enters in _CHECKS:
        _CHECKS[kind.enters](kind, files.where, config, host)
    read = read_checkpoint(files, component, folder, library, class_name, variant=variant, read_pickle=read_pickle)
    return read, origin_of(files)


def _from_file(
    path: Path, kind: GuideKind, component: str, host: Host, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    if identity.kind != kind.name or not identity.supported:
        raise SourceError(f"{path}: {identity.misplaced}`{kind.key}:` takes {kind.one}")
    original = identity.naming == "original"
    prefixes = STORED[kind.name].prefixes
    prefix = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in header.tensors)), "")
    table = {name: (tensor, path) for name, tensor in header.tensors.items() if name.startswith(prefix)}
    shapes = {name.removeprefix(prefix): tensor.shape for name, (tensor, _) in table.items()}
    config = _CONFIGS[kind.name](path, shapes, host, original)
    _CHECKS[kind.enters](kind, str(path), config, host)
    checkpoint = Checkpoint(component, *kind.network, config, table, original=kind.name if original else None)
    return checkpoint, licensed(Origin.local("file", path), metadata=header.metadata)


def _title(width: int) -> str:
    family = family_of_text_width(width)
    return FAMILIES[family].title if family else "another network"


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


def _controlnet_config(path: Path, shapes: Shapes, host: Host, original: bool) -> Config:
    """Return the config of a ControlNet in a file, from that of its UNet and what shapes and names tell."""
    own = host.unet
    if "block_out_channels" not in own:
        raise SourceError(
            f"{path}: a ControlNet in one file has no config, and the source has none of its UNet to go by; name a "
            "ControlNet's folder"
        )
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


def _depths(shapes: Shapes, own: Config, *, original: bool) -> Config:
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


def _check_whole(kind: GuideKind, where: str, config: Config, host: Host) -> None:
    """Refuse a network that mirrors a UNet of another family than the pipeline's, or one of other sizes."""
    own = host.unet
    width, needed = config.get("cross_attention_dim"), own.get("cross_attention_dim")
    if isinstance(width, int) and isinstance(needed, int) and width != needed:
        raise SourceError(
            f"{where}: this {kind.title} is for {_title(width)}: it takes text of width {width}, and the pipeline's "
            f"UNet is {_title(needed)}, with text of width {needed}; take {kind.one} for that"
        )
    for key in ("block_out_channels", "layers_per_block"):
        if key in config and key in own and _plain(config[key]) != _plain(own[key]):
            raise SourceError(
                f"{where}: this {kind.title} is for a UNet of {key} {_plain(config[key])}, and the pipeline's has "
                f"{_plain(own[key])}; take one that was made for this family of checkpoints"
            )
    channels = config.get("in_channels", _LATENTS)
    if kind.in_each_step and channels != own.get("out_channels", _LATENTS):
        raise SourceError(
            f"{where}: this {kind.title} takes latents of {channels} channels, and the pipeline's have "
            f"{own.get('out_channels', _LATENTS)}; take one that was made for this family of checkpoints"
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


_COLOURS: Final = (1, 3)
"""Channels of pictures that lead: grey, or RGB."""
_ORIGINAL_LAYERS: Final = 2
"""Layers of a level in the original code, where no name tells."""


def _t2i_adapter_config(path: Path, shapes: Shapes, host: Host, original: bool) -> Config:
    """Return the config of a T2I-Adapter in a file, read off its names and shapes."""
    shapes = {name.removeprefix("adapter."): shape for name, shape in shapes.items()}
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
    kind = "light_adapter" if light else TYPES[downscale == 2 * host.pixels]
    return {
        "in_channels": in_channels, "channels": channels[:-1] if light else channels, "num_res_blocks": layers[0],
        "downscale_factor": downscale, "adapter_type": kind,
    }  # fmt: skip


def _first_squares(values: int) -> tuple[int, int] | None:
    """Return channels and side of the squares of pixels that have so many values; `None` if there are none such."""
    found = ((channels, math.isqrt(values // channels)) for channels in _COLOURS)
    return next(((channels, side) for channels, side in found if channels * side * side == values), None)


def _check_features(kind: GuideKind, where: str, config: Config, host: Host) -> None:
    """Refuse a network whose features do not go into the pipeline's UNet, by their channels and scales."""
    try:
        given, taken = given_features(config), taken_features(host.unet)
    except (LookupError, TypeError, ValueError):
        return  # The UNet's config is not known, or is none: it is refused as such where its network is built.
    wanted = [(feature.channels, feature.scale * host.pixels) for feature in taken]
    if (features := [(feature.channels, feature.scale) for feature in given]) != wanted:
        raise SourceError(
            f"{where}: this {kind.title} is for {_first_title(given[0], host)}: it gives features of "
            f"{_shown(features)}, and the pipeline's UNet takes {_shown(wanted)}; take one that was made for this "
            "family of checkpoints"
        )


def _first_title(first: Feature, host: Host) -> str:
    """Return which pipelines have their first features there."""
    titles = {host.pixels: "Stable Diffusion 1.x", 2 * host.pixels: "Stable Diffusion XL"}
    return titles.get(first.scale, "another network")


def _shown(features: list[tuple[int, int]]) -> str:
    return ", ".join(f"{channels} channels at 1/{scale}" for channels, scale in features)


_PLACES: Final = ("models/image_encoder", "sdxl_models/image_encoder", "image_encoder")
"""Folders of encoders in h94/IP-Adapter: adapters in `sdxl_models/` may be for the one in `models/`."""
_DEFAULTS: Final = {"projection_dim": 512, "hidden_size": 768}
"""Defaults of transformers' `CLIPVisionConfig`."""


def _with_encoder(
    spec: SourceSpec, kind: GuideKind, component: str, host: Host, read_pickle: ReadPickle | None
) -> OpenedGuide:
    """Open an IP-Adapter and its image encoder, which has the projection in the adapter's file then."""
    path, origin = _fetch(spec)
    file = read_ip_adapter(path, read_pickle)
    origin = licensed(origin, spec.license, file.metadata)
    file.check_family(host.unet.get("cross_attention_dim"), host.where)

    def read(folders: list[str]) -> Callable[[SourceFiles], tuple[Checkpoint, Origin]]:
        return lambda files: _open_encoder(files, folders, kind, component, file, read_pickle)

    if spec.network is not None:
        encoder, encoder_origin = spec.network.open(_refuse_file, read([component, ""]))
        encoder_origin = licensed(encoder_origin, spec.network.license)
    elif spec.hub is not None and origin.file is not None:
        beside = origin.file.rpartition("/")[0]
        encoder, encoder_origin = open_hub(spec.hub, spec.revision, read(_near(beside, component)))
    else:
        files = FolderFiles.local(path.absolute().parent.parent)
        encoder, encoder_origin = read(_near(path.absolute().parent.name, component))(files)
    if host.denoiser is not None and host.denoiser.graph is not None:
        raise SourceError(
            f"{host.where}: its UNet is a graph that somebody else exported, and {kind.one} changes its attention; "
            "name the checkpoint that it was made of as `source:`"
        )
    if host.denoiser is not None:
        file.layers_for(host.denoiser.tensors)
    return OpenedGuide(_with_projection(encoder, file), encoder_origin, (file, origin))


def _fetch(spec: SourceSpec) -> tuple[Path, Origin]:
    if spec.hub is not None:
        return fetch_hub_file(spec.hub, spec.file, spec.revision)
    assert spec.path is not None
    if not spec.path.is_file():
        remedy = did_you_mean_path(spec.path, "check the path, or name a file on the hub as `OWNER/NAME/FILE`")
        raise SourceError(f"{spec.path}: no such file; {remedy}")
    return spec.path, Origin.local("file", spec.path)


def _near(folder: str, component: str) -> list[str]:
    """Return where the encoder of an adapter in a folder may be, that beside it first."""
    return list(dict.fromkeys(["/".join(filter(None, (folder, component))), *_PLACES]))


def _refuse_file(path: Path) -> tuple[Checkpoint, Origin]:
    raise SourceError(f"{path}: an image encoder is a folder with config.json and weights; name that")


def _open_encoder(
    files: SourceFiles, folders: list[str], kind: GuideKind, component: str, file: IpAdapterFile,
    read_pickle: ReadPickle | None,
) -> tuple[Checkpoint, Origin]:  # fmt: skip
    """Open the first of the folders whose encoder has the width that the adapter takes."""
    key = "projection_dim" if file.pooled else "hidden_size"
    found: dict[str, object] = {}
    for folder in folders:
        if "config.json" not in files.names(folder):
            continue
        config = read_json(files, "/".join(filter(None, (folder, "config.json"))))
        class_name = str((config.get("architectures") or [kind.network[1]])[0])
        check_network(component, class_name, config)
        found[folder or "the folder itself"] = width = config.get(key, _DEFAULTS[key])
        if width == file.encoder_width:
            read = read_checkpoint(files, component, folder, *kind.network, variant=None, read_pickle=read_pickle)
            return read, origin_of(files)
    wanted = f"one whose {key} is {file.encoder_width}"
    if found:
        there = ", ".join(f"{folder} has {width}" for folder, width in found.items())
        raise SourceError(
            f"{files.where}: {file.path.name} needs another image encoder, {wanted}: {there}; name its folder with "
            "`image_encoder:` (--image-encoder)"
        )
    looked = ", ".join(folder or "the folder itself" for folder in folders)
    raise SourceError(
        f"{files.where}: has no image encoder, which {file.path.name} can't do without: {wanted}, as a folder with "
        f"config.json and weights; looked in {looked}; get it from where the IP-Adapter is from, or name its folder "
        "with `image_encoder:` (--image-encoder)"
    )


def _with_projection(encoder: Checkpoint, file: IpAdapterFile) -> Checkpoint:
    return replace(
        encoder,
        config={**encoder.config, "image_projection": dict(file.projection)},
        tensors={**encoder.tensors, **{name: (tensor, file.path) for name, tensor in file.tensors.items()}},
    )


_CONFIGS: Final[Mapping[str, Callable[[Path, Shapes, Host, bool], Config]]] = {
    "controlnet": _controlnet_config, "t2i_adapter": _t2i_adapter_config,
}  # fmt: skip
"""Kinds whose files are known → config of a network in a file; also gets whether its names are the original code's."""
_CHECKS: Final[Mapping[str, Callable[[GuideKind, str, Config, Host], None]]] = {
    "up": _check_whole, "down": _check_features,
}  # fmt: skip
"""Place in a UNet where a kind enters → refuses a network for another pipeline, whose own place is for messages."""
