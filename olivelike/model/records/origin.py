"""Origins of what went into an output: the source, another VAE, LoRAs, embeddings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, Literal, TypeVar

from olivelike.model.components import WEIGHT_FILE_SUFFIXES
from olivelike.model.few_steps import FewSteps
from olivelike.model.guides import GUIDES, guide_kind
from olivelike.model.records.reading import Content, RecordError

T = TypeVar("T")

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
class License:
    """The licence of some weights, as far as it is said anywhere."""

    name: str
    """The hub's id, such as `openrail++`; of others the name that people gave it."""
    said_by: str
    """What says so: a file's name, a key of a weight file's metadata, or `workflow`."""
    link: str | None = None
    """Page of its text."""
    otherwise: str | None = None
    """Name that the files say, if the workflow says another."""

    def __str__(self) -> str:
        """Return the name and who says it."""
        but = f", where its files say {self.otherwise}" if self.otherwise else ""
        return f"{self.name} ({self.said_by} says it{but})"


def _with_guides(cls: type[T]) -> type[T]:
    """Give an origin the fields of guides: networks by component, or a file and its network."""
    for kind in GUIDES.values():
        for name in (kind.key, kind.components[0]) if kind.is_file else (kind.key,):
            cls.__annotations__[name] = "Origin | None" if kind.is_file else "Mapping[str, Origin] | None"
            setattr(cls, name, None)
    return cls


@dataclass(frozen=True)
@_with_guides
class Origin:
    """The place that weights come from."""

    kind: Literal["folder", "file", "hub"]
    name: str = "an unknown source"
    """Name that people have for it: the last part of a path, or a repository's `OWNER/NAME`."""
    path: str | None = None
    """Path of a folder or file on the machine that read it; what is published has none."""
    near: str | None = None
    """Path from an output to what lies in the same project, with forward slashes; it is published, too."""
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
    parts: Mapping[str, Origin] | None = None
    """Folder → origin of a network, or of a tokenizer, that is no part of its file."""
    few_steps: FewSteps | None = None
    """Kind of few-step model of a distilled checkpoint or LoRA."""
    license: License | None = None
    """Its licence; `None` if nothing says it."""
    preview: Origin | None = None
    """Origin of the tiny VAE for previews."""

    def __post_init__(self) -> None:
        """Refuse what has no name, and a place elsewhere than near an output."""
        if not self.name:
            raise RecordError("name is empty")
        if self.near is not None and (PureWindowsPath(self.near).anchor or {"\0", "\\"} & {*self.near}):
            raise RecordError("near is no relative path with forward slashes")

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
    def guides(self) -> dict[str, Origin]:
        """Origins of the networks of guides beside it, by component."""
        found: dict[str, Origin] = {}
        for kind in GUIDES.values():
            named = getattr(self, kind.components[0] if kind.is_file else kind.key)
            found |= {kind.components[0]: named} if isinstance(named, Origin) else named or {}
        return found

    @property
    def everything(self) -> dict[str, Origin]:
        """Origins of all weights, by what they are in a pipeline: `source`, `vae`, a part's folder, a guide's name."""
        beside = {"vae": self.vae, "preview": self.preview, **(self.parts or {}), **self.guides, **self.guide_files}
        return {"source": self, **{name: one for name, one in beside.items() if one is not None}}

    @property
    def guide_files(self) -> dict[str, Origin]:
        """Origins of guides that are files of weights for its UNet, by their keys in a workflow."""
        named = {kind.key: getattr(self, kind.key) for kind in GUIDES.values() if kind.is_file}
        return {key: origin for key, origin in named.items() if origin is not None}

    @property
    def leading_names(self) -> dict[str, str]:
        """Names for people of the networks that control pictures name, by component.

        That is a file's name without suffix, the last part of a hub id. Those of the same name are called like their
        components.
        """
        kinds = ((component, guide_kind(component)) for component in self.guides)
        beside = {name: self.guides[name] for name, kind in kinds if kind is not None and not kind.is_prompt}
        names = {component: origin.stem for component, origin in beside.items()}
        uses = Counter([*names.values(), *names])
        return {component: component if uses[name] > 1 else name for component, name in names.items()}

    @property
    def stem(self) -> str:
        """The last part of the name, without the suffix of a weight file."""
        last = PurePath(self.file or self.name)
        return last.stem if last.suffix in WEIGHT_FILE_SUFFIXES else last.name

    def published(self, output: Path | None = None, project: Path | None = None) -> Origin:
        """Return what other people may see: no path but that from an output to what lies in its own project."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}

        def inside(value: Origin | Mapping[str, Origin]) -> Any:
            if isinstance(value, Origin):
                return value.published(output, project)
            return {name: origin.published(output, project) for name, origin in value.items()}

        nested = {name: inside(value) for name, value in values.items() if isinstance(value, Origin | Mapping)}
        near = None if output is None or project is None else self._near(output.resolve(), project.resolve())
        return replace(self, path=None, near=near, **nested)

    def _near(self, output: Path, project: Path) -> str | None:
        if self.kind == "hub" or self.path is None or not output.is_relative_to(project):
            return None
        path = Path(self.path)
        return Path(os.path.relpath(path, output)).as_posix() if path.is_relative_to(project) else None

    def found_from(self, output: Path) -> Path | None:
        """Return where it lies near an output, if it is still there."""
        path = Path(os.path.normpath(output.resolve() / self.near)) if self.near is not None else None
        return path if path is not None and path.exists() else None

    def __str__(self) -> str:
        """Return the place, and the commit of a repository, shortened."""
        return f"{self.place} at {self.commit[:_COMMIT_DIGITS]}" if self.commit else self.place


def all_origins(
    source: Origin, loras: Iterable[Origin] = (), embeddings: Iterable[Origin] = ()
) -> tuple[tuple[str, Origin], ...]:
    """Return the origins of all that went into an output, each with what it is in it."""
    added = [("LoRA", one) for one in loras] + [("embedding", one) for one in embeddings]
    return (*source.everything.items(), *added)


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
