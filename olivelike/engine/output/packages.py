"""What a package of a whole pipeline has beside its networks: for Triton, or for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.model.client_layouts import Layout
    from olivelike.model.targets import TargetChoice

CONFIG_FILE = "config.json"
"""A network's config, beside its model."""


@dataclass(frozen=True)
class Packaged:
    """What a package is put together of."""

    name: str
    """Of the workflow."""
    target: TargetChoice
    models: Mapping[str, Path]
    """Model file of each network, with its `config.json` beside it."""
    pipeline: Mapping[str, bytes]
    """Index, tokenizers, scheduler and feature extractor, by the path that they have in a pipeline's folder."""


def package_files(layout: Layout, package: Packaged) -> dict[str, bytes]:
    """Return the files that a package has beside its networks, by relative path.

    Raises:
        SourceError: if a network's file is missing, or the package can't hold it.
    """
    from olivelike.engine.output.ort_package import ort_package_files
    from olivelike.engine.output.triton_files import triton_files

    return {"triton": triton_files, "ortpackage": ort_package_files}[layout.package or ""](package)
