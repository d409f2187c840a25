"""Facts about a folder: one that olivelike wrote, a pipeline as diffusers has it, or one network."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from olivelike._extras import commands, load, place_of
from olivelike._text import listed, moment, quoted
from olivelike._untrusted import Json, JsonView, read_settings
from olivelike.engine.output.lost_values import lost_values
from olivelike.errors import SourceError
from olivelike.families import missing_networks
from olivelike.model.client_layouts import PACKAGE
from olivelike.model.components import INDEX_FILE, ONNX_SUFFIXES, PIPELINE, WEIGHT_FILE_SUFFIXES
from olivelike.model.records.card_marks import CARD_FILE, is_outdated, read_card
from olivelike.model.records.origin import LoraRecord, Origin
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.model.records.signature_marks import SIGNATURE_FILE, is_outdated_signature
from olivelike.model.records.users_files import BOM_FILE, is_outdated_bom

_WEIGHTS = (*WEIGHT_FILE_SUFFIXES, *ONNX_SUFFIXES)
_AGAIN = "get the folder again"
_SEVERAL = 8
"""Names of a folder that a message lists."""


@dataclass(frozen=True)
class FolderInfo:
    """Networks, files and origin of a folder."""

    path: Path
    kind: str
    """`output` of olivelike, `pipeline` of diffusers or another tool, or `network`."""
    title: str
    components: Mapping[str, str]
    """Description of each network: the passes that made it, or its class."""
    sizes: Mapping[str, int]
    """Bytes of each network."""
    bytes: int
    """Bytes of all files."""
    files: int
    facts: JsonView = field(default_factory=dict)
    """More to say, in order."""
    problems: Sequence[str] = ()
    then: str | None = None
    """A command that goes on from here."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        parts = {name: {"description": text, "bytes": self.sizes[name]} for name, text in self.components.items()}
        return {
            "path": str(self.path),
            "kind": self.kind,
            **{title.replace(" ", "_").lower(): value for title, value in self.facts.items()},
            "components": parts,
            "bytes": self.bytes,
            "files": self.files,
            "problems": list(self.problems),
        }


def describe_folder(path: str | Path) -> FolderInfo:
    """Say what a folder holds, from its record and its configs alone.

    Raises:
        SourceError: if it holds no model, or its record can't be read.
    """
    path = Path(path)
    if (path / RECORD_FILE).exists():
        return _output(path, OutputRecord.require(path))
    if (path / INDEX_FILE).is_file():
        return _pipeline(path)
    if (path / "adapter_config.json").is_file():
        raise SourceError(f"{path}: this is the folder of a LoRA; name the weight file in it")
    if (path / "config.json").is_file():
        return _network(path)
    raise SourceError(f"{path}: this folder holds no model; {_inside(path)}")


def _output(path: Path, record: OutputRecord) -> FolderInfo:
    facts: Json = {
        "workflow": record.workflow,
        "made of": _origin(record.source),
        "target": record.made_for,
        "layout": record.layout,
    }
    few_steps = [one.few_steps for one in (record.source, *(lora.origin for lora in record.loras)) if one.few_steps]
    if few_steps:
        facts["few steps"] = [str(one) for one in few_steps]
    if record.source.vae is not None:
        facts["vae"] = _origin(record.source.vae)
    if record.loras:
        facts["LoRAs"] = [_lora(entry) for entry in record.loras]
    if record.embeddings:
        facts["embeddings"] = [f"{entry.token} ({_origin(entry.origin)})" for entry in record.embeddings]
    facts["licences"] = [
        f"{role}: {origin.license or 'unknown'}"
        if role == "source" or origin.name == record.source.name
        else f"{role} {origin.stem}: {origin.license or 'unknown'}"
        for role, origin in record.origins
    ]
    facts["written"] = moment(dt.datetime.fromtimestamp((path / RECORD_FILE).stat().st_mtime, dt.UTC))
    if (path / SIGNATURE_FILE).exists():
        facts["signature"] = f"{SIGNATURE_FILE}, not checked here: olivelike verify-signature {quoted(path)}"
    if clamped := list(_lost(record, "saturated")):
        facts["clamped"] = clamped
    components = {name: ", ".join(step.name for step in entry.passes) for name, entry in record.components.items()}
    sizes = {name: sum(entry.size for entry in record.component_files(name).values()) for name in components}
    if record.layout == PACKAGE and place_of("PACKAGES", "ortpackage"):
        facts |= load("PACKAGES", "ortpackage")().facts(path, record)
    if PIPELINE in components:  # All others are in the same file.
        sizes |= dict.fromkeys(components.keys() - {PIPELINE}, 0)
    complete = not missing_networks(components)
    return FolderInfo(
        path,
        "output",
        "a pipeline that olivelike wrote",
        components,
        sizes,
        sum(entry.size for entry in record.files.values()),
        len(record.files),
        facts,
        tuple(_damages(path, record)),
        _next(path, record.layout) if complete else None,
    )


