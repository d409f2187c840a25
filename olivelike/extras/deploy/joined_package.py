"""A model package of ONNX Runtime with several targets, of outputs that were made for one each.

Weights that two of them have alike are stored once, as a shared asset of the package, and lie on the disk once where it
has hard links: nothing writes into a file of an output, so that two of them may be one.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from olivelike._untrusted import Json, one_line, read_bytes
from olivelike.digest import digest_bytes, digest_file
from olivelike.engine.output.file_names import stage
from olivelike.engine.output.output_files import explained, is_file
from olivelike.engine.output.packages import CONFIG_FILE
from olivelike.engine.output.publication import publish
from olivelike.engine.output.staging import discard_staging, staging_folder
from olivelike.errors import SourceError, UsageError
from olivelike.extras.deploy.ort_package import (
    COMPONENT_FILE,
    SHARED,
    asset_folder,
    asset_uri,
    component_file,
    package_root,
    variant,
)
from olivelike.extras.deploy.package_checks import check_place
from olivelike.extras.deploy.package_targets import VARIANT_PROVIDERS
from olivelike.families import TOKENIZERS
from olivelike.model.client_layouts import DEFAULT, PACKAGE
from olivelike.model.components import INDEX_FILE, MODEL_FILE
from olivelike.model.guides import guide_kind
from olivelike.model.records.output import FileFacts, OutputFile, OutputRecord

_LAYOUTS = (DEFAULT, "ortpackage")


@dataclass(frozen=True)
class ModelPackage:
    """A package that was written."""

    path: Path
    targets: tuple[str, ...]
    files: int
    bytes: int
    shared_bytes: int
    """Bytes that would be stored again if each target had its own."""
    left: tuple[str, ...] = ()
    """Files that the package no longer has, left alone since they were changed."""


@dataclass(frozen=True)
class _Part:
    """One output."""

    folder: Path
    record: OutputRecord

    @property
    def target(self) -> str:
        return self.record.target.name

    @property
    def components(self) -> list[str]:
        return sorted(name for name in self.record.components if name not in TOKENIZERS)

    def network(self, component: str) -> dict[str, FileFacts]:
        """Return the files of a network, by the path in the output: its model, weights and config."""
        home = self.record.model_file(component).rpartition("/")[0]
        found = {path: facts for path, facts in self.record.files.items() if path.rpartition("/")[0] == home}
        return {
            path: facts for path, facts in found.items() if path.endswith((MODEL_FILE, CONFIG_FILE)) or _is_data(path)
        }

    def pipeline(self) -> dict[str, FileFacts]:
        """Return what is no network, by the path in a pipeline's folder."""
        if self.record.layout == DEFAULT:
            networks = {*self.record.components}
            return {path: facts for path, facts in self.record.files.items() if path.partition("/")[0] not in networks}
        shared = ((path.split("/", 2), facts) for path, facts in self.record.files.items())
        return {parts[2]: facts for parts, facts in shared if parts[0] == SHARED and len(parts) > 2}

    def place(self, path: str) -> Path:
        """Return where a file of the pipeline lies."""
        if self.record.layout == DEFAULT:
            return self.folder / path
        return next(self.folder / one for one in self.record.files if one.split("/", 2)[::2] == [SHARED, path])


