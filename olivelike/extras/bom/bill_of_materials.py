"""The bill of materials of an output, of its record alone: the same folder gives the same bytes.

Networks and what they were made of are components of the type `machine-learning-model`, files lie in them with their
SHA-256, dependencies say what went into which network, and licences are those of the record. Format: CycloneDX 1.6,
https://cyclonedx.org/docs/1.6/json/; by its own library.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.exception import CycloneDxException
from cyclonedx.exception.factory import InvalidSpdxLicenseException
from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseAcknowledgement
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from olivelike._files import explained, write_whole
from olivelike._installed import own_version
from olivelike._text import listed
from olivelike._untrusted import Json, one_line, read_object
from olivelike.digest import digest_bytes, digest_file
from olivelike.engine.output.license_notes import unknown_licenses
from olivelike.engine.output.output_files import holds, is_file
from olivelike.errors import SourceError, UsageError, VerificationError
from olivelike.families import DENOISERS, LORA_COMPONENTS
from olivelike.model.components import torch_folder
from olivelike.model.records.origin import License, Origin
from olivelike.model.records.output import RECORD_FILE, ComponentRecord, OutputRecord
from olivelike.model.records.signature_marks import MOST_BYTES
from olivelike.model.records.users_files import BOM_FILE
from olivelike.store.folder import is_digest

_SHOWN: Final = 5
_NAMESPACE: Final = uuid.UUID("6c54a0a4-3b4e-5d0c-9d6a-6f6c6976656c")
"""Of serial numbers: one for each content of `olivelike.json`."""


@dataclass(frozen=True)
class BomFile:
    """A bill of materials that was written."""

    path: Path
    networks: int
    files: int
    sources: int
    licenses: Mapping[str, str] = field(default_factory=dict)
    """Licence by the name of what is under it."""
    unknown: tuple[str, ...] = ()
    """Names of sources whose licence nothing says."""

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        counts = {"networks": self.networks, "files": self.files, "sources": self.sources}
        return {"path": str(self.path), **counts, "licenses": dict(self.licenses), "unknown": list(self.unknown)}


def write_bom(folder: Path, output: Path | None = None) -> BomFile:
    """Write the bill of materials of an output, in place of an earlier one.

    Args:
        folder: It, as a run left it.
        output: The file to write; by default `bom.cdx.json` in the folder.

    Raises:
        SourceError: if it is no output, or its record has what can be none.
        StoreError: if the file can't be written.
        VerificationError: if a file of it is missing or was changed.
        UsageError: if something else lies where the file goes.
    """
    record = OutputRecord.require(folder)
    path = output or folder / BOM_FILE
    _check_place(path)
    recorded = digest_file(folder / RECORD_FILE)
    _check_files(folder, record)
    try:
        made = bom_of(record, recorded)
    except (ValueError, CycloneDxException) as error:
        raise SourceError(
            f"{folder / RECORD_FILE}: names what no bill of materials can: {one_line(str(error))}; run the workflow "
            "that made it again"
        ) from error
    with explained("write the bill of materials", path, "choose another file with --output"):
        write_whole(path, made.encode(), durable=False)
    under = {origin.name: origin.license.name for _, origin in record.origins if origin.license is not None}
    unknown = unknown_licenses(origin for _, origin in record.origins)
    counts = (len(record.components), len(record.files) + 1, len(record.origins))
    return BomFile(path, *counts, under, tuple(unknown))


def bom_of(record: OutputRecord, recorded: str) -> str:
    """Return the bill of materials of an output as JSON.

    Args:
        record: Its record.
        recorded: SHA-256 of that record's file.
    """
    made: Json = json.loads(JsonV1Dot6(_bom(record, recorded)).output_as_string())
    # It would differ by the time at which it was made, and by nothing else.
    made["metadata"].pop("timestamp", None)
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _bom(record: OutputRecord, recorded: str) -> Bom:
    held = sorted((path, file.sha256) for path, file in record.files.items())
    sources = [(f"made-of:{number}:{role}", role, origin) for number, (role, origin) in enumerate(record.origins)]
    whole = Component(
        name=one_line(record.workflow),
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"output:{record.workflow}",
        version=digest_bytes(json.dumps(held).encode())[:12],
        licenses=_licenses([origin.license for _, origin in record.origins]),
        properties=[
            Property(name="olivelike:target", value=f"{record.target.name} {record.target.precision}"),
            Property(name="olivelike:layout", value=record.layout),
            *_unknown([origin for _, origin in record.origins]),
        ],
    )
    networks = [_network(name, entry, record) for name, entry in record.components.items()]
    inside = {path for name in record.components for path in record.component_files(name)}
    others = {path: file.sha256 for path, file in record.files.items() if path not in inside} | {RECORD_FILE: recorded}
    materials = [_source(ref, role, origin) for ref, role, origin in sources]
    tool = Component(name="olivelike", type=ComponentType.APPLICATION, version=own_version(), bom_ref="olivelike")
    dependencies = [
        Dependency(whole.bom_ref, [Dependency(one.bom_ref) for one in networks]),
        *(
            Dependency(
                made.bom_ref,
                [Dependency(BomRef(ref)) for ref, role, origin in sources if _went_into(name, role, origin, record)],
            )
            for made, name in zip(networks, record.components, strict=True)
        ),
        *(Dependency(one.bom_ref) for one in materials),
    ]
    return Bom(
        serial_number=uuid.uuid5(_NAMESPACE, recorded),
        metadata=BomMetaData(component=whole, tools=ToolRepository(components=[tool])),
        components=[*networks, *materials, *_files(others)],
        dependencies=dependencies,
    )


def _network(name: str, entry: ComponentRecord, record: OutputRecord) -> Component:
    ancestors = [_file(f"{name}:of:{path}", path, sha256) for path, sha256 in entry.made_of.items()]
    return Component(
        name=name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"network:{name}",
        version=entry.key[:12] or None,
        pedigree=Pedigree(ancestors=ancestors, notes=", ".join(one_line(step.name) for step in entry.passes) or None),
        components=_files({path: file.sha256 for path, file in record.component_files(name).items()}, f"{name}:"),
    )


def _source(ref: str, role: str, origin: Origin) -> Component:
    purl = None
    if origin.repository is not None:
        owner, _, name = origin.repository.rpartition("/")
        purl = PackageURL("huggingface", owner or None, name, origin.commit, subpath=origin.file)
    return Component(
        name=one_line(origin.name),
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=ref,
        version=origin.commit,
        purl=purl,
        hashes=_hashes(origin.sha256) if origin.sha256 else None,
        licenses=_licenses([origin.license]),
        properties=[Property(name="olivelike:role", value=role), *_unknown([origin])],
    )


def _licenses(licenses: Sequence[License | None]) -> list[object]:
    make, found = LicenseFactory(), []
    declared = LicenseAcknowledgement.DECLARED
    for one in {one.name: one for one in licenses if one is not None}.values():
        link = XsUri(one.link) if one.link and one.link.isprintable() else None
        try:
            found.append(make.make_with_id(one.name, url=link, acknowledgement=declared))
        except InvalidSpdxLicenseException:
            found.append(make.make_with_name(one.name, url=link, acknowledgement=declared))
    return list(found)


def _unknown(origins: Sequence[Origin]) -> Iterator[object]:
    for name in unknown_licenses(origins):
        yield Property(name="olivelike:unknown-licence", value=one_line(name))


def _files(digests: Mapping[str, str], prefix: str = "") -> list[Component]:
    return [_file(f"{prefix}{path}", path, sha256) for path, sha256 in sorted(digests.items())]


def _file(ref: str, path: str, sha256: str) -> Component:
    return Component(name=path, type=ComponentType.FILE, bom_ref=f"file:{ref}", hashes=_hashes(sha256))


def _hashes(sha256: str) -> list[HashType]:
    if not is_digest(sha256):
        raise ValueError(f"{sha256[:80]!r} is no SHA-256")
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]


def _went_into(component: str, role: str, origin: Origin, record: OutputRecord) -> bool:
    """Tell whether a source went into a network, as far as the record says."""
    source = record.source
    if role == "source":  # All that comes from nowhere else.
        elsewhere = {*source.everything} - {"source"}
        return elsewhere.isdisjoint((component, torch_folder(component)))
    if role == "LoRA":
        return component in LORA_COMPONENTS and any(
            one.origin is origin and one.weights.get(component, one.weight) for one in record.loras
        )
    if role == "embedding":
        return any(one.origin is origin and component in one.vectors for one in record.embeddings)
    return role in (component, torch_folder(component)) or (role in source.guide_files and component in DENOISERS)


def _check_place(path: Path) -> None:
    if not os.path.lexists(path):
        return
    try:
        ours = is_file(path) and read_object(path, MOST_BYTES).get("bomFormat") == "CycloneDX"
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise UsageError(f"{path}: is no bill of materials, and would be replaced; move it, or name another --output")


def _check_files(folder: Path, record: OutputRecord) -> None:
    """Hold each file against the record: a list with other digests than those of the files helps nobody."""
    if changed := [path for path, facts in record.files.items() if not holds(folder / path, facts)]:
        raise VerificationError(
            f"{folder}: is not as its {RECORD_FILE} says: {one_line(listed(sorted(changed), _SHOWN))}; run the "
            "workflow that made it again"
        )
