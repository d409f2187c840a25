"""The provenance of an output: which run made its files, of which materials, by which steps.

It is an in-toto Statement (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) with the predicate
SLSA Provenance v1 (https://slsa.dev/spec/v1.0/provenance). All of it comes from records, which have no path of a
machine; the signer says that it is so, and nothing here proves it.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import Json, parse_object
from olivelike.model.records.origin import Origin
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.model.records.reading import to_json
from olivelike.model.records.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
MEDIA_TYPE: Final = "application/vnd.in-toto+json"
BUILD_TYPE: Final = "urn:olivelike:run:1"
_BUILDER: Final = "urn:olivelike"


def provenance_of(record: OutputRecord, digests: Mapping[str, str], run: RunRecord | None = None) -> bytes:
    """Return the statement about an output.

    Args:
        record: Its record.
        digests: SHA-256 of each file of it, its record included.
        run: The record of the run that made it, for times and versions.
    """
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "workflow": record.workflow,
                # Options of its provider decide no file, and may name folders of the machine.
                "target": {name: getattr(record.target, name) for name in ("name", "precision", "plugin")},
                "layout": record.layout,
                "loras": [_without_origin(one) for one in record.loras],
                "embeddings": [_without_origin(one) for one in record.embeddings],
            },
            "internalParameters": {
                "components": {
                    name: {"key": entry.key, "steps": to_json(entry.passes)}
                    for name, entry in record.components.items()
                }
            },
            "resolvedDependencies": list(_materials(record)),
        },
        "runDetails": {"builder": {"id": _BUILDER}},
    }
    if run is not None:
        predicate["runDetails"] = _details(run)
    statement = {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}
    return json.dumps(statement, ensure_ascii=False, sort_keys=True).encode()


def products(payload: bytes) -> dict[str, str]:
    """Return the digest of each file that a statement is about.

    Raises `ValueError` if it is no provenance of an output.
    """
    statement = parse_object(payload)
    if (statement.get("_type"), statement.get("predicateType")) != (STATEMENT, PREDICATE):
        raise ValueError("it is no provenance of SLSA's version 1")
    try:
        if statement["predicate"]["buildDefinition"]["buildType"] != BUILD_TYPE:
            raise ValueError("it is of no run of olivelike")
        found = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it has no list of files") from error
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ValueError("it has no list of files")
    if len(found) != len(statement["subject"]) or RECORD_FILE not in found:
        raise ValueError(f"it names a file twice, or not {RECORD_FILE}")
    return found


def _materials(record: OutputRecord) -> Iterator[Json]:
    """Yield what went in, as in-toto's resource descriptors: sources by name, and the files of weights of them."""
    for role, origin in record.origins:
        yield {"name": origin.name, **_place(origin), "annotations": _notes(role, origin)}
    files = {item for entry in record.components.values() for item in entry.made_of.items()}
    for name, digest in sorted(files):
        yield {"name": name, "digest": {"sha256": digest}}


def _place(origin: Origin) -> Json:
    found: Json = {}
    if origin.repository is not None:
        found["uri"] = f"https://huggingface.co/{origin.repository}"
    if origin.commit is not None:
        found["digest"] = {"gitCommit": origin.commit}
    elif origin.sha256 is not None:
        found["digest"] = {"sha256": origin.sha256}
    return found


def _notes(role: str, origin: Origin) -> Json:
    license = None if origin.license is None else to_json(origin.license)  # noqa: A001  (the field's word)
    file = {"file": origin.file} if origin.file is not None else {}
    return {"role": role, **file, "license": license or "unknown"}


def _details(run: RunRecord) -> Json:
    metadata: dict[str, Any] = {"invocationId": run.run_id}
    if run.finished:
        finished = dt.datetime.fromisoformat(run.finished).astimezone(dt.UTC)
        started = finished - dt.timedelta(seconds=run.seconds)
        times = {"startedOn": started, "finishedOn": finished}
        metadata |= {name: f"{when:%Y-%m-%dT%H:%M:%SZ}" for name, when in times.items()}
    versions = {name: version for name, version in run.versions.items() if version}
    return {"builder": {"id": _BUILDER, "version": versions}, "metadata": metadata}


def _without_origin(entry: object) -> Json:
    """Return how a LoRA or an embedding was merged; where it came from is among the materials."""
    found: Json = to_json(entry)
    return {"name": found["origin"]["name"], **{key: value for key, value in found.items() if key != "origin"}}
