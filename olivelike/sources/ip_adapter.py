"""An IP-Adapter beside a pipeline, with its image encoder: found as h94/IP-Adapter on the hub has the two, or named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from olivelike._text import did_you_mean_path
from olivelike.errors import SourceError
from olivelike.families.supported import check_network
from olivelike.model.guides import IMAGE_ENCODER
from olivelike.model.records.origin import Origin
from olivelike.sources.adapters.ip_adapter_file import IpAdapterFile, read_ip_adapter
from olivelike.sources.checkpoint import Checkpoint, FolderFiles, SourceFiles, read_checkpoint, read_json
from olivelike.sources.hub import fetch_hub_file, open_hub

if TYPE_CHECKING:
    from olivelike.model.architecture import Config
    from olivelike.sources.files.weight_table import ReadPickle
    from olivelike.sources.source_spec import IpAdapterSpec

Opened = TypeVar("Opened")

CLASS: Final = ("transformers", "CLIPVisionModelWithProjection")
_PLACES: Final = ("models/image_encoder", "sdxl_models/image_encoder", "image_encoder")
"""Folders of encoders in h94/IP-Adapter: adapters in `sdxl_models/` may be for the one in `models/`."""
_DEFAULTS: Final = {"projection_dim": 512, "hidden_size": 768}
"""Defaults of transformers' `CLIPVisionConfig`."""


@dataclass(frozen=True)
class OpenedIpAdapter:
    """An IP-Adapter and its image encoder, opened as far as headers and config."""

    file: IpAdapterFile
    origin: Origin
    encoder: Checkpoint
    """The network that makes tokens: the encoder, and the projection in the adapter's file."""
    encoder_origin: Origin


def open_ip_adapter(spec: IpAdapterSpec, own: Config, where: str, read_pickle: ReadPickle | None) -> OpenedIpAdapter:
    """Open an IP-Adapter for a pipeline.

    Raises `SourceError` if it or its image encoder is missing or damaged, or for another family than the pipeline.

    Args:
        spec: what the workflow names.
        own: config of the pipeline's UNet; empty if nobody knows it.
        where: the pipeline, for messages.
        read_pickle: reads the table of a pickled file; `None` refuses such files.
    """
    path, origin = _fetch(spec)
    file = read_ip_adapter(path, read_pickle)
    file.check_family(own.get("cross_attention_dim"), where)

    def read(folders: list[str]) -> Callable[[SourceFiles], tuple[Checkpoint, Origin]]:
        return lambda files: _open_encoder(files, folders, file, read_pickle)

    if spec.image_encoder is not None:
        encoder, encoder_origin = spec.image_encoder.open(_refuse_file, read([IMAGE_ENCODER, ""]))
    elif spec.hub is not None and origin.file is not None:
        beside = origin.file.rpartition("/")[0]
        encoder, encoder_origin = open_hub(spec.hub, spec.revision, read(_near(beside)))
    else:
        files = FolderFiles.local(path.absolute().parent.parent)
        encoder, encoder_origin = read(_near(path.absolute().parent.name))(files)
    return OpenedIpAdapter(file, origin, _with_projection(encoder, file), encoder_origin)


def _fetch(spec: IpAdapterSpec) -> tuple[Path, Origin]:
    if spec.hub is not None:
        return fetch_hub_file(spec.hub, spec.name, spec.revision)
    assert spec.path is not None
    if not spec.path.is_file():
        remedy = did_you_mean_path(spec.path, "check the path, or name a file on the hub as `OWNER/NAME/FILE`")
        raise SourceError(f"{spec.path}: no such file; {remedy}")
    return spec.path, Origin.local("file", spec.path)


def _near(folder: str) -> list[str]:
    """Return where the encoder of an adapter in a folder may be, that beside it first."""
    return list(dict.fromkeys(["/".join(filter(None, (folder, IMAGE_ENCODER))), *_PLACES]))


def _refuse_file(path: Path) -> tuple[Checkpoint, Origin]:
    raise SourceError(f"{path}: an image encoder is a folder with config.json and weights; name that")


def _open_encoder(
    files: SourceFiles, folders: list[str], file: IpAdapterFile, read_pickle: ReadPickle | None
) -> tuple[Checkpoint, Origin]:
    """Open the first of the folders whose encoder has the width that the adapter takes."""
    key = "projection_dim" if file.pooled else "hidden_size"
    found: dict[str, object] = {}
    for folder in folders:
        if "config.json" not in files.names(folder):
            continue
        config = read_json(files, "/".join(filter(None, (folder, "config.json"))))
        class_name = str((config.get("architectures") or [CLASS[1]])[0])
        check_network(IMAGE_ENCODER, class_name, config)
        found[folder or "the folder itself"] = width = config.get(key, _DEFAULTS[key])
        if width == file.encoder_width:
            read = read_checkpoint(files, IMAGE_ENCODER, folder, *CLASS, variant=None, read_pickle=read_pickle)
            return read, files.origin
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
