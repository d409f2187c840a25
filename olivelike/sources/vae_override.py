"""Another VAE in place of a pipeline's own: a folder, a hub id, or one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.model.families import FAMILIES, INDEX_FILE
from olivelike.model.records.origin import Origin
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.identify import PLACES, Part, identify

if TYPE_CHECKING:
    from olivelike.model.architecture import Config
    from olivelike.sources.files.weight_table import ReadPickle
    from olivelike.sources.pipeline import SourceSpec

CLASS = ("diffusers", "AutoencoderKL")
_USUAL_SCALING = FAMILIES["sd1"].scaling_factor
"""Of a config that names none: the default of `AutoencoderKL`."""


def open_vae(
    spec: SourceSpec, components: Iterable[str], own: Config | None, read_pickle: ReadPickle | None
) -> tuple[dict[str, Checkpoint], Origin]:
    """Open a VAE for a pipeline.

    Raises `SourceError` if the VAE is missing or damaged, no VAE, or of another family than the pipeline.

    Args:
        spec: a folder with `config.json` and weights, a pipeline folder, a file, or a hub id.
        own: config of the pipeline's own VAE, which a single file's has to match; `None` if it has none.
        read_pickle: reads the table of a pickled file; `None` refuses such files.

    Returns:
        The checkpoints by component, and where they come from, for the record."""

    def read(files: SourceFiles) -> tuple[Checkpoint, Origin]:
        checkpoint = _from_files(files, spec.variant, read_pickle)
        if own is not None:
            _check_scaling(files.where, checkpoint.config.get("scaling_factor", _USUAL_SCALING), own)
        return checkpoint, files.origin

    found, origin = spec.open(lambda path: _from_file(path, own, read_pickle), read)
    return {name: replace(found, component=name) for name in components}, origin


def _from_files(files: SourceFiles, variant: str | None, read_pickle: ReadPickle | None) -> Checkpoint:
    folder = "vae" if INDEX_FILE in files.names("") or "config.json" in files.names("vae") else ""
    class_name = read_json(files, f"{folder}/config.json" if folder else "config.json").get("_class_name")
    if class_name not in (None, CLASS[1]):
        raise SourceError(f"{files.where}: this is an {class_name}; `vae:` takes an {CLASS[1]}")
    return read_checkpoint(files, "vae_decoder", folder, *CLASS, variant=variant, read_pickle=read_pickle)


def _from_file(path: Path, own: Config | None, read_pickle: ReadPickle | None) -> tuple[Checkpoint, Origin]:
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    part = identity.part("vae")
    if part is None and identity.kind == "vae" and identity.supported:
        part = Part("vae", "vae", "")  # in diffusers' names, which need no converter
    if part is None:
        why = f" ({'; '.join(identity.reasons)})" if identity.reasons else ""
        place = PLACES.get(identity.kind, "")
        remedy = f"{place}; " if place and identity.supported and identity.kind != "vae" else ""
        raise SourceError(f"{path}: this is {identity.description}{why}; {remedy}`vae:` takes a VAE")
    if own is None:
        raise SourceError(
            f"{path}: a VAE in one file has no config, and the source has none to go by; name a VAE folder"
        )
    if identity.family is not None:
        _check_scaling(str(path), FAMILIES[identity.family].scaling_factor, own)
    tensors = {name: tensor for name, tensor in header.tensors.items() if name.startswith(part.prefix)}
    _check_widths(path, {name.removeprefix(part.prefix): t.shape for name, t in tensors.items()}, own)
    original = part.converter if identity.naming == "original" else None
    table = {name: (tensor, path) for name, tensor in tensors.items()}
    found = Checkpoint("vae_decoder", *CLASS, dict(own), table, original=original)
    return found, Origin.local("file", path)


def _check_widths(path: Path, shapes: Mapping[str, tuple[int, ...]], own: Config) -> None:
    """Compare what both spellings of a VAE name alike: its first convolutions."""
    widths = own["block_out_channels"]
    expected = {
        "encoder.conv_in.weight": (widths[0], own["in_channels"]),
        "decoder.conv_in.weight": (widths[-1], own["latent_channels"]),
    }
    for name, shape in expected.items():
        if name in shapes and shapes[name][:2] != shape:
            raise SourceError(
                f"{path}: this VAE does not fit the pipeline: {name} has shape {list(shapes[name])}, its own VAE's "
                f"begins with {list(shape)}; take a VAE of the same family"
            )


def _check_scaling(where: str, found: float, own: Config) -> None:
    needed = own.get("scaling_factor", _USUAL_SCALING)
    if found != needed:
        raise SourceError(
            f"{where}: this VAE is of another family: its scaling factor is {found}, the UNet was trained "
            f"with {needed}; take a VAE of the same family"
        )
