"""Merging LoRAs into an output that is on disk, without writing a file: the changed initializers, ready to be fed.

The record of the output says how each initializer was derived from parameters. Where that only moves values (packing,
transposing, casting), the parameters can be read back from the initializers; the merge then is the same as in a run,
and the changed values go where they came from.

LoRAs for a folder that is optimised already: its initializers change in memory, and no file does.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._files import file_identity, files_below, identity_at
from olivelike._text import count, did_you_mean
from olivelike._untrusted import open_file
from olivelike.digest import digest_file
from olivelike.errors import SourceError, UsageError
from olivelike.families import DENOISERS, TEXT_ENCODERS
from olivelike.model.client_layouts import is_package
from olivelike.model.components import PIPELINE
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.model.records.output import RECORD_FILE, OutputRecord

if TYPE_CHECKING:
    from olivelike.engine.output.expressions import Evaluator, Expression
    from olivelike.engine.output.initializers import Array
    from olivelike.engine.output.live_factors import LiveFactors
    from olivelike.model.few_steps import FewSteps
    from olivelike.runtime.pipeline.networks import Initializers, LoraChange
    from olivelike.sources.adapters.lora_file import LoraFile, WeightedLora
    from olivelike.sources.adapters.merge import Change
    from olivelike.sources.identify.weight_file import FileHashes


_LOG = logging.getLogger(__name__)


def swap_loras(
    folder: str | Path, loras: Sequence[WeightedLora], *, only: Collection[str] = ()
) -> dict[str, dict[str, Array]]:
    """Return what an output's initializers become when LoRAs are merged on top of it.

    The base is what the folder holds: in half precision, its parameters are those of the checkpoint rounded to float16,
    and LoRAs that a run has merged already stay merged. Of quantised weights it is what their numbers stand for; what
    changes is rounded anew.

    Args:
        folder: An output folder, as a run left it.
        loras: LoRA files with their weights; 0 changes nothing.
        only: Components to change; by default all that the LoRAs have keys for.

    Returns:
        Per component, the changed initializers by name, in the dtype and shape that `model.onnx` has them. A session
        takes them by `SessionOptions.add_external_initializers`, which copies nothing. A warning is logged if there are
        values that half precision clamps.

    Raises:
        SourceError: when the folder is no output, a LoRA does not fit it, or an initializer that a LoRA changes was
            derived by arithmetic that can't be undone.
    """
    from olivelike.engine.output.expressions import followed
    from olivelike.engine.output.fitting_loras import check_loras

    folder = Path(folder)
    record = OutputRecord.require(folder)
    if PIPELINE in record.components:
        raise SourceError(f"{folder}: is one file, which takes no other LoRA; merge it with `loras:` in the workflow")
    if is_package(record.layout):
        raise SourceError(
            f"{folder}: is laid out for {record.layout}, which takes no other LoRA; merge it with `loras:` in the "
            "workflow"
        )
    wanted = check_loras(folder, record, loras, only)
    with followed(folder):
        return {
            component: _swap(
                folder / record.model_file(component), component, record.components[component].derivations, loras
            )
            for component in sorted(wanted)
        }


def _swap(
    model: Path, component: str, derivations: Mapping[str, Expression], loras: Iterable[WeightedLora]
) -> dict[str, Array]:
    from olivelike.engine.output.expressions import Evaluator
    from olivelike.engine.output.initializers import Initializers, QuantisedInitializers
    from olivelike.engine.output.work_ahead import ahead
    from olivelike.sources.adapters.merge import changes

    initializers = QuantisedInitializers(Initializers(model), derivations)
    places = _places(initializers.derivations)
    shapes = {name: found[0].shape for name, found in places.items()}
    mine = [weighted for weighted in loras if component in weighted.file.components]
    with _saying_if_quantised(component, derivations):
        merging = changes(component, shapes, mine)
    touched = {place.initializer: None for name in merging for place in places[name]}

    def add(initializer: str) -> tuple[Array, list[str], Counter[str]]:
        """Add what can be added in place; return which parameters were, and what half precision lost."""
        array = initializers.read(initializer)
        added, lost = [], Counter[str]()
        for name, change in merging.items():
            if [place.initializer for place in places[name]] == [initializer]:
                added += [name] * places[name][0].add(array, change, lost)
        return array, added, lost

    merged: dict[str, Array] = {}
    evaluator = Evaluator(merged.__getitem__, initializers.file.opsets, initializers.file.ir_version)
    done = dict(ahead(add, touched))
    changed = {initializer: array for initializer, (array, _, _) in done.items()}
    for name in sorted(merging.keys() - {name for _, added, _ in done.values() for name in added}):
        merged[name] = merging[name].apply(places[name][0].read_back(changed[places[name][0].initializer]))
        for place in places[name]:
            place.put(changed[place.initializer], evaluator)
        del merged[name]
    clamped = evaluator.lost.get("saturated", 0) + sum(lost["saturated"] for _, _, lost in done.values())
    if clamped:
        named = ", ".join(f"{one.file.path.name} at {one.weight:g}" for one in mine)
        _LOG.warning(
            "%s: %s of its weights %s too large for half precision with %s, and became its largest number, 65,504 in "
            "fp16; take a lower weight, or a folder in fp32",
            component, count(clamped, "value"), "is" if clamped == 1 else "are", named,
        )  # fmt: skip
    return {
        name: part for initializer, array in changed.items() for name, part in initializers.parts(initializer, array)
    }


@dataclass(frozen=True, eq=False)
class _Place:
    """One occurrence of a parameter in an initializer."""

    initializer: str
    expression: Expression
    shape: tuple[int, ...]
    """Shape of the parameter."""
    number: int
    """Number of parameters before it in the expression."""

    def read_back(self, array: Array) -> Array:
        """Return the parameter's values, in float32, from those of the initializer."""
        import numpy as np

        from olivelike.engine.output.expressions import undo
        from olivelike.model.finite_values import is_float
        from olivelike.model.half_values import in_row_order

        with self._refusing():
            values = undo(*self._part(array))
        if not is_float(values.dtype):
            raise SourceError(
                f"initializer {self.initializer!r} is quantised, to {values.dtype}, so a LoRA can't be merged into it; "
                "merge the LoRA in a run, before the weights are quantised"
            )
        return in_row_order(values).astype(np.float32)

    def put(self, array: Array, evaluator: Evaluator) -> None:
        """Derive the parameter's part of the initializer's values anew."""
        from olivelike.model.half_values import in_row_order

        with self._refusing():
            expression, part = self._part(array)
        part[...] = in_row_order(evaluator.evaluate(expression))

    def add(self, array: Array, change: Change, lost: Counter[str]) -> bool:
        """Change the initializer's values in place, some rows at a time; `False` if more than that derived them.

        What half precision can't hold is counted in `lost`, by kind.

        It gives what `read_back`, the change and `put` give, since a run takes the same rows at a time.
        """
        import numpy as np

        from olivelike.engine.output.expressions import operators, undo
        from olivelike.model.half_values import HALVES, in_row_order, to_half
        from olivelike.model.onnx_messages import type_number
        from olivelike.model.tensor_file import add_to_rows, blocks

        with self._refusing():
            expression, part = self._part(array)
            values = undo(expression, part)
        matrix = values.reshape(len(values), -1)
        dtype = type_number(matrix.dtype)
        moved = list(operators(expression)).count("Cast") <= 1 and np.shares_memory(matrix, array)
        if not (change.is_low_rank and moved and (matrix.dtype == np.float32 or dtype in HALVES)):
            return False
        products = change.products()
        for rows in blocks(*matrix.shape):
            base = in_row_order(matrix[rows]).astype(np.float32)
            add_to_rows(base, products, rows, base)
            if dtype in HALVES:
                base, counts = to_half(base, dtype)
                lost.update(counts)
            matrix[rows] = base
        return True

    def _part(self, array: Array) -> tuple[Expression, Array]:
        from olivelike.engine.output.expressions import parts

        return next(islice(parts(self.expression, array), self.number, None))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        from olivelike.engine.output.expressions import Irreversible

        try:
            yield
        except Irreversible as error:
            raise SourceError(
                f"initializer {self.initializer!r} was derived by {error}, which can't be undone; "
                "merge the LoRA in a run"
            ) from None


