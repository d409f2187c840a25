"""`pass`: a step of a chain, run under the rules that a pass declared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import Json, JsonView, parse_json
from olivelike.digest import canonical_json, digest_json
from olivelike.engine.execute.stored_tensors import StoredTensors
from olivelike.engine.keys import Key, pass_key, precision_digest, question_digest
from olivelike.engine.kinds.calibrate import CalibrateNode, CalibrateTask, drawn_by
from olivelike.engine.kinds.joined import joined_facets, joined_fields, joined_files
from olivelike.engine.kinds.kind import Done, Estimate, Needs, check_graph
from olivelike.engine.kinds.model_node import ModelNode, ModelTask
from olivelike.engine.kinds.returned_tensors import check_parameters, check_places, check_weights
from olivelike.engine.plan.node import CALIBRATION, CONVERT, DRAWING, Node
from olivelike.errors import PassError
from olivelike.graphs.shelf import Answer
from olivelike.model import FACETS, Architecture, Model
from olivelike.model.components import PIPELINE
from olivelike.model.targets import Target
from olivelike.pass_api import Cache, Context, Drawing, Pass
from olivelike.workflow.passes import PassEntry, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike.engine.kinds.kind import Assignment, Task, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.model.observations import Observed
    from olivelike.sources import PipelineSource
    from olivelike.store import Store
    from olivelike.workflow import Step


@dataclass(frozen=True)
class StepTask(ModelTask):
    """Run a pass."""

    pass_name: str
    plugin: str | None
    rule_plugins: Sequence[str]
    """Plugins that add rules to the pass."""
    maker: str
    """`Key.maker`, for what the pass remembers; empty if it can't be known."""
    options: JsonView
    target: JsonView | None
    """The workflow's choice of target, if the pass reads it: `Target.lowering`."""
    precision: JsonView | None
    """The fields of `PrecisionPlan`, if the pass reads it."""
    loras: Sequence[tuple[str, float, str | None]]
    """The fields of each `LoraInput`, if the pass reads them."""
    embeddings: Sequence[tuple[str, str]]
    """The fields of each `EmbeddingInput`, if the pass reads them."""
    guides: Mapping[str, str] = field(default_factory=dict)
    """Paths of guides that are files by key, if the pass reads them."""
    drawing: JsonView | None = None
    """The fields of a `CalibrateTask` that draws, if the pass reads that; the files' stamps are this task's."""

    def needs(self, store: Store) -> Needs:
        """Return also the plugins that are files, and what drawing needs."""
        plugins = [plugin for plugin in (self.plugin, *self.rule_plugins) if plugin and Path(plugin).is_absolute()]
        needs = replace(super().needs(store), plugins=tuple(plugins))
        if self.drawing is None:
            return needs
        return replace(needs, objects=needs.objects | CalibrateTask(self.place, **self.drawing).needs(store).objects)

    def run(self, bench: Workbench) -> Done:
        """Make the facets that the pass writes."""
        entry = Registry.load_pass(self.pass_name, self.plugin, self.rule_plugins)
        instance = entry.cls(**self.options).chosen()
        model = self.read_model(bench)
        with bench.store.scratch() as scratch, StoredTensors(bench.store, self.weight_files) as tensors:
            context = self._context(bench, instance, model, scratch, tensors)
            check_input(self.pass_name, instance, model)
            result = instance.run(model, context)
        self.check_unchanged()
        self._check_same_pass(entry, instance)
        check_result(self.pass_name, instance, model, result)
        if "weights" in instance.writes and result.weights is not None:
            check_places(self.pass_name, model.weights, result.weights, tensors.sizes, partial(self._size, bench.store))
        facts = checked_facts(self.pass_name, context.reported)
        written = {facet: getattr(result, facet) for facet in instance.writes}
        done = bench.keep({name: value.to_bytes() for name, value in written.items() if value is not None}, facts)
        files = result.weights.files if "weights" in written and result.weights is not None else ()
        return replace(
            done, parts={**done.parts, **{file: tensors.sizes[file] for file in files if file in tensors.sizes}}
        )

    def _size(self, store: Store, digest: str) -> int | None:
        path = self.weight_files.get(digest)
        return store.object_size(digest) if path is None else path.stat().st_size

    def _context(
        self, bench: Workbench, instance: Pass, model: Model, scratch: Path, tensors: StoredTensors
    ) -> Context:
        from olivelike.pass_api import Context, EmbeddingInput, LoraInput, PrecisionPlan

        target = None if self.target is None else Target.lowered(self.target)
        plan = self.precision or {}
        return Context(
            scratch,
            bench.logger,
            tensors,
            bench.progress,
            target,
            PrecisionPlan(**{**plan, "float32_operators": tuple(plan.get("float32_operators", ()))}),
            loras=tuple(LoraInput(Path(path), weight, adapter) for path, weight, adapter in self.loras),
            embeddings=tuple(EmbeddingInput(Path(path), token) for path, token in self.embeddings),
            guides={key: Path(path) for key, path in self.guides.items()},
            original=self.read_original(bench, model) if "original" in instance.reads else None,
            calibration=self._observed(bench),
            drawing=self._drawing(bench, scratch / DRAWING),
            cache=StoredCache(bench.store, self.maker) if self.maker else Cache(),
        )

    def _observed(self, bench: Workbench) -> Mapping[str, Observed] | None:
        from olivelike.model.observations import from_bytes

        digest = self.facets.get(CALIBRATION)
        return (
            None if digest is None else from_bytes(bench.store.require_bytes(digest, f"{self.place.node}: its ranges"))
        )

    def _drawing(self, bench: Workbench, folder: Path) -> Drawing | None:
        if self.drawing is None:
            return None
        from olivelike.engine.calibration import TrialDrawing

        folder.mkdir()
        # Pictures are no unit of what the pass tells progress of.
        pipeline = CalibrateTask(self.place, **self.drawing).pipeline(bench, lambda *_: None)
        return TrialDrawing(pipeline, self.place.component, self.facets[DRAWING], folder)

    def _check_same_pass(self, entry: PassEntry, instance: Pass) -> None:
        """Refuse the result of a plugin whose code or data was written to since its key was made."""
        if (self.plugin is None and not self.rule_plugins) or not self.maker:
            return
        key = pass_key(entry, instance, {}, None)
        if isinstance(key, str) or key.maker != self.maker:
            raise PassError(
                f"pass {self.pass_name} changed while it was waiting or running ({entry.module_file}, or what it "
                "uses); run again"
            )


