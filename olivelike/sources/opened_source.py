"""Opening a source: which components it has, their checkpoints, and the files beside the networks.

Folders of ONNX models that someone else exported are sources too. Known layouts: diffusers'
`OnnxStableDiffusionPipeline`, optimum's ORT pipelines, Olive's output, and our own. Each component has a folder with
its model file; most have a data file beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeGuard

from olivelike._extras import needed
from olivelike._untrusted import read_settings
from olivelike.errors import SourceError
from olivelike.families import COMPONENTS, denoiser_among, family_of_folder, family_of_index
from olivelike.model.architecture import Config
from olivelike.model.components import INDEX_FILE, PREVIEW, SAFETY_CHECKER, VAES, pixels_per_latent, torch_folder
from olivelike.model.few_steps import FewSteps
from olivelike.model.guides import GUIDES, GuideKind
from olivelike.model.records.origin import Origin
from olivelike.sources.beside import FileGuide, Host, open_beside
from olivelike.sources.checkpoint import (
    TOKENIZER_SUFFIXES,
    WEIGHT_SUFFIXES,
    Checkpoint,
    SourceFiles,
    missing_file,
    missing_main_file,
    read_checkpoint,
    read_json,
)
from olivelike.sources.files.pickled import read_pickle_table
from olivelike.sources.files.weight_table import ReadPickle
from olivelike.sources.single_file import SingleFile
from olivelike.sources.source_licenses import licensed, origin_of
from olivelike.sources.source_spec import SourceSpec
from olivelike.sources.vae_override import open_preview, open_vae, vae_halves


@dataclass(frozen=True)
class PipelineSource:
    """An opened source; all that it names is on this machine."""

    origin: Origin
    index: Config
    """The content of `model_index.json`; of a single file, what it would be."""
    checkpoints: Mapping[str, Checkpoint]
    """The components asked for."""
    extras: Mapping[str, Path]
    """Relative path → file of what is no network: tokenizers, scheduler, feature extractor."""
    few_steps: FewSteps | None = None
    """Kind of few-step model that it is, where its scheduler is to be made the right one for that."""
    guide_files: Mapping[str, FileGuide] = field(default_factory=dict)
    """Guides that are files of weights for its UNet, by their keys in a workflow."""
    left_out: tuple[str, ...] = ()
    """Parts of its files that nothing is made of, in words."""
    guess: str | None = None
    """What is taken of it because nothing tells, in words."""

    def distilled(self, few_steps: FewSteps | None) -> PipelineSource:
        """Return the pipeline with the scheduler that so few steps want; `None` changes nothing."""
        if few_steps is None or not _names_a_class(self.index.get("scheduler")):
            return self
        scheduler = ["diffusers", few_steps.recipe.class_name]
        return replace(self, index={**self.index, "scheduler": scheduler}, few_steps=few_steps)

    def checkpoint(self, component: str) -> Checkpoint:
        """Return one of the components that the source was opened for."""
        return self.checkpoints[component]


def open_source(
    spec: SourceSpec,
    components: Iterable[str],
    *,
    allow_pickle: bool = False,
    read_pickle: ReadPickle = read_pickle_table,
) -> PipelineSource:
    """Read the index, the configs and the weight headers of the chosen components, and nothing more.

    A hub repository is taken from its local cache, and downloaded there where that lacks a file. Raises `SourceError`
    if the source or one of its files is missing or damaged.

    Args:
        allow_pickle: also read `.bin` weights, where a component has no others.
        read_pickle: returns the table of a `.bin` file; by default from a child process that imports torch.
    """
    wanted = list(components)
    pickles = read_pickle if allow_pickle else None
    replaced = [name for name in wanted if spec.vae is not None and name in VAES]
    elsewhere = [*replaced, *([PREVIEW] if spec.preview is not None else [])]
    elsewhere += [component for _, component, _ in _guides(spec)]
    own = [name for name in wanted if name not in elsewhere]
    if spec.parts and not spec.is_file:
        raise SourceError(
            f"{spec.path or spec.hub}: no such file; networks in files of their own belong to a denoiser in a file "
            f"({', '.join(spec.parts)})"
        )
    if spec.distilled is not None and not spec.is_file:
        raise SourceError(
            "whether the denoiser is distilled can be told for a single file only; a folder says it in "
            "model_index.json (is_distilled)"
        )
    if spec.prediction is not None and not spec.is_file:
        raise SourceError(
            "what the UNet predicts can be told for a single file only; a folder says it in "
            "scheduler/scheduler_config.json (prediction_type)"
        )
    source, configs = spec.open(
        lambda path: _open_file(path, spec, own, pickles), lambda files: _read_folder(files, spec, own, pickles)
    )
    source = replace(source, origin=licensed(source.origin, spec.license))
    vae_config = configs["vae"]
    source = _with_guides(source, spec, configs, wanted, pickles)
    if spec.preview is not None and PREVIEW in wanted:
        preview, preview_origin = open_preview(spec.preview, vae_config, pickles)
        source = replace(
            source,
            origin=replace(source.origin, preview=preview_origin),
            checkpoints={**source.checkpoints, PREVIEW: preview},
        )
    if spec.vae is None:
        return source
    checkpoints, origin = open_vae(spec.vae, replaced, vae_config, pickles)
    first = next(iter(checkpoints.values()), None)
    entries = {"vae": [first.library, first.class_name]} if first is not None else {}
    return replace(
        source,
        origin=replace(source.origin, vae=origin),
        index={**source.index, **entries},
        checkpoints={name: checkpoints.get(name) or source.checkpoint(name) for name in wanted},
    )


def _guides(spec: SourceSpec) -> Iterator[tuple[GuideKind, str, SourceSpec]]:
    """Yield the guides beside a source, each with its kind and its component."""
    for kind in GUIDES.values():
        for component, guide in zip(kind.components, spec.guides.get(kind.key, ()), strict=False):
            yield kind, component, guide


def _with_guides(
    source: PipelineSource, spec: SourceSpec, configs: Mapping[str, Config | None], wanted: list[str],
    read_pickle: ReadPickle | None,
) -> PipelineSource:  # fmt: skip
    """Return a pipeline with its guides, which have to fit it."""
    checkpoints, origins, files = dict(source.checkpoints), dict[str, Any](), {}
    unet = checkpoints.get(denoiser_among(checkpoints) or "")
    host = Host(source.origin.place, configs["denoiser"] or {}, pixels_per_latent(configs["vae"] or {}), unet)
    for kind, component, guide in _guides(spec):
        opened = open_beside(guide, kind, component, host, read_pickle)
        checkpoints |= {component: opened.network} if component in wanted else {}
        if opened.file is None:
            origins.setdefault(kind.key, {})[component] = opened.origin
        else:
            files[kind.key], origins[kind.key] = opened.file
            origins[component] = opened.origin
    return replace(source, origin=replace(source.origin, **origins), checkpoints=checkpoints, guide_files=files)


def available_components(spec: SourceSpec, *, allow_pickle: bool = False) -> frozenset[str]:
    """Return the components that a source has, its `vae` included.

    Raises `SourceError` if the source is missing or damaged.
    """
    pickles = read_pickle_table if allow_pickle else None

    def in_file(path: Path) -> set[str]:
        return SingleFile.open(path, spec.prediction, pickles, spec.parts, distilled=spec.distilled).folders

    folders = spec.open(in_file, _network_folders)
    found = {name for name in COMPONENTS if torch_folder(name) in folders or name in folders}
    if spec.preview is not None:
        found.add(PREVIEW)
    # Without the file that is beside it, such as an IP-Adapter, a network makes nothing that a UNet takes.
    found.difference_update(name for kind in GUIDES.values() if kind.is_file for name in kind.components)
    found.update(component for _, component, _ in _guides(spec))
    if spec.vae is None:
        return frozenset(found)
    return frozenset(found - {*VAES}) | vae_halves(spec.vae, pickles)


def _network_folders(files: SourceFiles) -> set[str]:
    """Return the folders that hold networks, as the index names them."""
    index = read_json(files, INDEX_FILE) if INDEX_FILE in files.names("") else {}
    if is_onnx_pipeline(index, files):
        return {name for name in COMPONENTS if any(file.endswith(".onnx") for file in files.names(name))}
    folders = {torch_folder(name) for name in COMPONENTS}
    return {name for name, entry in _read_index(files).items() if name in folders and _names_a_class(entry)}


def _open_file(
    path: Path, spec: SourceSpec, wanted: list[str], read_pickle: ReadPickle | None
) -> tuple[PipelineSource, Mapping[str, Config | None]]:
    """Read a single file; return the pipeline, and configs of `vae` and `denoiser`, also where it lacks them."""
    file = SingleFile.open(path, spec.prediction, read_pickle, spec.parts, distilled=spec.distilled)
    checkpoints = {name: file.checkpoint(name) for name in wanted}
    configs = {
        "vae": file.config("vae") if spec.needs_vae else None,
        "denoiser": file.config(file.family.denoiser) if spec.needs_unet else None,
    }
    source = PipelineSource(file.origin, file.index, checkpoints, file.extras, left_out=file.left_out, guess=file.guess)
    return source.distilled(file.few_steps), configs


def _read_folder(
    files: SourceFiles, spec: SourceSpec, wanted: list[str], read_pickle: ReadPickle | None
) -> tuple[PipelineSource, Mapping[str, Config | None]]:
    """Read a folder or repository; return the pipeline, and configs of `vae` and `denoiser` if asked for."""
    index = read_json(files, INDEX_FILE) if INDEX_FILE in files.names("") else {}
    asked = {"vae": ("vae", spec.needs_vae), "denoiser": (family_of_folder(index, (), {}).denoiser, spec.needs_unet)}
    configs = {
        part: read_json(files, f"{name}/config.json") if asks and "config.json" in files.names(name) else None
        for part, (name, asks) in asked.items()
    }
    if is_onnx_pipeline(index, files):
        return _read_onnx_folder(files, index, wanted), {**configs, "vae": None}
    index = _read_index(files)
    # Extras come before the weights: a download that was cut off then mostly lacks weights alone.
    extras = {relative: files.path(relative) for relative in _extra_files(files, index)}
    family = family_of_index(index)
    if family is not None and _SCHEDULE in extras:
        told = family.published.told_by_schedule(read_settings(extras[_SCHEDULE], files.remedy, unbounded=True))
        index = {**told, **index}
    checkpoints = {
        name: read_checkpoint(
            files,
            name,
            torch_folder(name),
            *_entry(files, index, name),
            variant=spec.variant,
            read_pickle=read_pickle,
            family=family,
        )
        for name in wanted
    }
    return PipelineSource(origin_of(files), index, checkpoints, extras), configs


def _read_onnx_folder(files: SourceFiles, index: Config, wanted: list[str]) -> PipelineSource:
    """Read a folder of graphs that someone else exported."""
    extras = {relative: files.path(relative) for relative in _extra_files(files, index)}
    read = needed("SOURCES", "onnx", f"{files.where}, which holds ONNX models of another exporter,")
    checkpoints = {name: read(files, name) for name in wanted}
    return PipelineSource(replace(origin_of(files), exported=True), index, checkpoints, extras)


def _read_index(files: SourceFiles) -> Config:
    if INDEX_FILE not in files.names(""):
        raise SourceError(
            f"{files.where}: {INDEX_FILE} is missing: this is no diffusers pipeline, or its download did not "
            f"finish; {files.remedy}"
        )
    return read_json(files, INDEX_FILE)


def _entry(files: SourceFiles, index: Config, component: str) -> tuple[str, str]:
    """Return library and class of a component from the index."""
    entry = index.get(torch_folder(component))
    if _names_a_class(entry):
        library, class_name = entry
        return library, class_name
    present = ", ".join(sorted(name for name, value in index.items() if _names_a_class(value)))
    raise SourceError(
        f"{files.where}: this pipeline has no {component} ({INDEX_FILE} has: {present}); "
        f"drop {component} from `components:`"
    )


def _extra_files(files: SourceFiles, index: Config) -> list[str]:
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
            extras += [f"{name}/{file}" for file in found if file.endswith(TOKENIZER_SUFFIXES)]
    return sorted(extras)


def _names_a_class(entry: Any) -> TypeGuard[list[str]]:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)


_SCHEDULE: Final = "scheduler/scheduler_config.json"
ONNX_CLASS: Final = "OnnxRuntimeModel"
_TORCH_SUFFIXES = (".safetensors", ".bin")


def is_onnx_pipeline(index: Config, files: SourceFiles) -> bool:
    """Say whether a source holds ONNX models and no weights for torch.

    Repositories of torch weights often hold ONNX models of some components too; they count as torch pipelines.
    `index` is the content of `model_index.json`, empty if there is none.
    """
    if any(entry == ["diffusers", ONNX_CLASS] for entry in index.values()):
        return True
    folders = {torch_folder(name) for name in COMPONENTS if name != SAFETY_CHECKER}
    if any(name.endswith(_TORCH_SUFFIXES) for folder in folders for name in files.names(folder)):
        return False
    return any(onnx_files(files, folder) for folder in COMPONENTS)


def onnx_files(files: SourceFiles, folder: str) -> list[str]:
    """Return the names of a folder's ONNX models."""
    return sorted(name for name in files.names(folder) if name.endswith(".onnx"))
