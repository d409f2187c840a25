"""Running a pass in this process, under the rules that the engine applies in its workers."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from olivelike._untrusted import Json
from olivelike.engine.kinds.step import check_input, check_result, checked_facts
from olivelike.engine.plan.node import changes_network
from olivelike.errors import UsageError
from olivelike.model import Architecture, Model, Weights
from olivelike.model.observations import Observed
from olivelike.model.targets import Precision, Target, find_target
from olivelike.pass_api import Context, Drawing, EmbeddingInput, LoraInput, Pass, PrecisionPlan, Rule
from olivelike.testing.models import LocalModel, LocalTensors, no_progress
from olivelike.workflow.passes.registry import FUSE, Registry, RuleEntry, built_in_passes

_NETWORK = ("architecture", "weights")


def run_pass(
    tested: Pass | type[Pass],
    model: Model,
    *,
    target: str | Target | None = None,
    precision: PrecisionPlan | Precision | None = None,
    loras: Sequence[LoraInput] = (),
    embeddings: Sequence[EmbeddingInput] = (),
    guides: Mapping[str, Path] = MappingProxyType({}),
    calibration: Mapping[str, Observed] | None = None,
    drawing: Drawing | None = None,
    **options: Any,
) -> LocalModel:
    """Run a pass on a model, and hold it to what it declared.

    As in a run, options travel as JSON, the pass sees the target only if it reads `target`, and its scratch folder is
    gone afterwards. Raises `PassError` when the pass fails, changes a facet that it did not declare, or returns an
    invalid graph, and `UsageError` when the pass reads a target and there is none, or options come with an instance.

    Args:
        tested: The pass: an instance, or the class with its options as keywords.
        model: What it works on. Weights are read through a `LocalModel`'s tensors.
        target: A target, or the name of one; needed if the pass reads `target`.
        precision: What later steps would convert the graph to, for a pass that reads `precision`; by default what the
            target is best at, with known overflows left in float32.
        loras: LoRAs, for a pass that reads `loras`.
        embeddings: Textual inversions, for a pass that reads `embeddings`.
        guides: Files of guides by key, for a pass that reads `guides`; the model's `tensors` have them.
        calibration: What was seen of the graph's values, for a pass that reads `calibration`.
        drawing: What draws with other graphs, for a pass that reads `drawing`.
        options: Options of the pass, if `tested` is a class.

    Returns:
        The result; its `facts` are what the pass left for the run record, and it can be the next pass's model.
    """
    instance = _instance(tested, options)
    name = type(instance).name()
    tensors = model.tensors if isinstance(model, LocalModel) else LocalTensors()
    loaded = Model(model.component, model.architecture, model.weights)
    original = model.original if isinstance(model, LocalModel) else loaded
    check_input(name, instance, model)
    with tempfile.TemporaryDirectory(prefix="olivelike-scratch-") as scratch:
        context = Context(
            Path(scratch),
            logging.getLogger(f"olivelike.testing.{name}"),
            tensors,
            no_progress,
            _target(instance, target),
            _precision(instance, target, precision),
            tuple(loras) if "loras" in instance.reads else (),
            tuple(embeddings) if "embeddings" in instance.reads else (),
            guides if "guides" in instance.reads else {},
            original if "original" in instance.reads else None,
            calibration if "calibration" in instance.reads else None,
            drawing if "drawing" in instance.reads else None,
        )
        result = instance.run(model, context)
    check_result(name, instance, model, result)
    return LocalModel(
        result.component,
        result.architecture,
        result.weights,
        result.graph,
        tensors,
        checked_facts(name, context.reported),
        _original(instance, original, model, result),
    )


def fuse_with(
    rules: Sequence[Rule],
    model: Model,
    *,
    target: str | Target,
    precision: PrecisionPlan | Precision | None = None,
    **options: bool,
) -> LocalModel:
    """Run `fuse` with more rules, as a workflow that lists their plugins would.

    Raises `PluginError` for a rule whose name is taken, or that runs before none, and `PassError` when a rule leaves a
    graph that is not valid.

    Args:
        rules: Those that are tested.
        model: With its graph, in float32.
        target: What to fuse for.
        precision: As `run_pass` takes it.
        options: Rules to switch on or off, by name.
    """
    added = [RuleEntry(rule, "this test", rule.apply.__module__) for rule in rules]
    cls = Registry([*built_in_passes(), *added]).get(FUSE).cls
    return run_pass(cls(**options), model, target=target, precision=precision)


def _original(instance: Pass, original: Model, before: Model, after: Model) -> Model:
    """Return the network that a result is right by; what a workflow adds to a checkpoint becomes part of it."""
    as_loaded = all(_same(getattr(original, name), getattr(before, name)) for name in _NETWORK)
    if changes_network(instance) or not as_loaded:
        return original
    return Model(after.component, after.architecture, after.weights)


def _same(first: Architecture | Weights | None, second: Architecture | Weights | None) -> bool:
    return (first and first.digest) == (second and second.digest)


def _instance(tested: Pass | type[Pass], options: Json) -> Pass:
    if isinstance(tested, type):
        tested = tested(**options)
    elif options:
        raise UsageError(f"give the options to {type(tested).__name__} itself: {', '.join(options)}")
    return type(tested)(**json.loads(json.dumps(tested.model_dump(mode="json")))).chosen()


def _precision(
    instance: Pass, target: str | Target | None, precision: PrecisionPlan | Precision | None
) -> PrecisionPlan:
    if "precision" not in instance.reads:
        return PrecisionPlan()
    if isinstance(precision, PrecisionPlan):
        return precision
    found = find_target(target) if isinstance(target, str) else target
    return PrecisionPlan(precision or (found.precision if found else "fp32"), known_overflows=True)


def _target(instance: Pass, target: str | Target | None) -> Target | None:
    if "target" not in instance.reads:
        return None
    if target is None:
        raise UsageError(f'pass {instance.name()} reads the target; give one, such as target="cuda"')
    return find_target(target) if isinstance(target, str) else target