class StoredCache(Cache):
    """Answers under the digest of a pass's code and the question; what the store loses is asked again."""

    def __init__(self, store: Store, maker: str) -> None:
        """Serve one pass; `maker` is the digest of its code and tools."""
        self._store, self._maker = store, maker

    def get(self, question: Any) -> Any:
        """Return the answer to a question, or `None`."""
        return self._store.recall_json("memory", question_digest(self._maker, question))

    def put(self, question: Any, answer: Any) -> None:
        """Keep an answer."""
        self._store.remember_json("memory", question_digest(self._maker, question), answer)


def check_input(name: str, instance: Pass, model: Model) -> None:
    """Refuse to run a pass on a model that lacks what it reads. Raises `PassError` with the pass and the facet."""
    for facet in FACETS:
        if facet in instance.reads and facet not in instance.optional and getattr(model, facet) is None:
            raise PassError(
                f"pass {name} reads the {facet} of {model.component}, and there is none; put a step that makes it "
                "before this one, such as `convert` for a graph"
            )


def check_result(name: str, instance: Pass, before: Model, after: object) -> None:
    """Hold a pass to what it declared.

    Raises `PassError` when `after` is no model of the same component, holds a facet of the wrong type, changes a facet
    that the pass does not write, has an invalid graph, or weights that do not fit the network.
    """
    if not isinstance(after, Model):
        kind = type(after)
        found = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise PassError(f"pass {name} returned {found}, not olivelike's Model; return model.replace(...)")
    if after.component != before.component:
        raise PassError(f"pass {name} renamed component {before.component!r} to {after.component!r}")
    for facet, cls in FACETS.items():
        value, old = getattr(after, facet), getattr(before, facet)
        if value is not None and not isinstance(value, cls):
            raise PassError(f"pass {name} put {type(value).__name__} in place of the {facet}")
        if facet in instance.writes:
            if value is None and old is not None:
                raise PassError(f"pass {name} dropped the {facet}; return model.replace({facet}=...)")
            continue
        if (None if value is None else value.digest) != (None if old is None else old.digest):
            raise PassError(f"pass {name} changed the {facet} without declaring it; add {facet!r} to `writes`")
    if "graph" in instance.writes and after.graph is not None:
        check_graph(name, after.graph.data)
        if "weights" not in instance.writes and before.graph is not None:
            check_parameters(name, before.graph, after.graph)
    if "weights" in instance.writes and after.weights is not None:
        check_weights(name, instance, before.weights, after.weights, after.graph)


