"""Facts of a pipeline that a page needs beside its networks: its schedulers, and a manifest of all files."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Final

from olivelike._untrusted import Json, JsonView
from olivelike.digest import digest_bytes
from olivelike.engine.output.asset_table import SCHEDULER_MODEL
from olivelike.engine.output.packages import Package, Packaged
from olivelike.engine.output.pipeline_files import to_json
from olivelike.engine.output.scheduler_model import NAMES_KEY, OWN, config_of_schedules, file_of_schedules
from olivelike.model.records.output import FileFacts
from olivelike.runtime.schedulers.class_settings import listed_samplers, scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule, steps_taken
from olivelike.runtime.schedulers.scheduler_names import UNIFORM, SamplerEntry

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_KIND: Final = "web/2"
SAMPLER_FACTS: Final = frozenset(one.name for one in fields(SamplerEntry))
"""What `samplers` of a manifest has of each in its `list`."""


class WebFolder(Package):
    """The layout `web`: a pipeline that says what it is, for a page that lists no folders."""

    names = (MANIFEST_FILE, SCHEDULER_MODEL)

    def files(self, package: Packaged) -> dict[str, bytes]:
        """Return the pipeline's files, the model of its schedulers, and the manifest of them and the networks'."""
        model = package.pipeline.get(SCHEDULER_MODEL) or file_of_schedules(package.pipeline)
        assets = {**package.pipeline, SCHEDULER_MODEL: model}
        listed = dict(package.networks)
        listed |= {path: FileFacts(len(data), digest_bytes(data)) for path, data in assets.items()}
        told = {"size": package.size, "samplers": samplers(config_of_schedules(assets), names_in(model))}
        return {**assets, MANIFEST_FILE: manifest(listed, told)}


def manifest(files: Mapping[str, FileFacts], told: JsonView) -> bytes:
    """Return `manifest.json`: size and SHA-256 of each file, and what else a page is told.

    That is the only `size` of pictures if there is but one, and `samplers`. In a page there are also the `device` that
    the pipeline was made for, `examples` of prompts, `fused_attention`: whether attention is one operator, which some
    graphics cards compute wrongly; `colours` of latents, if known; and size and SHA-256 of what the `runtime` loads.
    """
    facts = {path: {"size": file.size, "sha256": file.sha256} for path, file in sorted(files.items())}
    return to_json({"kind": MANIFEST_KIND, **told, "files": facts})


def names_in(model: bytes) -> list[str]:
    """Return the names that the model of a pipeline's schedulers takes."""
    import onnx

    found = {entry.key: entry.value for entry in onnx.load_model_from_string(model).metadata_props}
    names: list[str] = json.loads(found[NAMES_KEY])
    return names


def samplers(config: JsonView, names: Collection[str]) -> Json:
    """Return `samplers` of a manifest: what lists of samplers have, and `other_noise`.

    Those draw Brownian motion, for which a page has independent noise of the same law.

    Args:
        config: `scheduler_config.json`.
        names: All that `scheduler/model.onnx` takes.
    """
    listed = listed_samplers(config)
    found = [
        {**one, "schedules": [kind for kind in one["schedules"] if named(one, kind) in names]} for one in listed["list"]
    ]
    known = [one for one in found if one["schedules"]]
    offered = [*([OWN] if OWN in names else []), *(named(one, kind) for one in known for kind in one["schedules"])]
    chosen = {name: scheduler_settings(name or None, config) for name in offered}
    other = [name for name, one in chosen.items() if make_schedule(one, steps_taken(one)[0]).spans is not None]
    own = listed["own"] if OWN in names else None
    return {"list": known, "own": own, "class": str(listed["class"]), "other_noise": other}


def named(entry: JsonView, schedule: str) -> str:
    """Return the one name of a sampler in a list, with a schedule type of its."""
    return entry["name"] if schedule == UNIFORM else f"{entry['name']} {schedule}"
