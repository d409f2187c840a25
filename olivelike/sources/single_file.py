"""A checkpoint in one file, or in one for each network, as a pipeline: what else it has comes from this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from olivelike._untrusted import Json, open_file
from olivelike.errors import SourceError
from olivelike.families import DENOISERS, FAMILIES
from olivelike.families.family import Family
from olivelike.families.networks import network_of
from olivelike.families.networks.clip import PROJECTION
from olivelike.families.supported import check_network
from olivelike.model.architecture import Config
from olivelike.model.components import Prediction, torch_folder
from olivelike.model.few_steps import FewSteps, few_steps_of_path
from olivelike.model.records.origin import Identification, Origin
from olivelike.model.weights import IDENTITY
from olivelike.sources.checkpoint import TOKENIZER_SUFFIXES, Checkpoint, FolderFiles
from olivelike.sources.files.scaled import apart
from olivelike.sources.files.weight_header import Header, RawTensor, read_numbers
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify, part_among, unclaimed
from olivelike.sources.identify.identity import PLACES, Identity, Part
from olivelike.sources.identify.published import (
    EDM_SCHEDULER,
    derive_config,
    network_class,
    scheduler_file,
    tokenizer_classes,
    tokenizer_files,
)  # fmt: skip
from olivelike.sources.source_licenses import licensed, origin_of

_LISTED = 3
_EDM_SCALING = 0.5
"""Scaling of Playground 2.5's VAE, as diffusers has it."""


@dataclass(frozen=True)
class HeldPart:
    """A network in a file."""

    path: Path
    header: Header
    part: Part

    @property
    def tensors(self) -> dict[str, RawTensor]:
        """Its tensors, by stored name."""
        return {name: one for name, one in self.header.tensors.items() if name.startswith(self.part.beginnings)}


