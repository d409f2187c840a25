"""Schedulers as one ONNX graph: a name and a number of steps in, the table of `olivelike.runtime.schedulers` out.

The formulas are those of the runtime, written as nodes. Of all tables the one that is asked for is computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from olivelike._untrusted import Json, JsonView, parse_object
from olivelike.errors import OlivelikeError, SourceError
from olivelike.families import FAMILIES
from olivelike.families.family import Family
from olivelike.graphs.editing.arithmetic import Number, OnnxArrays, Writer
from olivelike.runtime.schedulers.class_settings import SchedulerSettings, scheduler_settings
from olivelike.runtime.schedulers.formulas import FORMULAS, NOISE, OUTPUT, PICTURE, Columns, X
from olivelike.runtime.schedulers.schedule import make_schedule, shift_by_size, steps_taken, threshold_of
from olivelike.runtime.schedulers.scheduler_names import FLOW, scheduler_names
from olivelike.runtime.schedulers.spacing import SCHEDULER_FILE, Array, Asked

NAMES_KEY: Final = "olivelike.schedulers"
"""Metadata: the names that a graph knows, as a list of JSON."""
OWN: Final = ""
"""Name of the folder's own scheduler."""
KEPT: Final = 5
"""Values that a call hands on, beside the latents."""
_TERMS: Final = (X, PICTURE, OUTPUT, NOISE)
NOISE_TERM: Final = _TERMS.index(NOISE)
"""Place of noise among the terms of a sum."""
_COLUMNS: Final = (1, 1, 2, (1 + KEPT) * (len(_TERMS) + KEPT), 2, 1)
"""Of timesteps, scale, picture, following, mixed, draws."""
_OPSET, _IR_VERSION = 20, 10
_FLOAT, _DOUBLE, _INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64
_DRAWN: Final = "drawn before"
_LEVELS: Final = 4
"""Rows of timesteps and noise levels, of which tables are made."""

_Spacing = Callable[[Asked], tuple[Array, ...]]


@dataclass(frozen=True)
class Choices:
    """Schedulers that a pipeline can draw with."""

    names: Mapping[str, int]
    """Name → number of its scheduler."""
    schedulers: Sequence[SchedulerSettings]
    family: Family = FAMILIES["sd1"]

    @property
    def listed(self) -> str:
        """Names, as the metadata of models have them."""
        return json.dumps(list(self.names))

    @property
    def shifts(self) -> bool:
        """Whether a schedule depends on the picture's size."""
        return any(one.settings.get("use_dynamic_shifting") for one in self.schedulers)

    def has(self, switch: str) -> bool:
        """Say whether a switch of the foretold picture is on for one of them."""
        return any(one.settings.get(switch) for one in self.schedulers)


def scheduler_choices(config: JsonView, family: Family = FAMILIES["sd1"]) -> Choices:
    """Return what a pipeline can draw with, by all names that `generate` takes, and its own scheduler by `OWN`.

    A scheduler that `generate` refuses with this config is not among them. Raises `SourceError` if there is none that
    can draw.

    Args:
        config: `scheduler_config.json`.
        family: Of the pipeline, which may decide how a flow is spaced.
    """
    names: dict[str, int] = {}
    found: list[SchedulerSettings] = []
    refused: OlivelikeError | None = None
    for name in (OWN, *scheduler_names()):
        try:
            chosen = scheduler_settings(name or None, config, flow=family.published.scheduler in FLOW)
            if chosen not in found:
                make_schedule(chosen, steps_taken(chosen)[0], shift=shift_by_size(chosen.settings, 1))
                found.append(chosen)
            names[name] = found.index(chosen)
        except OlivelikeError as error:
            refused = refused or error
    if not found:
        raise SourceError(f"{SCHEDULER_FILE}: no scheduler can be made a graph: {refused}") from refused
    return Choices(names, found, family)


@dataclass(frozen=True)
class GraphTable:
    """A schedule in a graph; floats of 32 bits."""

    timesteps: Number
    """Of shape (calls,)."""
    scale: Number
    """Factor of the network's input: (calls,)."""
    picture: Number
    """Coefficients of latents and output in the picture that they foretell: (calls, 2)."""
    following: Number
    """Maps latents, picture, output, noise and what is kept to the next latents and what is kept: (calls, 6, 9)."""
    draws: Number
    """Whether noise is drawn: truth values of shape (calls,)."""
    initial: Number
    """Factor of the initial noise: (1,)."""
    mixed: Number
    """Signal and noise of a picture that denoising starts from: (2,)."""
    clip: Number
    """Range that the foretold picture is cut to, or infinity: (1,)."""
    threshold: Number
    """Quantile of the foretold picture that becomes its range, and the most that this may be; or zeros: (2,)."""


