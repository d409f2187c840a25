"""The files of a source, wherever they are: a folder, the hub's cache, or the hub itself.

A component as its source stores it: class, raw config, and a table of the stored tensors.

Also which files of a component's folder hold its weights, or what a part without weights can't do without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from olivelike._text import did_you_mean_path, quoted
from olivelike._untrusted import read_settings
from olivelike.digest import digest_json
from olivelike.errors import SourceError
from olivelike.families.family import Family
from olivelike.families.supported import check_network
from olivelike.model.architecture import Config
from olivelike.model.records.origin import Origin
from olivelike.sources.files.weight_header import RawTensor, check_dtype, read_header
from olivelike.sources.files.weight_table import ReadPickle


class SourceFiles(Protocol):
    """Read access to a source by relative path, such as `unet/config.json`."""

    @property
    def origin(self) -> Origin:
        """Origin of the files, for the record."""

    @property
    def where(self) -> str:
        """The source in words, for messages."""

    @property
    def remedy(self) -> str:
        """How to get a file that is missing."""

    def names(self, folder: str) -> frozenset[str]:
        """Return the names of the files in `folder`; the empty string is the source's own folder."""

    def path(self, relative: str) -> Path:
        """Return the local path of a file that `names` lists, after a download where one is needed."""


@dataclass(frozen=True)
class FolderFiles:
    """Files in a folder of this machine."""

    root: Path
    where: str
    remedy: str
    origin: Origin

    @classmethod
    def local(cls, root: Path) -> FolderFiles:
        """Take a user's own folder. Raises `SourceError` if it does not exist."""
        fetch = f"`hf download REPO --local-dir {quoted(root)}`"
        if not root.is_dir():
            into = "" if root.name.endswith(WEIGHT_SUFFIXES) else f", or download the pipeline into it with {fetch}"
            otherwise = f"check its name{into}"
            raise SourceError(f"{root}: no such folder or file; {did_you_mean_path(root, otherwise)}")
        remedy = f"download it again, for instance with {fetch}"
        return cls(root, str(root), remedy, Origin.local("folder", root))

    def names(self, folder: str) -> frozenset[str]:
        """Return the names of the files in `folder`."""
        path = self.root / folder
        return frozenset(entry.name for entry in path.iterdir() if entry.is_file()) if path.is_dir() else frozenset()

    def path(self, relative: str) -> Path:
        """Return the path of a file."""
        return self.root / relative


def read_json(files: SourceFiles, relative: str) -> Config:
    """Return a JSON object of the source. Raises `SourceError` if the file is absent, or holds something else."""
    folder, _, name = relative.rpartition("/")
    if name not in files.names(folder):
        raise missing_file(files, relative)
    return read_settings(files.path(relative), files.remedy)


def missing_file(files: SourceFiles, relative: str) -> SourceError:
    """Return the error for a file that should be there, saying whether its download was cut off."""
    message = f"{files.where}: {relative} is missing"
    if isinstance(files, FolderFiles) and next(_unfinished(files.root), None) is not None:
        message += ", and a download into this folder did not finish"
    return SourceError(f"{message}; {files.remedy}")


def _unfinished(root: Path) -> Iterator[Path]:
    yield from (root / ".cache" / "huggingface" / "download").rglob("*.incomplete")
    yield from root.glob("*/*.incomplete")
    if root.parent.name == "snapshots":
        yield from (root.parent.parent / "blobs").glob("*.incomplete")


_BOOKKEEPING = frozenset(
    {"_name_or_path", "_commit_hash", "name_or_path", "torch_dtype", "dtype", "architectures"}
    | {"_diffusers_version", "transformers_version"}
)
"""Config keys that say where a checkpoint comes from, not what it is."""
_DIFFUSERS_STEM = "diffusion_pytorch_model"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5", ".onnx", ".gguf", ".xml")

TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".jinja")
"""How files end that libraries save for a tokenizer, in whatever release."""
_TOKENIZER = re.compile(r"Tokenizer(Fast)?$")
_MAIN_FILES = {
    re.compile(r"Scheduler$"): "scheduler_config.json",
    re.compile(r"(FeatureExtractor|ImageProcessor)(Fast)?$"): "preprocessor_config.json",
}


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
    original: str | None = None
    """Way in which the names are stored, of `STORED`, for tensors named as in the original code."""
    scales: Mapping[str, tuple[RawTensor, Path]] = field(default_factory=dict)
    """Stored name → what its values are multiplied by: one number, or one for each row."""

    def __post_init__(self) -> None:
        """Refuse tensors of dtypes that are not known."""
        for name, (tensor, path) in self.tensors.items() if self.graph is None else ():
            check_dtype(path, name, tensor)

    @cached_property
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
    def largest(self) -> int:
        """Number of values in the largest tensor."""
        return max((math.prod(tensor.shape) for tensor, _ in self.tensors.values()), default=0)

    @cached_property
    def second_largest(self) -> int:
        """Number of values in the largest tensor that is smaller than the largest; that one's, if there is none."""
        sizes = {math.prod(tensor.shape) for tensor, _ in self.tensors.values()}
        return max(sizes - {self.largest}, default=self.largest)

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
    family: Family | None = None,
) -> Checkpoint:
    """Read a component's config and the headers of its weight files.

    Raises `SourceError` if a file is missing or damaged, the network is not supported, or the weights are pickled and
    may not be read.

    Args:
        folder: its folder in the source; the empty string is the source's own folder.
        variant: such as `fp16`.
        read_pickle: reads the table of a `.bin` file; `None` refuses such files.
        family: of the pipeline, if it is known.
    """
    inside = f"{folder}/" if folder else ""
    config = read_json(files, f"{inside}config.json")
    for text in family.texts if family is not None else ():
        config = text.marked(config) if text.component == component else config
    check_network(component, class_name, config, family)
    names = files.names(folder)
    found = find_weight_file(names, library, variant)
    if found is None:
        raise _no_weights(files, folder, names, variant)
    if found.pickled and read_pickle is None:
        raise SourceError(
            f"{files.where}: {folder} has only pickled weights ({found.name}), which can run code as they "
            "load; use a checkpoint with .safetensors files, or pass --allow-pickle if you trust this one"
        )
    read = read_pickle if found.pickled and read_pickle is not None else lambda path: read_header(path).tensors
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
                f"index and shards belong to different checkpoints; {files.remedy}"
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
        raise SourceError(f"{files.where}: {inside}{found.name} has no weight_map; {files.remedy}") from error
    return parts


def _no_weights(files: SourceFiles, folder: str, names: frozenset[str], variant: str | None) -> SourceError:
    there = weight_files_among(names)
    if not there:
        return missing_file(files, f"{folder}/, the weights (*.safetensors),")
    listed = ", ".join(there)
    if variant is None:
        return SourceError(
            f"{files.where}: {folder} has no weights without a variant; it has {listed}; "
            "name the variant (`variant: fp16` beside the source, `convert --variant fp16`), or get the other files"
        )
    return SourceError(
        f"{files.where}: {folder} has no weights of variant {variant!r}; it has {listed}; "
        "change `variant:` or leave it out"
    )


def _without_bookkeeping(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_bookkeeping(value) for key, value in config.items() if key not in _BOOKKEEPING}
    return config


@dataclass(frozen=True)
class WeightFile:
    """One file that leads to all weights of a component."""

    name: str
    sharded: bool
    """`name` is an index that tells each tensor's file."""
    pickled: bool


def find_weight_file(names: frozenset[str], library: str, variant: str | None) -> WeightFile | None:
    """Return what the library would load from a folder with the files `names`; safetensors come first.

    diffusers looks for shards before a single file, transformers the other way round.
    """
    return next((file for file in _candidates(library, variant) if file.name in names), None)


def weight_files_among(names: frozenset[str]) -> list[str]:
    """Return the names that look like weights, sorted, for messages."""
    return sorted(name for name in names if name.endswith((*WEIGHT_SUFFIXES, ".json")) and name != "config.json")


def missing_main_file(class_name: str, names: Collection[str]) -> str | None:
    """Return the main file that a tokenizer, scheduler or image processor lacks; `None` if it lacks none.

    Args:
        class_name: as the index has it; a network's has no main file here.
        names: the files in its folder; empty if there is no folder.
    """
    if _TOKENIZER.search(class_name):
        return _missing_vocabulary(names)
    for pattern, main_file in _MAIN_FILES.items():
        if pattern.search(class_name) and main_file not in names:
            return main_file
    return None


def _missing_vocabulary(names: Collection[str]) -> str | None:
    # A `.model` file is the vocabulary of a SentencePiece tokenizer, such as T5's.
    if "tokenizer.json" in names or any(name.endswith(".model") for name in names):
        return None
    if "vocab.json" not in names:
        return "vocab.json (or tokenizer.json)"
    return "merges.txt" if "merges.txt" not in names else None


def _candidates(library: str, variant: str | None) -> Iterator[WeightFile]:
    # A class of a pipeline's own package, such as the safety checker, may belong to either library.
    stems = {"diffusers": [_DIFFUSERS_STEM], "transformers": ["model"]}.get(library, ["model", _DIFFUSERS_STEM])
    for pickled in (False, True):
        for stem in stems:
            own_stem = "pytorch_model" if pickled and stem == "model" else stem
            files = list(_spellings(own_stem, variant, pickled=pickled))
            yield from files if stem == _DIFFUSERS_STEM else sorted(files, key=lambda file: file.sharded)


def _spellings(stem: str, variant: str | None, *, pickled: bool) -> Iterator[WeightFile]:
    suffix = "bin" if pickled else "safetensors"
    if variant is None:
        yield WeightFile(f"{stem}.{suffix}.index.json", sharded=True, pickled=pickled)
        yield WeightFile(f"{stem}.{suffix}", sharded=False, pickled=pickled)
        return
    yield WeightFile(f"{stem}.{suffix}.index.{variant}.json", sharded=True, pickled=pickled)
    yield WeightFile(f"{stem}.{suffix}.{variant}.index.json", sharded=True, pickled=pickled)  # older diffusers
    yield WeightFile(f"{stem}.{variant}.{suffix}", sharded=False, pickled=pickled)