@contextmanager
def _saying_if_quantised(component: str, derivations: Mapping[str, Expression]) -> Iterator[None]:
    """Add to a LoRA's refusal that layers may be missing because a pass has put integers in their place."""
    from olivelike.engine.output.expressions import integer_parameters

    try:
        yield
    except SourceError as error:
        names = [name for expression in derivations.values() for name in integer_parameters(expression)]
        if not names:
            raise
        raise SourceError(
            f"{error}; or a pass has quantised these layers, for {component} has parameters of whole numbers, such as "
            f"{names[0]}: merge the LoRA in a run then, before that pass"
        ) from error


def _places(derivations: Mapping[str, Expression]) -> dict[str, list[_Place]]:
    from olivelike.engine.output.expressions import parameters

    places: dict[str, list[_Place]] = {}
    for initializer, expression in derivations.items():
        for number, (name, shape) in enumerate(parameters(expression)):
            places.setdefault(name, []).append(_Place(initializer, expression, shape, number))
    return places


@dataclass(frozen=True)
class LiveLora:
    """A LoRA on top of what a folder holds."""

    path: Path
    name: str
    hash: str
    """As A1111 prints it, 12 digits; of the numbers alone."""
    text_weight: float
    unet_weight: float
    few_steps: FewSteps | None = None
    """Kind of few-step model that it makes of the UNet."""
    content: str = field(default="", repr=False)
    """Digest of all that decides what it changes: of two files with the same numbers, names and alphas may differ."""

    def __str__(self) -> str:
        same = self.text_weight == self.unet_weight
        weight = f"{self.unet_weight:g}" if same else f"{self.text_weight:g}:{self.unet_weight:g}"
        return f"{self.name} at {weight}"


