"""Origins of what went into an output: the source, another VAE, LoRAs, embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Literal

from olivelike.model.few_steps import FewSteps  # noqa: TC001 - the reader looks types up
from olivelike.model.records.reading import Content, RecordError

_WEIGHTS = (".safetensors", ".bin", ".ckpt", ".pt", ".pth")
_COMMIT_DIGITS = 12
"""Digits of a commit that people are shown."""


@dataclass(frozen=True)
class Identification:
    """Family and prediction of a checkpoint in a single file."""

    family: str | None
    inpainting: bool
    prediction: str
    """The UNet's prediction: `epsilon` or `v_prediction`."""
    zero_snr: bool
    """Whether the schedule ends at a signal-to-noise ratio of zero."""
    reasons: tuple[str, ...] = ()
    """Evidence, such as the metadata key that says it."""


@dataclass(frozen=True)
class Origin:
    """The place that weights come from."""

    kind: Literal["folder", "file", "hub"]
    name: str = "an unknown source"
    """Name that people have for it: the last part of a path, or a repository's `OWNER/NAME`."""
    path: str | None = None
    """Path of a folder or file on the machine that read it; what is published has none."""
    commit: str | None = None
    """Commit of a repository."""
    file: str | None = None
    """In a repository, where one file of it was taken."""
    warning: str | None = None
    """Why the commit may not be the latest."""
    exported: bool = False
    """Whether somebody else had made ONNX graphs of it already."""
    sha256: str | None = None
    """Digest of a checkpoint in a single file."""
    identified: Identification | None = None
    vae: Origin | None = None
    """Origin of the VAE, if from elsewhere."""
    few_steps: FewSteps | None = None
    """Kind of few-step model of a distilled checkpoint or LoRA."""
    controlnets: Mapping[str, Origin] | None = None
    """Origins of ControlNets beside it, by component."""
    t2i_adapters: Mapping[str, Origin] | None = None
    """Origins of T2I-Adapters, by component."""
    ip_adapter: Origin | None = None
    """Origin of an IP-Adapter beside it."""
    image_encoder: Origin | None = None
    """Origin of the IP-Adapter's image encoder."""

    def __post_init__(self) -> None:
        """Refuse what has no name."""
        if not self.name:
            raise RecordError("name is empty")

    @classmethod
    def local(cls, kind: Literal["folder", "file"], path: Path, identified: Identification | None = None) -> Origin:
        """Return the origin of a folder or file of this machine."""
        resolved = path.resolve()
        return cls(kind, resolved.name or str(resolved), str(resolved), identified=identified)

    @property
    def repository(self) -> str | None:
        """`OWNER/NAME` on the hub."""
        return self.name if self.kind == "hub" else None

    @property
    def place(self) -> str:
        """Place as far as it is known: its path, or else its name, with the file of a repository."""
        return self.path or "/".join(filter(None, (self.name, self.file)))

    @property
    def leading_names(self) -> dict[str, str]:
        """Names of ControlNets and T2I-Adapters for people, by component.

        That is a file's name without suffix, the last part of a hub id. Those of the same name are called like their
        components.
        """
        beside = {**(self.controlnets or {}), **(self.t2i_adapters or {})}
        names = {component: origin.stem for component, origin in beside.items()}
        uses = Counter([*names.values(), *names])
        return {component: component if uses[name] > 1 else name for component, name in names.items()}

    @property
    def stem(self) -> str:
        """The last part of the name, without the suffix of a weight file."""
        last = PurePath(self.file or self.name)
        return last.stem if last.suffix in _WEIGHTS else last.name

    def published(self) -> Origin:
        """Return what other people may see: no path."""
        controlnets, adapters = (
            {name: origin.published() for name, origin in (kind or {}).items()} or None
            for kind in (self.controlnets, self.t2i_adapters)
        )
        return replace(
            self,
            path=None,
            vae=self.vae and self.vae.published(),
            controlnets=controlnets,
            t2i_adapters=adapters,
            ip_adapter=self.ip_adapter and self.ip_adapter.published(),
            image_encoder=self.image_encoder and self.image_encoder.published(),
        )

    def __str__(self) -> str:
        """Return the place, and the commit of a repository, shortened."""
        return f"{self.place} at {self.commit[:_COMMIT_DIGITS]}" if self.commit else self.place


@dataclass(frozen=True)
class LoraRecord:
    """A LoRA that was merged."""

    origin: Origin
    weight: float
    weights: Mapping[str, float] = field(default_factory=dict)
    """By component, where they differ."""
    adapter: str | None = None
    """Name of one of several in the file."""
    sha256: str | None = None


@dataclass(frozen=True)
class EmbeddingRecord:
    """A textual inversion that was added."""

    origin: Origin
    token: str
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Number of them by text encoder."""
    sha256: str | None = None


def origin_from_1(content: Content) -> Content:
    """Make today's origin of what 0.1.0 wrote: it had no one key for names, and a file's facts among the others."""
    old = dict(content)
    name = old.pop("name", None) or old.pop("repository", None) or PurePath(str(old.get("path", ""))).name
    found = {**({"name": name} if name else {}), **_taken(old, "kind path commit file warning exported sha256")}
    if isinstance(vae := old.pop("vae", None), dict):
        found["vae"] = origin_from_1(vae)
    identified = _taken(old, "family inpainting prediction zero_snr")
    if "identified_by" in old:
        identified["reasons"] = old.pop("identified_by")
    return {**found, **({"identified": identified} if identified else {}), **old}


def adapter_from_1(content: Content) -> Content:
    """Make today's record of a LoRA or an embedding of what 0.1.0 wrote: its origin was among its other keys."""
    origin = dict(content)
    own = _taken(origin, "weight weights adapter token vectors sha256")
    return {**own, "origin": origin_from_1(origin)}


def _taken(content: Content, names: str) -> Content:
    """Take keys out of an object, those that it has."""
    return {name: content.pop(name) for name in names.split() if name in content}
