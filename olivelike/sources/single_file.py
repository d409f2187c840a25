"""A checkpoint in one file as a pipeline: configs, tokenizers and scheduler come from this package.

Another VAE in place of a pipeline's own: a folder, a hub id, or one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.model.families import FAMILIES, INDEX_FILE, Prediction, torch_folder
from olivelike.model.records.origin import Identification, Origin
from olivelike.sources.checkpoint import Checkpoint, SourceFiles, read_checkpoint, read_json
from olivelike.sources.files.weight_table import Header, ReadPickle, read_weight_table
from olivelike.sources.identify.family_configs import derive_config
from olivelike.sources.identify.identify import PLACES, Identity, Part, identify
from olivelike.sources.identify.published import NETWORK_CLASSES, PUBLISHED, Published, scheduler_file, tokenizer_files

if TYPE_CHECKING:
    from olivelike.model.architecture import Config
    from olivelike.sources.pipeline import SourceSpec


@dataclass(frozen=True)
class SingleFile:
    """A checkpoint file whose header has been read."""

    path: Path
    header: Header
    identity: Identity
    prediction: Prediction
    """What its UNet predicts: as told, as it says itself, or as is usual for its family."""
    zero_snr: bool

    @classmethod
    def open(cls, path: Path, prediction: Prediction | None, read_pickle: ReadPickle | None) -> SingleFile:
        """Read the header of a checkpoint file.

        Raises `SourceError` if the file is no checkpoint of a supported family, damaged, or pickled.

        Args:
            prediction: what the UNet predicts, where the user knows better than the file.
            read_pickle: reads the table of a pickled file; `None` refuses such files.
        """
        header = read_weight_table(path, read_pickle)
        identity = identify(header.tensors, header.metadata)
        _check(path, identity)
        told = prediction or identity.expected_prediction
        assert told is not None, "a checkpoint has a UNet"
        return cls(path, header, identity, told, zero_snr=identity.zero_snr and told == "v_prediction")

    @property
    def origin(self) -> Origin:
        """Where the pipeline comes from, for the record."""
        found = self.identity
        identified = Identification(
            found.family, found.inpainting, self.prediction, self.zero_snr, tuple(found.reasons)
        )
        return Origin.local("file", self.path, identified)

    @property
    def index(self) -> Config:
        """What would be the pipeline's `model_index.json`; a component that the file lacks is null."""
        family, inpainting = self._published, self.identity.inpainting
        scheduler, _ = scheduler_file(family, self.prediction, zero_snr=self.zero_snr)
        index: dict[str, Any] = {
            "_class_name": family.inpainting_pipeline if inpainting else family.pipeline,
            **family.index,
            "scheduler": ["diffusers", scheduler],
        }
        index |= {folder: ["transformers", "CLIPTokenizer"] for folder in family.tokenizers}
        for folder in family.configs:
            index[folder] = list(NETWORK_CLASSES[folder]) if self.identity.part(folder) else [None, None]
        return dict(sorted(index.items()))

    @property
    def extras(self) -> dict[str, Path]:
        """The files beside the networks, by relative path: those of this package."""
        _, scheduler = scheduler_file(self._published, self.prediction, zero_snr=self.zero_snr)
        return dict(sorted({**tokenizer_files(self._published), "scheduler/scheduler_config.json": scheduler}.items()))

    def config(self, folder: str) -> Config:
        """Return a network's config; of one that the file lacks, the family's published one.

        Raises `SourceError` if the network's structure can't be told from its tensors.
        """
        part = self.identity.part(folder)
        if part is None:
            return self._published.configs[folder]
        shapes = {name: tensor.shape for name, tensor in self.header.tensors.items()}
        return derive_config(self._published, part, shapes, self.prediction)

    def checkpoint(self, component: str) -> Checkpoint:
        """Return a component as the file stores it. Raises `SourceError` if the file lacks it."""
        folder = torch_folder(component)
        part = self.identity.part(folder)
        if part is None:
            raise self._lacks(component)
        library, class_name = NETWORK_CLASSES[folder]
        tensors = {
            name: (tensor, self.path)
            for name, tensor in self.header.tensors.items()
            if name.startswith(part.prefix) and _is_of_network(part.prefix, name)
        }
        return Checkpoint(component, library, class_name, self.config(folder), tensors, original=part.converter)

    @property
    def _published(self) -> Published:
        assert self.identity.family is not None, "a checkpoint is of a family"
        return PUBLISHED[self.identity.family]

    def _lacks(self, component: str) -> SourceError:
        held = ", ".join(sorted(part.folder for part in self.identity.parts))
        folder = torch_folder(component)
        remedy = f"drop {component} from `components:`"
        if folder == "vae":
            remedy = f"add `vae:` with a VAE for {self.identity.network}, or {remedy}"
        elif folder in self._published.configs:
            remedy = f"get the whole checkpoint, or {remedy}"
        return SourceError(f"{self.path}: this file has no {component} (it holds: {held}); {remedy}")


def _is_of_network(prefix: str, name: str) -> bool:
    # A UNet file without any prefix may hold marks such as `v_pred` beside the network.
    return bool(prefix) or name.startswith(
        ("input_blocks.", "middle_block.", "output_blocks.", "time_embed.", "label_emb.", "out.")
    )


def _check(path: Path, identity: Identity) -> None:
    """Refuse what is no checkpoint of a supported family."""
    if identity.supported and identity.kind in ("checkpoint", "unet") and identity.naming == "original":
        return
    why = f" ({'; '.join(identity.reasons)})" if identity.reasons else ""
    families = ", ".join(family.title for family in FAMILIES.values())
    remedy = f"as a single file, `source:` takes {families}, with the tensor names of the original code"
    if not identity.supported:
        raise SourceError(f"{path}: this is {identity.description}{why}, which is not supported; {remedy}")
    if identity.kind in PLACES:
        remedy = f"{PLACES[identity.kind]}; `source:` takes a checkpoint"
    elif identity.kind == "unet":
        remedy = f"put it with its config.json into a diffusers folder; {remedy}"
    raise SourceError(f"{path}: this is {identity.description}, no checkpoint{why}; {remedy}")


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
        The checkpoints by component, and where they come from, for the record.
    """

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
