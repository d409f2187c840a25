"""Another VAE in place of a pipeline's own: a folder, a hub id, or one file; a tiny VAE too, or half of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from olivelike.digest import digest_file
from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.model.architecture import Config
from olivelike.model.components import INDEX_FILE, PREVIEW, VAES, latents_in_square
from olivelike.model.records.origin import Origin
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_header import Header
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.hub import known_digest
from olivelike.sources.identify.identify import identify
from olivelike.sources.identify.identity import Part
from olivelike.sources.identify.tiny_vae import TINY_CLASS, published_tiny, tiny_config, tiny_halves
from olivelike.sources.source_licenses import licensed, origin_of
from olivelike.sources.source_spec import SourceSpec

_CLASS: Final = ("diffusers", "AutoencoderKL")
_USUAL_SCALING: Final = FAMILIES["sd1"].latents.scaling
"""Scaling for a config that names none: the default of `AutoencoderKL`."""
_USUAL_CHANNELS: Final = 4
_LARGEST: Final = 1 << 26
"""Bytes of a tiny VAE's file; larger ones are not published, and not hashed to be looked up."""


def open_vae(
    spec: SourceSpec, components: Iterable[str], own: Config | None, read_pickle: ReadPickle | None
) -> tuple[dict[str, Checkpoint], Origin]:
    """Open a VAE for a pipeline.

    Returns the checkpoints by component, and where they come from, for the record. Raises `SourceError` if the VAE is
    missing or damaged, no VAE, or of another family than the pipeline, or if it lacks a half that is asked for.

    Args:
        spec: a folder with `config.json` and weights, a pipeline folder, a file, or a hub id.
        components: of `vae_encoder` and `vae_decoder`.
        own: config of the pipeline's own VAE, which a single file's has to match; `None` if it has none.
        read_pickle: reads the table of a pickled file; `None` refuses such files.
    """

    def read(files: SourceFiles) -> tuple[dict[str, Checkpoint], Origin]:
        checkpoint = _from_files(files, spec.variant, read_pickle)
        if checkpoint.class_name == TINY_CLASS[1]:
            _check_tiny(files.where, checkpoint, own, files.origin)
        elif own is not None:
            _check_scaling(files.where, checkpoint.config.get("scaling_factor", _USUAL_SCALING), own)
        return dict.fromkeys(VAES, checkpoint), origin_of(files)

    found, origin = spec.open(lambda path: _from_file(path, own, read_pickle), read)
    wanted = list(components)
    if missing := [name for name in wanted if name not in found]:
        (held,) = found
        raise SourceError(
            f"{origin.place}: this file is a {held} alone, and the workflow has {missing[0]}; put its other half "
            f"beside it ({_other_half(Path(origin.name)).name}), or drop {missing[0]} from `components:`"
        )
    return {name: replace(found[name], component=name) for name in wanted}, licensed(origin, spec.license)


def open_preview(spec: SourceSpec, own: Config | None, read_pickle: ReadPickle | None) -> tuple[Checkpoint, Origin]:
    """Open the decoder of a tiny VAE for previews; arguments, errors and results as of `open_vae`."""
    found, origin = open_vae(spec, ["vae_decoder"], own, read_pickle)
    if found["vae_decoder"].class_name != TINY_CLASS[1]:
        raise SourceError(
            f"{origin.place}: this is no tiny VAE, and as slow as the pipeline's own; `preview:` takes TAESD or "
            "TAESDXL, `vae:` any VAE"
        )
    return replace(found["vae_decoder"], component=PREVIEW), origin


def vae_halves(spec: SourceSpec, read_pickle: ReadPickle | None) -> frozenset[str]:
    """Return which halves another VAE has: both, unless it is a file with half of a tiny VAE."""
    if not spec.is_file or spec.path is None:
        return frozenset(VAES)
    found = _tiny_halves_at(spec.path, read_weight_table(spec.path, read_pickle), read_pickle)
    return frozenset(found) or frozenset(VAES)


def _from_files(files: SourceFiles, variant: str | None, read_pickle: ReadPickle | None) -> Checkpoint:
    folder = "vae" if INDEX_FILE in files.names("") or "config.json" in files.names("vae") else ""
    class_name = read_json(files, f"{folder}/config.json" if folder else "config.json").get("_class_name")
    if class_name not in (None, _CLASS[1], TINY_CLASS[1]):
        raise SourceError(f"{files.where}: this is an {class_name}; `vae:` takes an {_CLASS[1]} or {TINY_CLASS[1]}")
    library_class = TINY_CLASS if class_name == TINY_CLASS[1] else _CLASS
    return read_checkpoint(files, "vae_decoder", folder, *library_class, variant=variant, read_pickle=read_pickle)