def _next(path: Path, layout: str) -> str | None:
    folder = quoted(path)
    lines = {
        "diffusers": f'olivelike generate {folder} "a prompt"', "ortpackage": f"olivelike verify {folder}",
        "triton": f"tritonserver --model-repository {folder}",
    }  # fmt: skip
    of_extras = {"web": f"export-web {folder} site", **dict.fromkeys(("single", "single-ids"), f"bench {folder}")}
    there = {name: f"olivelike {line}" for name, line in of_extras.items() if line.partition(" ")[0] in commands()}
    return {**lines, **there}.get(layout)


def _lost(record: OutputRecord, kind: str) -> Iterator[str]:
    sentences = (lost_values(name, kind, vars(component)) for name, component in record.components.items())
    return filter(None, sentences)


def _damages(path: Path, record: OutputRecord) -> Iterator[str]:
    yield from _lost(record, "not_finite")
    for name, entry in record.files.items():
        try:
            found = (path / name).stat().st_size
        except OSError:
            yield f"{name} is missing; run the workflow again"
            continue
        if found != entry.size:
            yield f"{name} has {found:,} bytes in place of {entry.size:,}; run the workflow again"
    if is_outdated_signature(path):
        yield f"{SIGNATURE_FILE} signs what was here before, or is damaged; olivelike sign {quoted(path)}"
    if is_outdated_bom(path):
        yield f"{BOM_FILE} is of what was here before, or is damaged; olivelike bom {quoted(path)}"
    with contextlib.suppress(OSError, ValueError):  # A card that can't be read is not ours.
        card = read_card(path)
        if card is not None and is_outdated(card, record):
            yield f"{CARD_FILE} has figures of what was here before; olivelike verify {quoted(path)} --card"


def _pipeline(path: Path) -> FolderInfo:
    index = read_settings(path / INDEX_FILE, _AGAIN)
    networks: dict[str, str] = {}
    for name, entry in index.items():
        described = isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
        if described and (path / name).is_dir() and _weights(path / name):
            networks[name] = f"{entry[1]} ({entry[0]})"
    exported = any(file.suffix == ".onnx" for name in networks for file in _files(path / name))
    title = "a pipeline of ONNX networks that olivelike did not write" if exported else "a diffusers pipeline"
    all_files = list(_files(path))
    made = quoted(f"models/{path.resolve().name}")
    return FolderInfo(
        path,
        "pipeline",
        title,
        networks,
        {name: _bytes(list(_files(path / name))) for name in networks},
        _bytes(all_files),
        len(all_files),
        {"class": str(index.get("_class_name", "not said"))},
        () if networks else ("none of its networks has weights; download it again",),
        f"olivelike convert {quoted(path)} -t TARGET -o {made}" if networks else None,
    )


def _network(path: Path) -> FolderInfo:
    config = read_settings(path / "config.json", _AGAIN)
    architectures = config.get("architectures")
    listed = architectures[0] if isinstance(architectures, list) and architectures else "unknown class"
    class_name = str(config.get("_class_name") or listed)
    all_files = list(_files(path))
    weights = _weights(path)
    return FolderInfo(
        path,
        "network",
        "one network of a pipeline",
        {},
        {},
        _bytes(all_files),
        len(all_files),
        {"class": class_name, **({"weights": [file.name for file in weights]} if weights else {})},
        () if weights else ("it has no weight file; download it again",),
    )


def _origin(source: Origin) -> str:
    return f"{source} ({source.kind})"


def _lora(entry: LoraRecord) -> str:
    more = "".join(f", {value:g} in {name}" for name, value in entry.weights.items())
    return f"{_origin(entry.origin)} at {entry.weight:g}{more}"


def _files(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.rglob("*")) if file.is_file())


def _weights(path: Path) -> list[Path]:
    return [file for file in _files(path) if file.name.endswith(_WEIGHTS)]


def _bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _inside(path: Path) -> str:
    folders = [
        entry.name
        for entry in sorted(path.iterdir())
        if entry.is_dir() and any((entry / name).is_file() for name in (RECORD_FILE, INDEX_FILE))
    ]
    files = [entry.name for entry in sorted(path.iterdir()) if entry.name.endswith(_WEIGHTS)]
    found = [*folders, *files]
    if not found:
        return "name a weight file, a picture or a pipeline's folder"
    return f"in it are {listed(found, _SEVERAL)}"
