"""Opening a source: which components it has, their checkpoints, and the files beside the networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from olivelike.errors import SourceError
from olivelike.sources.checkpoint import read_checkpoint
from olivelike.sources.extra_files import missing_main_file
from olivelike.sources.files import INDEX_NAME, FolderFiles, missing_file, read_json
from olivelike.sources.hub import open_hub
from olivelike.sources.pickled import read_pickle_table
from olivelike.sources.weight_files import WEIGHT_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from olivelike.sources.checkpoint import Checkpoint
    from olivelike.sources.files import SourceFiles
    from olivelike.sources.safetensors_header import RawTensor

_FOLDERS = {"vae_encoder": "vae", "vae_decoder": "vae"}
_EXTRA_SUFFIXES = (".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True)
class SourceSpec:
    """A source as a workflow names it: either `path` or `hub` is set."""

    path: Path | None = None
    """A diffusers folder."""
    hub: str | None = None
    """A repository, such as `stable-diffusion-v1-5/stable-diffusion-v1-5`."""
    revision: str | None = None
    """Branch, tag or commit of the repository; `None` is its main branch."""
    variant: str | None = None
    """Which of several weight files, such as `fp16`."""


@dataclass(frozen=True)
class PipelineSource:
    """An opened source; all that it names is on this machine."""

    origin: Mapping[str, Any]
    """For the record: `kind` and folder or repository with its commit; `warning` if the commit may be old."""
    index: Mapping[str, Any]
    """The content of `model_index.json`."""
    checkpoints: Mapping[str, Checkpoint]
    """The components asked for."""
    extras: Mapping[str, Path]
    """Relative path → file of what is no network: tokenizers, scheduler, feature extractor."""

    def checkpoint(self, component: str) -> Checkpoint:
        """Return one of the components that the source was opened for."""
        return self.checkpoints[component]


def open_source(
    spec: SourceSpec,
    components: Iterable[str],
    *,
    allow_pickle: bool = False,
    read_pickle: Callable[[Path], Mapping[str, RawTensor]] = read_pickle_table,
) -> PipelineSource:
    """Read the index, the configs and the weight headers of the chosen components, and nothing more.

    A hub repository is taken from its local cache, and downloaded there where that lacks a file.

    Args:
        spec: the source.
        components: names such as `unet` or `vae_decoder`.
        allow_pickle: also read `.bin` weights, where a component has no others.
        read_pickle: returns the table of a `.bin` file; by default from a child process that imports torch.

    Raises:
        SourceError: if the source or one of its files is missing or damaged.
    """
    wanted = list(components)

    def read(files: SourceFiles) -> PipelineSource:
        index = _read_index(files)
        # Extras come before the weights: a download that was cut off then mostly lacks weights alone.
        extras = {relative: files.path(relative) for relative in _extra_files(files, index)}
        checkpoints = {
            name: read_checkpoint(
                files,
                name,
                _FOLDERS.get(name, name),
                *_entry(files, index, name),
                variant=spec.variant,
                read_pickle=read_pickle if allow_pickle else None,
            )
            for name in wanted
        }
        return PipelineSource(files.origin, index, checkpoints, extras)

    if spec.path is not None:
        return read(FolderFiles.local(spec.path))
    if spec.hub is None:
        raise SourceError("the source is neither a folder nor a hub id; set `source:`")
    return open_hub(spec.hub, spec.revision, read)


def _read_index(files: SourceFiles) -> dict[str, Any]:
    if INDEX_NAME not in files.names(""):
        raise SourceError(
            f"{files.where}: {INDEX_NAME} is missing: this is no diffusers pipeline, or its download did not "
            f"finish; {files.remedy}",
        )
    return read_json(files, INDEX_NAME)


def _entry(files: SourceFiles, index: Mapping[str, Any], component: str) -> tuple[str, str]:
    """Return library and class of a component from the index."""
    entry = index.get(_FOLDERS.get(component, component))
    if _names_a_class(entry):
        library, class_name = entry
        return library, class_name
    present = ", ".join(sorted(name for name, value in index.items() if _names_a_class(value)))
    raise SourceError(
        f"{files.where}: this pipeline has no {component} ({INDEX_NAME} has: {present}); "
        f"drop {component} from `components:`",
    )


def _extra_files(files: SourceFiles, index: Mapping[str, Any]) -> list[str]:
    """Return the files of the index's entries that hold no weights, by relative path."""
    extras: list[str] = []
    for name, value in index.items():
        if not _names_a_class(value):
            continue
        found = files.names(name)
        absent = missing_main_file(value[1], found)
        if absent is not None:
            raise missing_file(files, f"{name}/{absent}")
        network = any(file.endswith(WEIGHT_SUFFIXES) for file in found) or "config.json" in found
        # Some tokenizers come with the config.json of the model that they were made for.
        if not network or "tokenizer_config.json" in found:
            extras += [f"{name}/{file}" for file in found if file.endswith(_EXTRA_SUFFIXES)]
    return sorted(extras)


def _names_a_class(entry: Any) -> TypeGuard[list[str]]:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