@dataclass(frozen=True)
class SingleFile:
    """A checkpoint file whose header has been read."""

    path: Path
    header: Header
    identity: Identity
    prediction: Prediction | None
    """Prediction of its UNet: as told, as it says itself, or as is usual for its family; `None` for flows."""
    zero_snr: bool
    few_steps: FewSteps | None
    """Kind of few-step model that it is: by its structure, its metadata, or as a last hint its name."""
    beside: Mapping[str, HeldPart] = field(default_factory=dict)
    """Folder → network that is in a file of its own."""
    tokenizers: Mapping[str, Path] = field(default_factory=dict)
    """Folder of a tokenizer → a user's, in place of the published one."""
    distilled: bool | None = None
    """Whether its denoiser is distilled, of a family with both kinds: as told, or as its name says."""

    @classmethod
    def open(
        cls,
        path: Path,
        prediction: Prediction | None,
        read_pickle: ReadPickle | None,
        parts: Mapping[str, Path] = MappingProxyType({}),
        *,
        distilled: bool | None = None,
    ) -> SingleFile:
        """Read the header of a checkpoint file, and those of files beside it.

        Raises `SourceError` if the file is no checkpoint of a supported family, damaged, or pickled, or one beside it
        is not the network that it is said to be.

        Args:
            prediction: what the UNet predicts, where the user knows better than the file.
            read_pickle: reads the table of a pickled file; `None` refuses such files.
            parts: folder → file of that network, or a tokenizer's folder.
            distilled: whether the denoiser is distilled, where the user knows better than the file's name.
        """
        header = read_weight_table(path, read_pickle)
        identity = identify(header.tensors, header.metadata)
        _check(path, identity)
        assert identity.family is not None, "a checkpoint is of a family"
        family = FAMILIES[identity.family]
        known = {text.tokenizer for text in family.texts}
        tokenizers = {folder: one for folder, one in parts.items() if folder in known}
        if other := next((folder for folder, one in tokenizers.items() if not one.is_dir()), None):
            raise SourceError(f"{tokenizers[other]}: as {other}, this is no folder; name the one with tokenizer.json")
        networks = {folder: one for folder, one in parts.items() if folder not in known}
        beside = {folder: _open_part(one, folder, family, read_pickle) for folder, one in networks.items()}
        named = family.published.named_distilled
        if named is None and distilled is not None:
            raise SourceError(f"{path}: of {family.title} no file is of a base or distilled; drop `distilled:`")
        if named is not None and distilled is None:
            distilled = named(path.stem.lower())
        if family.published.flow is not None:
            if prediction is not None:
                raise SourceError(f"{path}: {family.title} makes flows, and has no prediction; drop `prediction:`")
            return cls(path, header, identity, None, False, None, beside, tokenizers, distilled)
        few_steps = identity.few_steps or few_steps_of_path(path)
        told = prediction or identity.prediction
        if told is None and few_steps is not None:
            told = "sample" if (few_steps.kind, few_steps.steps) == ("lightning", 1) else "epsilon"
        if told == "sample":
            few_steps = FewSteps("lightning", 1, reason="its UNet predicts the picture itself")
        told = told or identity.expected_prediction
        assert told is not None, "a checkpoint has a UNet"
        zero_snr = identity.zero_snr and told == "v_prediction"
        return cls(path, header, identity, told, zero_snr, few_steps, beside, tokenizers)

    @property
    def origin(self) -> Origin:
        """Origin of the pipeline, for the record."""
        found = self.identity
        identified = Identification(
            found.family, found.inpainting, self.prediction or "flow", self.zero_snr, tuple(found.reasons)
        )
        parts = {
            folder: licensed(Origin.local("file", held.path), metadata=held.header.metadata)
            for folder, held in self.beside.items()
        }
        parts |= {folder: origin_of(FolderFiles.local(path)) for folder, path in self.tokenizers.items()}
        own = licensed(Origin.local("file", self.path, identified), metadata=self.header.metadata)
        return replace(own, few_steps=self.few_steps, parts=parts or None)

    @property
    def index(self) -> Config:
        """Content of the pipeline's `model_index.json`; a component that the file lacks is null."""
        family, inpainting = self.family, self.identity.inpainting
        scheduler, _ = self._scheduler
        index: Json = {
            "_class_name": family.pipelines[inpainting],
            **self._distilled,
            "scheduler": ["diffusers", scheduler],
        }
        index |= tokenizer_classes(family)
        for folder in family.published.configs:
            index[folder] = list(network_class(family, folder)) if self.held(folder) else [None, None]
        index |= {folder: [None, None] for folder in self._unread}
        return dict(sorted(index.items()))

    @property
    def _distilled(self) -> Config:
        """Return the published settings, with what is told of a base; the distilled network is the usual one."""
        own = dict(self.family.published.index)
        return own if self.distilled is not False else own | {"is_distilled": False}

    @property
    def guess(self) -> str | None:
        """What the file is taken for because nothing tells it, in words."""
        if self.family.published.named_distilled is None or self.distilled is not None:
            return None
        return (
            f"{self.path}: its tensors and its name do not tell whether it is distilled or the base of "
            f"{self.family.title}; it is taken for distilled, with its steps and guidance, and if that is wrong, say "
            "so (`distilled: false` in `source:`, convert --base)"
        )

    def held(self, folder: str) -> HeldPart | None:
        """Return the network that goes into a folder of the pipeline; `None` if there is none."""
        part = self.identity.part(folder)
        own = None if part is None else HeldPart(self.path, self.header, part)
        return self.beside.get(folder, own)

    @property
    def folders(self) -> set[str]:
        """Folders of the networks that there are."""
        return {*self.beside, *(part.folder for part in self.identity.parts)}

    @property
    def _unread(self) -> set[str]:
        """Tokenizers of text encoders that the pipeline can do without, and that are not there."""
        return {text.tokenizer for text in self.family.texts if text.optional and not self.held(text.component)}

    @property
    def extras(self) -> dict[str, Path]:
        """The files beside the networks, by relative path: those of this package, and of tokenizers that are named."""
        _, scheduler = self._scheduler
        absent = {*self._unread, *self.tokenizers}
        files = {
            name: path for name, path in tokenizer_files(self.family).items() if name.partition("/")[0] not in absent
        }
        for folder, own in self.tokenizers.items():
            there = [path for path in sorted(own.iterdir()) if path.suffix in TOKENIZER_SUFFIXES and path.is_file()]
            if not there:
                raise SourceError(f"{own}: this is no tokenizer: it has no tokenizer.json; name the folder that has it")
            files |= {f"{folder}/{path.name}": path for path in there}
        return dict(sorted({**files, "scheduler/scheduler_config.json": scheduler}.items()))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the file that nothing is made of, in words."""
        left = unclaimed(self.identity, self.header.tensors)
        if not left:
            return ()
        listed = ", ".join(left[:_LISTED]) + (f", and {len(left) - _LISTED} more" if len(left) > _LISTED else "")
        told = "1 tensor belongs" if len(left) == 1 else f"{len(left)} tensors belong"
        return (f"{self.path}: {told} to no part that is known, and nothing is made of that: {listed}",)

    def config(self, folder: str) -> Config:
        """Return a network's config; of one that the file lacks, the family's published one.

        Raises `SourceError` if the network's structure can't be told from its tensors.
        """
        held = self.held(folder)
        if held is None:
            return self.family.published.configs[folder]
        shapes = {name: tensor.shape for name, tensor in held.header.tensors.items()}
        config = derive_config(self.family, held.part, shapes, self.prediction)
        for text in self.family.texts:
            config = text.marked(config) if text.component == folder else config
            if text.unprojected and text.component == folder:
                config = {**config, "projection_dim": config["hidden_size"]}
        if folder != "vae" or not self.identity.edm:
            return config
        with open_file(self.path) as file:
            mean, std = (
                read_numbers(file, self.path, name, self.header.tensors[name], config["latent_channels"])
                for name in ("edm_mean", "edm_std")
            )
        return {**config, "latents_mean": mean, "latents_std": std, "scaling_factor": _EDM_SCALING}

    def checkpoint(self, component: str) -> Checkpoint:
        """Return a component as the file stores it. Raises `SourceError` if the file lacks it."""
        folder = torch_folder(component)
        held = self.held(folder)
        if held is None:
            raise self._lacks(component)
        library, class_name = network_class(self.family, folder)
        config = self.config(folder)
        check_network(component, class_name, config, self.family)
        kept, scales = apart(held.path, held.tensors)
        if any(text.unprojected and text.component == folder for text in self.family.texts):
            kept[held.part.prefix + PROJECTION] = RawTensor(IDENTITY, (config["hidden_size"],) * 2, 0)
        tensors, by = ({name: (one, held.path) for name, one in some.items()} for some in (kept, scales))
        return Checkpoint(component, library, class_name, config, tensors, original=held.part.converter, scales=by)

    @property
    def _scheduler(self) -> tuple[str, Path]:
        if self.identity.edm:
            return EDM_SCHEDULER
        denoiser = {**self.config(self.family.denoiser), **self._distilled} if self.family.published.flow else {}
        return scheduler_file(self.family, self.prediction or "epsilon", zero_snr=self.zero_snr, denoiser=denoiser)

    @property
    def family(self) -> Family:
        """Facts of the family that it is of."""
        assert self.identity.family is not None, "a checkpoint is of a family"
        return FAMILIES[self.identity.family]

    def _lacks(self, component: str) -> SourceError:
        held = ", ".join(sorted(self.folders))
        folder = torch_folder(component)
        remedy = f"drop {component} from `components:`"
        if self.family.published.flow is not None and folder in self.family.published.configs:
            _, wanted = network_class(self.family, folder)
            remedy = (
                f"name its file, {_article(wanted)}, as `{folder}:` in `source:` (convert --part {folder}=FILE), or "
                f"{remedy}"
            )
        elif folder == "vae":
            remedy = f"add `vae:` with a VAE for {self.identity.network}, or {remedy}"
        elif folder in self.family.published.configs:
            remedy = f"get the whole checkpoint, or {remedy}"
        return SourceError(f"{self.path}: this file has no {component} (it holds: {held}); {remedy}")


def _open_part(path: Path, folder: str, family: Family, read_pickle: ReadPickle | None) -> HeldPart:
    """Open a file that is said to hold one network of a pipeline."""
    if folder not in family.folders or folder == family.denoiser:
        raise SourceError(
            f"{path}: {family.title} has no {folder}; beside its {family.denoiser} it has "
            f"{', '.join(name for name in family.folders if name != family.denoiser)}"
        )
    header = read_weight_table(path, read_pickle)
    _, class_name = network_class(family, folder)
    component = "vae_decoder" if folder == "vae" else folder
    part = part_among(header.tensors, folder, network_of(component, class_name))
    if part is None:
        found = identify(header.tensors, header.metadata)
        why = f" ({'; '.join(found.reasons)})" if found.reasons else ""
        raise SourceError(
            f"{path}: as {folder} {family.title} takes {_article(class_name)}, and this is {found.description}{why}; "
            "name the file that belongs to it"
        )
    return HeldPart(path, header, part)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _check(path: Path, identity: Identity) -> None:
    """Refuse what is no checkpoint of a supported family."""
    if identity.supported and identity.kind in ("checkpoint", *DENOISERS) and identity.parts:
        return
    why = f" ({'; '.join(identity.reasons)})" if identity.reasons else ""
    families = ", ".join(family.title for family in FAMILIES.values() if family.published.networks)
    remedy = f"as a single file, `source:` takes {families}"
    if not identity.supported:
        raise SourceError(f"{path}: this is {identity.description}{why}, which is not supported; {remedy}")
    if identity.kind in PLACES:
        remedy = f"{PLACES[identity.kind]}; `source:` takes a checkpoint"
    elif identity.kind in DENOISERS:
        remedy = f"put it with its config.json into a diffusers folder; {remedy}"
    raise SourceError(f"{path}: this is {identity.description}, no checkpoint{why}; {remedy}")
