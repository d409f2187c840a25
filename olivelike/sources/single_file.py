"""A checkpoint in one file as a pipeline: configs, tokenizers and scheduler come from this package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._untrusted import Json, open_file
from olivelike.errors import SourceError
from olivelike.families import DENOISERS, FAMILIES
from olivelike.model.components import Prediction, torch_folder
from olivelike.model.few_steps import FewSteps, few_steps_of_path
from olivelike.model.records.origin import Identification, Origin
from olivelike.sources.checkpoint import Checkpoint
from olivelike.sources.files.weight_table import Header, ReadPickle, read_numbers, read_weight_table
from olivelike.sources.identify.identify import identify, unclaimed
from olivelike.sources.identify.identity import PLACES, Identity
from olivelike.sources.identify.published import (
    EDM_SCHEDULER,
    derive_config,
    network_class,
    scheduler_file,
    tokenizer_files,
)  # fmt: skip

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config

_LISTED = 3
_EDM_SCALING = 0.5
"""Scaling of Playground 2.5's VAE, as diffusers has it."""


@dataclass(frozen=True)
class SingleFile:
    """A checkpoint file whose header has been read."""

    path: Path
    header: Header
    identity: Identity
    prediction: Prediction
    """Prediction of its UNet: as told, as it says itself, or as is usual for its family."""
    zero_snr: bool
    few_steps: FewSteps | None
    """Kind of few-step model that it is: by its structure, its metadata, or as a last hint its name."""

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
        few_steps = identity.few_steps or few_steps_of_path(path)
        told = prediction or identity.prediction
        if told is None and few_steps is not None:
            told = "sample" if (few_steps.kind, few_steps.steps) == ("lightning", 1) else "epsilon"
        if told == "sample":
            few_steps = FewSteps("lightning", 1, reason="its UNet predicts the picture itself")
        told = told or identity.expected_prediction
        assert told is not None, "a checkpoint has a UNet"
        zero_snr = identity.zero_snr and told == "v_prediction"
        return cls(path, header, identity, told, zero_snr, few_steps)

    @property
    def origin(self) -> Origin:
        """Origin of the pipeline, for the record."""
        found = self.identity
        identified = Identification(
            found.family, found.inpainting, self.prediction, self.zero_snr, tuple(found.reasons)
        )
        return replace(Origin.local("file", self.path, identified), few_steps=self.few_steps)

    @property
    def index(self) -> Config:
        """Content of the pipeline's `model_index.json`; a component that the file lacks is null."""
        family, inpainting = self.family, self.identity.inpainting
        scheduler, _ = self._scheduler
        index: Json = {
            "_class_name": family.pipelines[inpainting],
            **family.published.index,
            "scheduler": ["diffusers", scheduler],
        }
        index |= {folder: ["transformers", "CLIPTokenizer"] for folder in family.published.tokenizers}
        for folder in family.published.configs:
            index[folder] = list(network_class(family, folder)) if self.identity.part(folder) else [None, None]
        return dict(sorted(index.items()))

    @property
    def extras(self) -> dict[str, Path]:
        """The files beside the networks, by relative path: those of this package."""
        _, scheduler = self._scheduler
        return dict(sorted({**tokenizer_files(self.family), "scheduler/scheduler_config.json": scheduler}.items()))

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
        part = self.identity.part(folder)
        if part is None:
            return self.family.published.configs[folder]
        shapes = {name: tensor.shape for name, tensor in self.header.tensors.items()}
        config = derive_config(self.family, part, shapes, self.prediction)
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
        part = self.identity.part(folder)
        if part is None:
            raise self._lacks(component)
        library, class_name = network_class(self.family, folder)
        tensors = {
            name: (tensor, self.path)
            for name, tensor in self.header.tensors.items()
            if name.startswith(part.beginnings)
        }
        return Checkpoint(component, library, class_name, self.config(folder), tensors, original=part.converter)

    @property
    def _scheduler(self) -> tuple[str, Path]:
        return (
            EDM_SCHEDULER if self.identity.edm else scheduler_file(self.family, self.prediction, zero_snr=self.zero_snr)
        )

    @property
    def family(self) -> Family:
        """Facts of the family that it is of."""
        assert self.identity.family is not None, "a checkpoint is of a family"
        return FAMILIES[self.identity.family]

    def _lacks(self, component: str) -> SourceError:
        held = ", ".join(sorted(part.folder for part in self.identity.parts))
        folder = torch_folder(component)
        remedy = f"drop {component} from `components:`"
        if folder == "vae":
            remedy = f"add `vae:` with a VAE for {self.identity.network}, or {remedy}"
        elif folder in self.family.published.configs:
            remedy = f"get the whole checkpoint, or {remedy}"
        return SourceError(f"{self.path}: this file has no {component} (it holds: {held}); {remedy}")


def _check(path: Path, identity: Identity) -> None:
    """Refuse what is no checkpoint of a supported family."""
    if identity.supported and identity.kind in ("checkpoint", *DENOISERS) and identity.naming == "original":
        return
    why = f" ({'; '.join(identity.reasons)})" if identity.reasons else ""
    families = ", ".join(family.title for family in FAMILIES.values() if family.published.networks)
    remedy = f"as a single file, `source:` takes {families}, with the tensor names of the original code"
    if not identity.supported:
        raise SourceError(f"{path}: this is {identity.description}{why}, which is not supported; {remedy}")
    if identity.kind in PLACES:
        remedy = f"{PLACES[identity.kind]}; `source:` takes a checkpoint"
    elif identity.kind in DENOISERS:
        remedy = f"put it with its config.json into a diffusers folder; {remedy}"
    raise SourceError(f"{path}: this is {identity.description}, no checkpoint{why}; {remedy}")