def package_outputs(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> ModelPackage:
    """Put outputs for several targets together as one model package of ONNX Runtime.

    Args:
        folders: Outputs of one pipeline, in the layouts `diffusers` or `ortpackage`, each for another target; where two
            would do, ONNX Runtime takes the first.
        output: Where the package goes: a new folder, an empty one, or an earlier package of ours.
        overwrite: Replace the package of another pipeline, and files in it that were changed since.

    Raises:
        SourceError: if a folder has another layout, is not complete or was changed.
        UsageError: if they do not belong together, or somebody else's files are in the way; the output is as it was.
        StoreError: if the disk refuses; the output is as it was.
    """
    output = Path(output)
    parts = [_Part(folder, OutputRecord.require(folder)) for folder in map(Path, folders)]
    _check_together(parts)
    first = parts[0]
    before = check_place(output, [part.folder for part in parts], first.record, PACKAGE, overwrite=overwrite)
    staging = staging_folder(output)
    try:
        pipeline = {path: _content(first.place(path), facts) for path, facts in first.pipeline().items()}
        written = package_root(first.record.workflow, dict.fromkeys(first.components), pipeline)
        linked: dict[str, OutputFile] = {}
        for component in first.components:
            variants: Json = {}
            shared = Counter(_data_asset(part, component) for part in parts)
            for part in parts:
                asset = _data_asset(part, component)
                together = asset is not None and shared[asset] > 1
                for path, facts in part.network(component).items():
                    name = path.rpartition("/")[2]
                    home = f"{component}/{part.target}"
                    if together and asset is not None and _is_data(path):
                        home = asset_folder(asset)
                    if (place := f"{home}/{name}") not in linked:
                        linked[place] = _linked(part.folder / path, facts, staging / place)
                variants[part.target] = variant(part.record.target, asset if together else None)
            written[f"{component}/{COMPONENT_FILE}"] = component_file(variants)
        for path, content in written.items():
            stage(staging, path, content)
        files = {**linked, **{path: OutputFile(len(data), digest_bytes(data)) for path, data in written.items()}}
        networks = {name: first.record.components[name] for name in first.components}
        made = OutputRecord(
            first.record.workflow, first.record.target, first.record.source, networks, files,
            first.record.loras, first.record.embeddings, PACKAGE,
        )  # fmt: skip
        left = publish(staging, output, made, before, overwrite=overwrite)
    finally:
        discard_staging(staging)
    whole = sum(facts.size for part in parts for name in part.components for facts in part.network(name).values())
    kept = sum(file.size for file in linked.values())
    size = sum(file.size for file in files.values())
    return ModelPackage(output, tuple(part.target for part in parts), len(files), size, whole - kept, tuple(left))


def _check_together(parts: Sequence[_Part]) -> None:
    if not parts:
        raise UsageError("name the outputs to put together")
    first, seen = parts[0], dict[str, Path]()
    for part in parts:
        record, folder = part.record, part.folder
        if record.layout not in _LAYOUTS:
            raise SourceError(
                f"{folder}: its layout is {one_line(record.layout)}; a package is put together of "
                f"{' or '.join(_LAYOUTS)}"
            )
        if part.target not in VARIANT_PROVIDERS:
            raise UsageError(
                f"{folder}: {one_line(part.target)} names no execution provider of ONNX Runtime, and a variant has "
                f"one; choose among {', '.join(VARIANT_PROVIDERS)}"
            )
        if (other := seen.setdefault(part.target, folder)) is not folder:
            raise UsageError(
                f"{other} and {folder} are both for {part.target}; a package has one variant for each target"
            )
        for name in part.components:
            if (kind := guide_kind(name)) is not None:
                raise UsageError(
                    f"{folder}: has {name}; a package holds no {kind.title}s: make the output without them"
                )
        if record.source.name != first.record.source.name:
            raise UsageError(
                f"{folder} is made from {one_line(str(record.source.name))}, {first.folder} from "
                f"{one_line(str(first.record.source.name))}; a package holds one pipeline"
            )
        if part.components != first.components:
            lone = sorted({*part.components} ^ {*first.components})
            raise UsageError(
                f"{first.folder} and {folder} differ in {lone[0]}, which one of them lacks; make it in both"
            )
        mine, theirs = part.pipeline(), first.pipeline()
        differing = sorted(
            path for path in {*mine, *theirs} if _digest(mine, path) != _digest(theirs, path) and path != INDEX_FILE
        )
        if differing:
            raise UsageError(f"{first.folder} and {folder} differ in {differing[0]}; a package holds one pipeline")


def _digest(files: Mapping[str, FileFacts], path: str) -> str | None:
    return files[path].sha256 if path in files else None


def _data_asset(part: _Part, component: str) -> str | None:
    """Return what the data files of a network are called as a shared asset; `None` if it has none."""
    data = {path.rpartition("/")[2]: facts.sha256 for path, facts in part.network(component).items() if _is_data(path)}
    return asset_uri(data) if data else None


def _is_data(path: str) -> bool:
    return not path.endswith((".onnx", ".json"))


def _content(path: Path, facts: FileFacts) -> bytes:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; run the workflow again") from error
    if digest_bytes(data) != facts.sha256:
        raise _changed(path)
    return data


def _linked(path: Path, facts: FileFacts, place: Path) -> OutputFile:
    """Give a file that is as its record says a second name, or copy it where the disk has but one for each."""
    try:
        right = is_file(path) and path.stat().st_size == facts.size and digest_file(path) == facts.sha256
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; run the workflow again") from error
    if not right:
        raise _changed(path)
    with explained(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.hardlink_to(path)
        except OSError:  # Another disk, or one without hard links.
            shutil.copyfile(path, place)
    return OutputFile(facts.size, facts.sha256)


def _changed(path: Path) -> SourceError:
    return SourceError(f"{path}: is missing, damaged, or was changed since it was made; run the workflow again")
