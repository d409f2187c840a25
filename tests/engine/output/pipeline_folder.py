"""A whole output folder of the tiny pipeline, put together as the engine does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from olivelike.engine.output.assets import normalise_assets
from olivelike.engine.output.materialize import materialize
from olivelike.engine.output.output_files import write_file
from olivelike.engine.output.pipeline_files import component_config, index
from olivelike.model.components import INDEX_FILE
from olivelike.sources import SourceSpec, open_source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from olivelike.testing import LocalModel


def write_pipeline(folder: Path, checkpoint: Path, models: Iterable[LocalModel]) -> Path:
    """Write networks, configs, index, tokenizer, scheduler and feature extractor."""
    models = list(models)
    for model in models:
        component = folder / model.component
        component.mkdir(parents=True)
        materialize(model.graph, model.weights, model.tensors.files, component, lambda done, total: None)
        write_file(component / "config.json", component_config(model.architecture))
    source = open_source(SourceSpec(path=checkpoint), [])
    files = normalise_assets(source.index, source.extras)
    files[INDEX_FILE] = index(source.index, sorted(model.component for model in models))
    for path, data in files.items():
        write_file(folder / path, data)
    return folder


def read_json(path: Path) -> dict:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