class _Recorded(dict[str, Any]):
    """Settings that remember what they were asked, and what they answered."""

    def __init__(self, settings: JsonView) -> None:
        super().__init__(settings)
        self._answers: dict[tuple[str, str], Any] = {}

    def _told(self, question: str, key: object, answer: Any) -> Any:
        self._answers[question, str(key)] = answer
        return answer

    def __getitem__(self, key: str) -> Any:
        return self._told("value", key, super().__getitem__(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._told("there", key, super().__contains__(key)))

    def get(self, key: str, default: Any = None) -> Any:
        return self._told("value", key, super().get(key, default))

    def known(self) -> str:
        """Return all questions, and the answers."""
        return json.dumps(sorted((*question, answer) for question, answer in self._answers.items()), default=str)


@dataclass(frozen=True)
class _Asked(Asked):
    """A question whose timesteps and noise levels are made elsewhere."""

    spaced: Callable[[_Spacing], tuple[Array, ...]] | None = None

    def spacing(self, levels: _Spacing) -> tuple[Array, ...]:
        """Return what is made elsewhere."""
        return super().spacing(levels) if self.spaced is None else self.spaced(levels)


@dataclass(frozen=True)
class _Formulas:
    """One scheduler's formulas, in two parts: those of levels, and the rest. Parts of one key are the same."""

    chosen: SchedulerSettings
    spacing: _Spacing | None
    rows: int
    """Arrays that the first part gives."""
    levels_key: Hashable
    columns_key: Hashable

    def columns(self, asked: Asked) -> tuple[Columns, float, tuple[float, float]]:
        """Return columns, the range that foretold pictures are clipped to, and their threshold."""
        own, columns = asked.settings, FORMULAS[self.chosen.class_name](asked)
        clip = float(own["clip_sample_range"]) if columns.clips and own["clip_sample"] else math.inf
        return columns, clip, threshold_of(columns, own) or (0.0, 0.0)


def _formulas(chosen: SchedulerSettings) -> _Formulas:
    """Evaluate formulas once, to see which settings each part reads."""
    own, of_levels = _Recorded(chosen.settings), _Recorded(chosen.settings)
    called: list[tuple[_Spacing, int]] = []

    def spaced(levels: _Spacing) -> tuple[Array, ...]:
        rows = levels(Asked(np, of_levels, asked.steps))
        called.append((levels, len(rows)))
        return rows

    asked = _Asked(np, own, steps_taken(chosen)[0], spaced=spaced)
    with np.errstate(all="ignore"):
        _Formulas(chosen, None, 0, None, None).columns(asked)
    spacing, rows = called[0] if called else (None, 0)
    formula = FORMULAS[chosen.class_name]
    return _Formulas(chosen, spacing, rows, (spacing, of_levels.known()), (formula, own.known()))


def write_table(
    writer: Writer,
    choices: Choices,
    scheduler: Number,
    steps: Number,
    *,
    strength: Number | None = None,
    tokens: Number | None = None,
) -> GraphTable:
    """Write the table of the scheduler that is asked for.

    Args:
        writer: With floats of 64 bits.
        choices: Schedulers to choose from.
        scheduler: A name, string of shape (1,).
        steps: How many, int64 of shape (1,).
        strength: Share of them that runs, float64 of shape (1,); `None` is all.
        tokens: Patches of the picture, int64 of shape (1,), where a schedule depends on them.
    """
    names = writer.constant(list(choices.names), object)
    known = writer.op("Equal", names, writer.here(scheduler)).cast(_INT64)
    is_known = known.apply("ReduceMax", keepdims=1) > writer.integers(0)
    place = known.apply("ArgMax", axis=0, keepdims=1)
    place += writer.require(is_known, f"scheduler is none of {NAMES_KEY} in the metadata")
    index = writer.integers(*choices.names.values()).at(place)
    many, skipped = _checked_steps(writer, choices.schedulers, index, writer.here(steps)), writer.constant([0.0])
    if strength is not None:
        share = writer.here(strength)
        run = (many * share).apply("Floor")
        some = writer.require((run >= 1.0) & (share <= 1.0), "strength must be a share that leaves a step")
        skipped = many - run + some.cast(_DOUBLE)
    size = writer.constant([0.0]) if tokens is None else writer.here(tokens).cast(_DOUBLE)

    def asked(inner: Writer, one: _Formulas, spaced: Callable[[_Spacing], tuple[Array, ...]] | None = None) -> _Asked:
        own = one.chosen.settings
        xp, family, counts = OnnxArrays(inner), choices.family, (inner.here(many), inner.here(skipped))
        shift = shift_by_size(own, inner.here(size), counts[0], family.flow_shift, xp)
        even, aligned = family.even_sigmas, family.aligned_levels
        return _Asked(xp, own, *counts, shift=shift, even=even, aligned=aligned, spaced=spaced)

    def write_levels(one: _Formulas) -> Callable[[Writer], Sequence[Number]]:
        def write(inner: Writer) -> Sequence[Number]:
            assert one.spacing is not None
            rows = one.spacing(asked(inner, one))
            return [inner.stack([rows[0] * 0.0 + row for row in (*rows, *(0.0,) * (_LEVELS - len(rows)))])]

        return write

    def write_columns(one: _Formulas) -> Callable[[Writer], Sequence[Number]]:
        def write(inner: Writer) -> Sequence[Number]:
            rows = tuple(inner.here(levels).at(inner.constant(row, np.int64)) for row in range(one.rows))
            columns, clip, threshold = one.columns(asked(inner, one, lambda _: rows))
            begin = inner.here(skipped) * columns.order
            packed = _packed(inner, _with_normals(OnnxArrays(inner), columns)).slice(begin.cast(_INT64), axis=1)
            first = inner.op("Reshape", inner.operand(columns.first), inner.integers(-1))[:1]
            return [packed, inner.op("Concat", first, inner.constant([clip, *threshold]), axis=0)]

        return write

    formulas = [_formulas(chosen) for chosen in choices.schedulers]
    spacings = {one.levels_key: write_levels(one) for one in formulas if one.spacing is not None}
    levels = writer.constant([[0.0]])
    if spacings:
        (levels,) = _one_of(writer, index, [one.levels_key for one in formulas], spacings, "levels")
    tables = {one.columns_key: write_columns(one) for one in formulas}
    return _unpacked(writer, *_one_of(writer, index, [one.columns_key for one in formulas], tables, "table"))


def _checked_steps(writer: Writer, schedulers: Sequence[SchedulerSettings], index: Number, steps: Number) -> Number:
    """Return the number of steps as float64, once the scheduler is known to take it."""
    taken = [steps_taken(chosen) for chosen in schedulers]
    for least, most, why in dict.fromkeys(taken):
        others = writer.constant([one != (least, most, why) for one in taken], np.bool_).at(index)
        fits = others | ((steps >= writer.integers(least)) & (steps <= writer.integers(most)))
        steps += writer.require(fits, f"steps must be {least} to {most}{why}")
    return steps.cast(_DOUBLE)


def _one_of(
    writer: Writer,
    index: Number,
    keys: Sequence[Hashable],
    parts: Mapping[Hashable, Callable[[Writer], Sequence[Number]]],
    name: str,
) -> list[Number]:
    """Return what the part of the scheduler's key gives."""
    known = list(parts)
    places = writer.integers(*(known.index(key) if key in parts else 0 for key in keys))
    return writer.one_of(places.at(index), list(parts.values()), name=name)


def _with_normals(xp: OnnxArrays, columns: Columns) -> Columns:
    """Return columns with normals in place of Brownian motion, which have its law.

    Increments of a motion are normals; those of spans that overlap are alike as far as their common part goes.
    """
    if columns.spans is None:
        return columns
    high, low = columns.spans
    high_before, low_before = (xp.concatenate([high[:1], one[:-1]]) for one in columns.spans)
    common = xp.maximum(xp.minimum(high, high_before) - xp.maximum(low, low_before), 0.0)
    lengths = (high - low) * (high_before - low_before)
    share = xp.sqrt(xp.where(common > 0, common * common / lengths, 0.0))
    after = dict(columns.following)
    noise = after[X][NOISE]
    after[X] = {**after[X], NOISE: noise * xp.sqrt(1 - share * share), _DRAWN: noise * share}
    return replace(columns, following={**after, _DRAWN: {NOISE: 1.0}})


def _packed(writer: Writer, columns: Columns) -> Number:
    """Return the columns as rows of one array, in the order of `_COLUMNS`."""
    xp, values = OnnxArrays(writer), list(columns.following)
    draws = columns.draws
    sums = [columns.following[value] for value in values] + [{}] * (1 + KEPT - len(values))
    terms = [*_TERMS, *values[1:], *("",) * (1 + KEPT - len(values))]
    cells = [
        columns.timesteps, columns.scale, *columns.picture, *(one.get(term, 0.0) for one in sums for term in terms),
        *columns.mixed, xp.where(draws, 1.0, 0.0) if isinstance(draws, Number) else float(draws),
    ]  # fmt: skip
    zeros = columns.timesteps * 0.0
    found: dict[ir.Value, Number] = {}
    places = []
    for cell in cells:
        row = zeros + (cell if isinstance(cell, Number) else float(np.reshape(cell, ())))
        found.setdefault(row.value, row)
        places.append(list(found).index(row.value))
    rows = xp.reshape(xp.concatenate(list(found.values())), (len(found), -1))
    return rows.at(writer.integers(*places))


def _unpacked(writer: Writer, packed: Number, facts: Number) -> GraphTable:
    finite = writer.op("Equal", (packed * 0.0).apply("ReduceSum", keepdims=0), writer.constant(0.0))
    checked = writer.require(finite, "the schedule of so many steps holds what is no number").cast(_DOUBLE)
    rows = packed.apply("Transpose", perm=[1, 0]) + checked
    columns = writer.ops("Split", rows.cast(_FLOAT), writer.integers(*_COLUMNS), axis=1, outputs=len(_COLUMNS))
    first, clip, threshold = writer.ops("Split", facts.cast(_FLOAT), writer.integers(1, 1, 2), axis=0, outputs=3)
    times, scale, draws = (writer.op("Reshape", columns[place], writer.integers(-1)) for place in (0, 1, 5))
    following = writer.op("Reshape", columns[3], writer.integers(-1, 1 + KEPT, len(_TERMS) + KEPT))
    mixed = writer.op("Reshape", columns[4].slice(0, 1), writer.integers(2))
    return GraphTable(
        times, scale, columns[2], following, draws.cast(ir.DataType.BOOL), first, mixed, clip, threshold
    )  # fmt: skip


def file_of_schedules(assets: Mapping[str, bytes], family: Family = FAMILIES["sd1"]) -> bytes:
    """Return `scheduler/model.onnx` for the files beside a pipeline's networks, by relative path.

    Raises `SourceError` if no scheduler can draw.
    """
    return scheduler_model(config_of_schedules(assets), family)


def config_of_schedules(assets: Mapping[str, bytes]) -> Json:
    """Return `scheduler_config.json` of the files beside a pipeline's networks; raises `SourceError` without one."""
    try:
        return parse_object(assets[SCHEDULER_FILE], unbounded=True)
    except (KeyError, ValueError) as error:
        raise SourceError(
            f"{SCHEDULER_FILE}: can't be read for a graph of schedules: {error!r}; fetch the file again"
        ) from error


def scheduler_model(config: JsonView, family: Family = FAMILIES["sd1"]) -> bytes:
    """Return `scheduler/model.onnx` for a pipeline.

    Inputs are `scheduler`, `steps`, `strength`, and `image_tokens` where the schedule depends on the picture's size;
    outputs are the fields of `GraphTable`. Raises `SourceError` if no scheduler of that can draw.

    Args:
        config: `scheduler_config.json`.
        family: Of the pipeline, which may decide how a flow is spaced.
    """
    choices = scheduler_choices(config, family)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name="scheduler")
    writer = Writer(graph, "", floats=np.float64)
    inputs = {"scheduler": ir.DataType.STRING, "steps": _INT64, "strength": ir.DataType.DOUBLE}
    if choices.shifts:
        inputs["image_tokens"] = _INT64
    for name, dtype in inputs.items():
        graph.inputs.append(ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(dtype)))
    scheduler, steps, strength, *tokens = (writer.here(value) for value in graph.inputs)
    table = write_table(
        writer, choices, scheduler, steps, strength=strength, tokens=tokens[0] if tokens else None
    )  # fmt: skip
    shapes: dict[str, list[int | str]] = {
        "timesteps": ["calls"], "scale": ["calls"], "picture": ["calls", 2],
        "following": ["calls", 1 + KEPT, len(_TERMS) + KEPT], "draws": ["calls"], "initial": [1], "mixed": [2],
        "clip": [1], "threshold": [2],
    }  # fmt: skip
    for name, shape in shapes.items():
        value = getattr(table, name).value
        value.name, value.shape = name, ir.Shape(shape)
        value.dtype = ir.DataType.BOOL if name == "draws" else _FLOAT
        graph.outputs.append(value)
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="olivelike")
    model.metadata_props[NAMES_KEY] = choices.listed
    return bytes(ir.to_proto(model).SerializeToString())