def _from_file(path: Path, own: Config | None, read_pickle: ReadPickle | None) -> tuple[dict[str, Checkpoint], Origin]:
    header = read_weight_table(path, read_pickle)
    origin = licensed(Origin.local("file", path), metadata=header.metadata)
    if tiny := _tiny_halves_at(path, header, read_pickle):
        for checkpoint in tiny.values():
            _check_tiny(str(path), checkpoint, own, origin)
        return tiny, origin
    identity = identify(header.tensors, header.metadata)
    part = identity.part("vae")
    if part is None and identity.kind == "vae" and identity.supported:
        part = Part("vae", "vae", "")  # in diffusers' names, which need no converter
    if part is None:
        raise SourceError(f"{path}: {identity.misplaced}`vae:` takes a VAE")
    if own is None or "block_out_channels" not in own:
        raise SourceError(
            f"{path}: a VAE in one file has no config, and the source has none to go by; name a VAE folder"
        )
    if latents_in_square(own) > 1:
        raise SourceError(
            f"{path}: the pipeline's VAE has statistics of squares of latents, as FLUX.2's, taken beside a file "
            "of its transformer (`source: {transformer: FILE, text_encoder: FILE, vae: FILE}`) or in its folder alone; "
            "leave `vae:` out"
        )
    if identity.family is not None:
        _check_scaling(str(path), FAMILIES[identity.family].latents.scaling, own)
    tensors = {name: tensor for name, tensor in header.tensors.items() if name.startswith(part.prefix)}
    _check_widths(path, {name.removeprefix(part.prefix): t.shape for name, t in tensors.items()}, own)
    original = part.converter if identity.naming == "original" else None
    table = {name: (tensor, path) for name, tensor in tensors.items()}
    return dict.fromkeys(VAES, Checkpoint("vae_decoder", *_CLASS, dict(own), table, original=original)), origin


def _tiny_halves_at(path: Path, header: Header, read_pickle: ReadPickle | None) -> dict[str, Checkpoint]:
    """Return the halves of a tiny VAE in a file and, if that has one of them, in the file of the other beside it."""
    found = _tiny_from_file(path, header)
    beside = _other_half(path)
    if len(found) == 1 and beside != path and beside.is_file():
        found = {**_tiny_from_file(beside, read_weight_table(beside, read_pickle)), **found}
    return found


def _other_half(path: Path) -> Path:
    """Return how the file of the other half is named: `taesd_encoder.safetensors` for `taesd_decoder.safetensors`."""
    swapped = {"decoder": "encoder", "encoder": "decoder"}
    return next((path.with_name(path.name.replace(*pair)) for pair in swapped.items() if pair[0] in path.name), path)


def _tiny_from_file(path: Path, header: Header) -> dict[str, Checkpoint]:
    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    halves = tiny_halves(shapes)
    try:
        config = tiny_config(shapes, halves)
    except (ValueError, IndexError) as error:
        raise SourceError(f"{path}: this is no tiny VAE that is known: {error}; get the file again") from error
    found = {}
    for half in halves:
        # diffusers' names are those of one network, of which each half takes its own.
        kept = (half.prefix,) if half.original is not None else tuple(one.prefix for one in halves)
        table = {name: (tensor, path) for name, tensor in header.tensors.items() if name.startswith(kept)}
        found[half.component] = Checkpoint(half.component, *TINY_CLASS, config, table, original=half.original)
    return found


def _check_tiny(where: str, found: Checkpoint, own: Config | None, origin: Origin) -> None:
    """Refuse a tiny VAE of other latents than the pipeline's: by their channels, or if it is a published one."""
    channels = found.config.get("latent_channels", _USUAL_CHANNELS)
    needed = (own or {}).get("latent_channels", _USUAL_CHANNELS)
    if channels != needed:
        raise SourceError(
            f"{where}: this tiny VAE is for latents of {channels} channels (Stable Diffusion 3 and FLUX have 16), and "
            f"the pipeline's have {needed}; take TAESD for Stable Diffusion 1.x and 2.x, TAESDXL for XL"
        )
    scaling = (own or {}).get("scaling_factor")
    fitting = next((one.latents.tiny for one in FAMILIES.values() if one.latents.scaling == scaling), None)
    for path in found.files if fitting is not None else ():
        digest = known_digest(path) or (digest_file(path) if path.stat().st_size <= _LARGEST else "")
        published = published_tiny(digest, origin.repository)
        if fitting is not None and published is not None and published != fitting:
            raise SourceError(
                f"{where}: this tiny VAE is the published one for {published.families}, and the pipeline's latents are "
                f"those of {fitting.families}; take {fitting.title} ({fitting.repository})"
            )


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
    # A tiny VAE of the pipeline's own scales nothing, and says nothing of the family.
    if found != needed and "decoder_block_out_channels" not in own:
        raise SourceError(
            f"{where}: this VAE is of another family: its scaling factor is {found}, the UNet was trained "
            f"with {needed}; take a VAE of the same family"
        )