def checked_facts(name: str, facts: Json) -> Json:
    """Return the facts of a pass as they come back from JSON.

    Raises `PassError` when they hold what JSON can't: sets, arrays, NaN.
    """
    try:
        checked: Json = parse_json(canonical_json(facts))
    except (TypeError, ValueError) as error:
        raise PassError(
            f"pass {name} left facts that JSON can't hold: {error}; use numbers, text, lists, maps"
        ) from error
    return checked


class StepNode(ModelNode):
    """A step of a chain."""

    task_type = StepTask

    def reads(self, node: Node) -> tuple[str, ...]:
        """Return what the pass reads; facts of the target are in the key beside the digests."""
        return tuple(name for name in _step(node).instance.reads if name != "target")

    def files(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[Path, ...]:
        """Return also the files of all that draws."""
        drawn = joined_files(node, inputs) if DRAWING in self.reads(node) else ()
        return (*super().files(node, upstream, inputs), *drawn)

    def key(self, node: Node, facets: dict[str, str], inputs: Inputs) -> Key | str:
        """Return the key of the step."""
        step, workflow = _step(node), inputs.workflow
        target = workflow.workflow.target.facts() if "target" in step.instance.reads else None
        return pass_key(workflow.registry.get(step.pass_name), step.instance, facets, target)

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:
        """Return the digest of all that the step reads, by name."""
        found, plan = super().facets(node, upstream, inputs), _step(node).precision
        if CALIBRATION in self.reads(node):
            found[CALIBRATION] = upstream.made[f"{PIPELINE}.{CALIBRATION}.{node.component}"]
        if DRAWING in self.reads(node):
            found[DRAWING] = digest_json(["drawing/1", joined_facets(node, upstream, inputs), drawn_by(node)])
        return found if plan is None else {**found, "precision": precision_digest(plan)}

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return what the pass writes: all that it reads too, and what nothing before it has made."""
        step = _step(node).instance
        known = {*upstream.made, *(("weights",) if "adaptation" in upstream.made else ())}
        must = {
            name
            for name in step.writes
            if (name not in known if name not in step.reads else name in known or name not in step.optional)
        }
        return frozenset(must), frozenset(step.writes)

    def shelved(self, node: Node, upstream: Upstream, inputs: Inputs) -> Answer | None:
        """Return the graph of a published architecture, or of one's own, unless a fresh one is asked for."""
        options = _step(node).instance.model_dump()
        if node.name != CONVERT or options.get("fresh") or options.get("any_size"):
            return None
        data = inputs.content(upstream.made["architecture"], f"{node.component}: its architecture")
        graph = inputs.shelf.graph(Architecture.from_bytes(data))
        return None if graph is None else Answer({"graph": graph})

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:
        """Return what the pass says of itself, and what drawing takes if it draws."""
        memory = _step(node).instance.resources.memory_bytes
        if DRAWING in self.reads(node):
            memory = max(memory, CalibrateNode().estimate(node, chain, source).memory_bytes)
        return Estimate(2_000_000, memory)

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        step, inputs, key = _step(assignment.node), assignment.inputs, assignment.key
        entry = inputs.workflow.registry.get(step.pass_name)
        reads = step.instance.reads
        loras = inputs.adapters.loras_of(place.component) if "loras" in reads else ()
        embeddings = inputs.adapters.embeddings_of(place.component) if "embeddings" in reads else ()
        fields, drawing = self.model_fields(assignment), None
        if DRAWING in reads:
            node, upstream = assignment.node, assignment.upstream
            drawing = joined_fields(node, upstream, joined_facets(node, upstream, inputs), inputs)
            fields["stamps"] = {**fields["stamps"], **drawing["stamps"]}
            drawing |= {"stamps": {}, "settings": drawn_by(node), "observed": ()}
        return StepTask(
            place,
            **fields,
            drawing=drawing,
            pass_name=entry.name,
            plugin=entry.plugin,
            rule_plugins=entry.rule_plugins,
            maker=key.maker if key is not None else "",
            options=step.instance.model_dump(mode="json"),
            target=inputs.workflow.workflow.target.lowering() if "target" in reads else None,
            precision=None if step.precision is None else asdict(step.precision),
            loras=[(str(one.file.path), one.lora.weight_of(place.component), one.lora.adapter) for one in loras],
            embeddings=[(str(one.path), one.token) for one in embeddings],
            guides={key: str(path) for key, path in inputs.guide_files(place.component, reads).items()},
        )


def _step(node: Node) -> Step:
    assert node.step is not None
    return node.step
