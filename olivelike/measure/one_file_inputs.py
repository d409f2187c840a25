"""Inputs for measuring a pipeline in one file: a prompt, its scheduler, and noise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from olivelike.errors import SourceError
from olivelike.measure.network_sizes import Array
from olivelike.model.components import PIPELINE_FILE
from olivelike.model.graph import FACTOR_KEY, SIZE_KEY
from olivelike.runtime.sessions.session import ValueSpec
from olivelike.runtime.sessions.session_settings import SessionSettings

EXTENSIONS: Final = "onnxruntime_extensions"
STEPS: Final = 2
"""Steps of a measured run; the seed of its noise is 0."""
_CONTRIB: Final = "ai.onnx.contrib"
_SIDE: Final = 512
_FACTOR: Final = 8
_NUMBER: Final = re.compile(r"[1-9]\d{0,4}")


def is_one_file(model: Path) -> bool:
    """Tell whether a model file is a whole pipeline."""
    return model.name == PIPELINE_FILE


def with_operators(model: Path, settings: SessionSettings) -> SessionSettings:
    """Return settings with the operators of onnxruntime-extensions, if a model takes texts."""
    from olivelike.graphs.inspect import inspect_model

    if _CONTRIB not in inspect_model(model, targets=()).opsets:
        return settings
    return replace(settings, custom_operators=tuple(dict.fromkeys([*settings.custom_operators, EXTENSIONS])))


def one_file_inputs(
    inputs: Iterable[ValueSpec],
    metadata: Mapping[str, str],
    *,
    batch_size: int = 1,
    height: int | None = None,
    width: int | None = None,
    steps: int = STEPS,
) -> dict[str, Array]:
    """Return inputs by name for pictures of a size; by default that which the UNet was trained on.

    Args:
        inputs: What the model takes.
        metadata: Its custom metadata.
        batch_size: Pictures at once.
        height: In pixels.
        width: Likewise.
        steps: How often the UNet runs.

    Raises:
        SourceError: if an input is none that a pipeline in one file has.
    """
    known = _numbers(metadata.get(SIZE_KEY, ""))
    trained = known if len(known) == 2 else [_SIDE, _SIDE]
    factor = (_numbers(metadata.get(FACTOR_KEY, "")) or [_FACTOR])[0]
    sides = (height or trained[1]) // factor, (width or trained[0]) // factor
    fixed: dict[str, Array] = {
        "scheduler": np.array(["Euler"], object),
        "steps": np.array([steps], np.int64),
        "guidance": np.array([7.5], np.float32),
    }

    def value(spec: ValueSpec) -> Array:
        rows = 1 if spec.name.startswith("negative") else batch_size
        if spec.name == "noise":
            shape = (1, batch_size, int(spec.dims[2]), *sides)
            return np.random.default_rng(0).standard_normal(shape, np.float32)
        if spec.dtype == "string":
            return np.array(["a red circle"] * rows, object)
        return np.zeros((rows, int(spec.dims[1])), np.int32)

    found: dict[str, Array] = {}
    for spec in inputs:
        try:
            found[spec.name] = fixed[spec.name] if spec.name in fixed else value(spec)
        except (LookupError, MemoryError, ValueError) as error:
            raise SourceError(
                f"{PIPELINE_FILE}: nothing can be given for its input {spec.name!r} ({error}); make the folder again"
            ) from error
    return found


def _numbers(text: str) -> list[int]:
    """Return the whole numbers between `x`, if they are such as sizes are."""
    parts = text.split("x")
    return [int(part) for part in parts] if all(_NUMBER.fullmatch(part) for part in parts) else []
