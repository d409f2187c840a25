"""A component as its source stores it: class, raw config, and a table of the stored tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_json
from olivelike.errors import SourceError
from olivelike.model.supported import check_network
from olivelike.sources.files.component_files import find_weight_file, weight_files_among
from olivelike.sources.files.safetensors_header import RawTensor, read_header
from olivelike.sources.source_files import missing_file, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.model.architecture import Config
    from olivelike.sources.files.component_files import WeightFile
    from olivelike.sources.files.weight_table import ReadPickle
    from olivelike.sources.identify.identity import Converter
    from olivelike.sources.source_files import SourceFiles

_BOOKKEEPING = frozenset(
    {"_name_or_path", "_commit_hash", "name_or_path", "torch_dtype", "dtype", "architectures"}
    | {"_diffusers_version", "transformers_version"},
)
"""Config keys that say where a checkpoint comes from, not what it is."""


@dataclass(frozen=True)
class Checkpoint:
    """One component of a pipeline, read from configs and headers alone."""

    component: str
    library: str
    """As in `model_index.json`: `diffusers`, `transformers`, or a pipeline's package in diffusers."""
    class_name: str
    config: Config
    tensors: Mapping[str, tuple[RawTensor, Path]]
    """Stored name → tensor and the file that holds it."""
    graph: Path | None = None
    """The model file of an ONNX source; other sources have none."""
    graph_digest: str | None = None
    """SHA-256 of that model without its weights."""
    original: Converter | None = None
    """The converter that knows the stored names, for tensors named as in the original (LDM) code."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The weight files, each once, sorted."""
        return tuple(sorted({path for _, path in self.tensors.values()}))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Stored name → shape: what `adapt` needs to know about the tensors."""
        return {name: tensor.shape for name, (tensor, _) in self.tensors.items()}

    @cached_property
    def elements(self) -> int:
        """Number of values in all tensors together."""
        return sum(math.prod(tensor.shape) for tensor, _ in self.tensors.values())

    @cached_property
    def layout_digest(self) -> str:
        """SHA-256 of all that decides the `Adaptation`: equal for variants, shards, and other weights."""
        shapes = sorted([name, list(shape)] for name, shape in self.shapes.items())
        config = _without_bookkeeping(self.config)
        parts = [self.component, self.library, self.class_name, config, shapes]
        if self.original is not None:
            parts.append(["original", self.original])
        return digest_json(["layout/1", *parts, *([self.graph_digest] if self.graph_digest else [])])


def read_checkpoint(
    files: SourceFiles,
    component: str,
    folder: str,
    library: str,
    class_name: str,
    *,
    variant: str | None,
    read_pickle: ReadPickle | None,
) -> Checkpoint:
    """Read a component's config and the headers of its weight files.

    Args:
        files: the source.
        component: name of the component.
        folder: its folder in the source; the empty string is the source's own folder.
        library: its library in the index.
        class_name: its class in the index.
        variant: such as `fp16`.
        read_pickle: reads the table of a `.bin` file; `None` refuses such files.

    Raises:
        SourceError: if a file is missing or damaged, the network is not supported, or the weights are pickled and may
            not be read.
    """
    inside = f"{folder}/" if folder else ""
    config = read_json(files, f"{inside}config.json")
    check_network(component, class_name, config)
    names = files.names(folder)
    found = find_weight_file(names, library, variant)
    if found is None:
        raise _no_weights(files, folder, names, variant)
    if found.pickled and read_pickle is None:
        raise SourceError(
            f"{files.where}: {folder} has only pickled weights ({found.name}), which can run code as they "
            "load; use a checkpoint with .safetensors files, or pass --allow-pickle if you trust this one",
        )
    read = read_pickle if found.pickled and read_pickle is not None else _read_safetensors
    tensors: dict[str, tuple[RawTensor, Path]] = {}
    for relative, expected in _parts(files, inside, found).items():
        if relative.removeprefix(inside) not in names:
            raise missing_file(files, relative)
        path = files.path(relative)
        table = read(path)
        absent = sorted(expected - table.keys())
        if absent:
            raise SourceError(
                f"{path}: lacks {len(absent)} tensors that {found.name} places in it, {absent[0]} the first; "
                f"index and shards belong to different checkpoints; {files.remedy}",
            )
        tensors |= {name: (tensor, path) for name, tensor in table.items()}
    return Checkpoint(component, library, class_name, config, tensors)


def _parts(files: SourceFiles, inside: str, found: WeightFile) -> dict[str, set[str]]:
    """Return each weight file's relative path with the tensors that an index places in it."""
    if not found.sharded:
        return {f"{inside}{found.name}": set()}
    index = read_json(files, f"{inside}{found.name}")
    parts: dict[str, set[str]] = {}
    try:
        for name, file in sorted(index["weight_map"].items()):
            parts.setdefault(f"{inside}{file}", set()).add(name)
    except (KeyError, AttributeError) as error:
        raise SourceError(
            f"{files.where}: {inside}{found.name} has no weight_map; {files.remedy}",
        ) from error
    return parts


def _no_weights(files: SourceFiles, folder: str, names: frozenset[str], variant: str | None) -> SourceError:
    there = weight_files_among(names)
    if not there:
        return missing_file(files, f"{folder}/, the weights (*.safetensors),")
    listed = ", ".join(there)
    if variant is None:
        return SourceError(
            f"{files.where}: {folder} has no weights without a variant; it has {listed}; "
            "name the variant, such as `variant: fp16`, or get the other files",
        )
    return SourceError(
        f"{files.where}: {folder} has no weights of variant {variant!r}; it has {listed}; "
        "change `variant:` or leave it out",
    )


def _read_safetensors(path: Path) -> Mapping[str, RawTensor]:
    return read_header(path).tensors


def _without_bookkeeping(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_bookkeeping(value) for key, value in config.items() if key not in _BOOKKEEPING}
    return config
