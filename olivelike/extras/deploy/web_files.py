"""Facts of a pipeline that a page needs beside its networks: its schedulers, and a manifest of all files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from olivelike.digest import digest_bytes
from olivelike.engine.output.asset_table import SCHEDULER_MODEL
from olivelike.engine.output.packages import Package
from olivelike.engine.output.pipeline_files import to_json
from olivelike.engine.output.scheduler_model import NAMES_KEY, config_of_schedules, file_of_schedules
from olivelike.model.records.output import FileFacts
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule, steps_taken
from olivelike.runtime.schedulers.scheduler_names import sampler_of

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.engine.output.packages import Packaged

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_KIND: Final = "web/2"


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

    That is the only `size` of pictures if there is but one, `samplers`, and in a page `fused_attention`, whether
    attention is one operator, which some graphics cards compute wrongly, and the bytes of its `runtime` by device.
    """
    facts = {path: {"size": file.size, "sha256": file.sha256} for path, file in sorted(files.items())}
    return to_json({"kind": MANIFEST_KIND, **told, "files": facts})


def names_in(model: bytes) -> list[str]:
    """Return the names that the model of a pipeline's schedulers takes."""
    import onnx

    found = {entry.key: entry.value for entry in onnx.load_model_from_string(model).metadata_props}
    names: list[str] = json.loads(found[NAMES_KEY])
    return names


def samplers(config: JsonView, names: Iterable[str]) -> dict[str, list[str] | str]:
    """Return `samplers` of a manifest: the `names`, each scheduler once, what people call its `own`, and `other_noise`.

    Those draw Brownian motion, for which a page has independent noise of the same law.

    Args:
        config: `scheduler_config.json`.
        names: All that `scheduler/model.onnx` takes.
    """
    chosen = {name: scheduler_settings(name or None, config) for name in names}
    first: dict[str, str] = {}
    for name, one in chosen.items():
        first.setdefault(repr(one), name)
    shown = list(first.values())
    own = str(config.get("_class_name"))
    if "" in chosen:
        own = " ".join(filter(None, sampler_of(own, chosen[""].settings)))
    schedules = {name: make_schedule(chosen[name], steps_taken(chosen[name])[0]) for name in shown}
    other = [name for name, schedule in schedules.items() if schedule.spans is not None]
    return {"names": shown, "own": own, "other_noise": other}