class LiveLoras:
    """LoRAs by what names them, each file opened once, and again when it was written anew.

    Args:
        folders: where `<lora:NAME>` is looked for, subfolders included; of two folders the first one counts.
        allow_pickle: read pickled files too.
    """

    def __init__(self, folders: Sequence[Path] = (), *, allow_pickle: bool = False) -> None:
        self._folders = folders
        self._allow_pickle = allow_pickle
        self._opened: dict[Path, tuple[object, LoraFile, FileHashes, str]] = {}
        """By path: sizes and times of change of the file and its settings, what was read then, and its `content`."""
        self._factors: LiveFactors | None = None
        self._record: tuple[object, OutputRecord] | None = None
        """The record of the folder that was asked for last, with the folder and the file's identity."""

    def named(self, text: str) -> LiveLora:
        """Open what `--lora FILE` or `FILE:WEIGHT` names; a file may be a hub id.

        Raises `UsageError` if it names no file, or its weight is none, and `SourceError` if the file is no LoRA.
        """
        from olivelike.engine.plan.adapters import fetch
        from olivelike.workflow.places import weighted_file

        ref, number = weighted_file(text, Path.cwd())
        path, _ = fetch(ref)
        return self._open(path, number, number)

    def tagged(self, written: str, name: str, text_weight: float, unet_weight: float) -> LiveLora:
        """Open what a tag in a prompt names.

        Raises `UsageError` if two files of a folder have the name, and `SourceError` if there is none, or it is no
        LoRA.

        Args:
            written: the tag, `<lora:NAME:WEIGHT>`, for messages.
            name: of the file, without suffix; or its path below a folder.
        """
        return self._open(self._find(written, name), text_weight, unet_weight)

    def check(self, loras: Sequence[LiveLora], folder: Path) -> None:
        """Check by their headers that LoRAs fit what a folder holds. Raises `SourceError` if one does not."""
        from olivelike.engine.output.fitting_loras import check_lora

        stamp = folder, identity_at(folder / RECORD_FILE)
        if self._record is None or self._record[0] != stamp:
            self._record = stamp, OutputRecord.require(folder)
        record = self._record[1]
        for lora in loras:
            file, *_ = self._read(lora.path)
            check_lora(file, set(file.components), folder, record)

    def merge(self, loras: Sequence[LiveLora], folder: Path) -> Initializers:
        """Merge LoRAs into what a folder holds, as `olivelike run` wrote it; later where a graph takes them as factors.

        Returns per component what sessions take in place of the file's, or a `LoraChange` if it has `lora_inputs.onnx`.
        Raises `SourceError` if one does not fit, or is another file than when it was opened.
        """
        from olivelike.sources.adapters.lora_file import WeightedLora

        read = [self._read(lora.path) for lora in loras]
        for lora, (*_, content) in zip(loras, read, strict=True):
            if content != lora.content:
                raise SourceError(f"{lora.path}: was written anew since the picture was asked for; ask again")
        files = [file for file, *_ in read]
        text, denoiser = (
            [WeightedLora(file, weight) for file, weight in zip(files, weights, strict=True)]
            for weights in ([lora.text_weight for lora in loras], [lora.unet_weight for lora in loras])
        )
        if any(folder.glob(f"*/{LORA_INPUTS_FILE}")):
            contents = [content for *_, content in read]
            of_texts = self._changes(folder, text, contents, TEXT_ENCODERS)
            return {**of_texts, **self._changes(folder, denoiser, contents, DENOISERS)}
        if all(lora.text_weight == lora.unet_weight for lora in loras):
            return swap_loras(folder, denoiser)
        return {**swap_loras(folder, text, only=TEXT_ENCODERS), **swap_loras(folder, denoiser, only=DENOISERS)}

    def _changes(
        self, folder: Path, loras: Sequence[WeightedLora], contents: Sequence[str], components: Collection[str]
    ) -> Initializers:
        """Return what LoRAs change some components of a folder by, of which one at least has a graph for factors."""
        from olivelike.engine.output.fitting_loras import check_loras
        from olivelike.engine.output.live_factors import LiveFactors
        from olivelike.engine.output.low_rank_factors import NoFactorsError
        from olivelike.runtime.pipeline.networks import LoraChange

        self._factors = self._factors or LiveFactors()
        graphs = self._factors.graphs(folder)
        found: dict[str, Mapping[str, Array] | LoraChange] = {}
        for component in sorted(check_loras(folder, graphs.record, loras, components)):

            def merge(component: str = component) -> Mapping[str, Array]:
                return swap_loras(folder, loras, only=(component,))[component]

            if component not in graphs:
                found[component] = merge()
                continue
            try:
                feeds = self._factors.feeds(folder, component, list(zip(loras, contents, strict=True)))
                found[component] = LoraChange(feeds, merge)
            except NoFactorsError as error:
                found[component] = LoraChange(None, merge, error.reason)
        return found

    def weighted(self, lora: LiveLora) -> WeightedLora:
        """Return the opened file of a LoRA that `named` opened, with its weight."""
        from olivelike.sources.adapters.lora_file import WeightedLora

        return WeightedLora(self._read(lora.path)[0], lora.unet_weight)

    def _open(self, path: Path, text_weight: float, unet_weight: float) -> LiveLora:
        file, hashes, content = self._read(path)
        shown = (hashes.auto_v3 or hashes.sha256)[:12]
        return LiveLora(path, file.path.stem, shown, text_weight, unet_weight, file.few_steps, content)

    def _read(self, path: Path) -> tuple[LoraFile, FileHashes, str]:
        from olivelike.sources.adapters.lora_settings import CONFIG_NAME
        from olivelike.sources.adapters.open_lora import open_lora
        from olivelike.sources.files.pickled import read_pickle_table
        from olivelike.sources.identify.weight_file import hash_file

        try:
            found = path.stat()
        except OSError as error:
            raise SourceError(f"{path}: can't be read: {error.strerror}; is it still there?") from error
        stamp, known = (file_identity(found), identity_at(path.with_name(CONFIG_NAME))), self._opened.get(path)
        if known is None or known[0] != stamp:
            opened = open_lora(path, read_pickle=read_pickle_table if self._allow_pickle else None)
            hashes = hash_file(opened.path, _data_start(opened.path))
            settings = "" if opened.config_path is None else digest_file(opened.config_path)
            known = self._opened[path] = stamp, opened, hashes, hashes.sha256 + settings
        return known[1:]

    def _find(self, written: str, name: str) -> Path:
        from olivelike.sources.adapters.lora_settings import SUFFIXES

        name = name.replace("\\", "/")  # as Windows parts folders
        # Files are listed and compared, so that no name leads out of the folders.
        known: set[str] = set()
        for folder in self._folders:
            listed = list(files_below(folder, SUFFIXES))
            stems = [place.rpartition("/")[2] for _, place in listed]
            known.update(stems)
            found = [one for one in listed if one[1] == name]
            found = found or [one for one, stem in zip(listed, stems, strict=True) if stem == name]
            if len(found) > 1:
                both = " and ".join(place for _, place in found[:2])
                raise UsageError(f"{written}: {both} both have the name; write one of these")
            if found:
                return Path(found[0][0])
        # Whoever names one to a server may not be told of its folders.
        near = did_you_mean(name.rpartition("/")[2], sorted(known), "LoRAs") if known else "there is none at all"
        raise SourceError(f"{written}: there is no LoRA of that name; {near}")


def lora_folders(named: Sequence[Path], pipeline: Path) -> list[Path]:
    """Return where `<lora:NAME>` is looked for: named folders, then `loras/` here and beside the pipeline's folder.

    Raises `SourceError` if a named one is not there.
    """
    for folder in named:
        if not folder.is_dir():
            raise SourceError(f"--lora-dir {folder}: no such folder")
    usual = (Path("loras"), Path(os.path.realpath(pipeline)).parent / "loras")
    there = [folder for folder in usual if folder.is_dir()]
    return list({os.path.realpath(folder): folder for folder in (*there[::-1], *named[::-1])}.values())[::-1]


def _data_start(path: Path) -> int | None:
    """Return where the tensors of a safetensors file begin; its header's length comes first, in 8 bytes."""
    if path.suffix != ".safetensors":
        return None
    with open_file(path) as file:
        return 8 + int.from_bytes(file.read(8), "little")
