"""What a worker does for each kind of node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.digest import canonical_json
from olivelike.engine.execute.job import Done, Job
from olivelike.engine.execute.stored_tensors import StoredTensors, TensorFiles
from olivelike.engine.plan.node import ORIGINAL
from olivelike.errors import DamagedError, PassError, SourceError
from olivelike.model import FACETS, Model, Weights

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from olivelike.pass_api import Pass, Progress
    from olivelike.store import Store
    from olivelike.workflow.passes import PassEntry


def run_job(job: Job, logger: logging.Logger, progress: Progress) -> Done:
    """Run one node.

    Raises:
        OlivelikeError: what the node raised, or what was wrong with its result.
    """
    from olivelike.store import Store

    store = Store.open(Path(job.store))
    match job.kind:
        case "load":
            return _load(job, store)
        case "assets":
            return _normalise_assets(job, store)
        case "tokenizer":
            return _read_tokenizer(job, store)
        case "pass":
            return _run_pass(job, store, logger, progress)
        case "materialize":
            return _materialize(job, store, progress)


def _load(job: Job, store: Store) -> Done:
    described = dict(job.checkpoint or {})
    data: dict[str, bytes] = {}
    if "graph" in described:
        from olivelike.graphs.adopt.onnx_graph import load_onnx

        adaptation, graph = load_onnx(job.component, Path(described["graph"]))
        _check_graph("load", graph.data)
        data["graph"] = graph.to_bytes()
    else:
        from olivelike.sources.names.adapt import adapt

        described["shapes"] = {name: tuple(shape) for name, shape in described["shapes"].items()}
        adaptation = adapt(**described)
        assert adaptation.architecture is not None
        data["architecture"] = adaptation.architecture.to_bytes()
    data["adaptation"] = adaptation.to_bytes()
    outputs = {name: store.put_bytes(value) for name, value in data.items()}
    parts = {outputs[name]: len(value) for name, value in data.items()}
    facts = {"parameters": len(adaptation.names), "unused": list(adaptation.unused)}
    return Done(outputs, parts, facts)


def _normalise_assets(job: Job, store: Store) -> Done:
    from olivelike.engine.output.assets import normalise_assets

    assets = job.assets or {}
    files = {name: Path(path) for name, path in assets["files"].items()}
    contents = normalise_assets(assets["index"], files, assets["tokens"])
    digests = {relative: store.put_bytes(data) for relative, data in contents.items()}
    table = canonical_json(digests)
    outputs = {"assets": store.put_bytes(table)}
    parts = {digests[relative]: len(data) for relative, data in contents.items()}
    return Done(outputs, {**parts, outputs["assets"]: len(table)}, {"files": len(contents)})


def _read_tokenizer(job: Job, store: Store) -> Done:
    from olivelike.engine.output.tokenizer_step import tokenizer_architecture

    table = json.loads(_stored(job, store, job.facets["assets"], "table of assets"))
    files = {
        name: _stored(job, store, digest, name)
        for name, digest in table.items()
        if name.startswith(f"{job.component}/")
    }
    architecture = tokenizer_architecture(job.component, files)
    data = {"architecture": architecture.to_bytes(), "weights": Weights({}).to_bytes()}
    outputs = {name: store.put_bytes(value) for name, value in data.items()}
    return Done(outputs, {outputs[name]: len(value) for name, value in data.items()})


def _run_pass(job: Job, store: Store, logger: logging.Logger, progress: Progress) -> Done:
    from olivelike.engine.execute.stored_memory import StoredCache
    from olivelike.model.targets import find_target
    from olivelike.pass_api import Cache, Context, EmbeddingInput, LoraInput, PrecisionPlan
    from olivelike.workflow.passes import Registry

    entry = Registry.load_pass(job.pass_name, job.plugin, job.rule_plugins)
    instance = entry.cls(**job.options).chosen()
    model = _model(job, store)
    files = {digest: Path(path) for digest, path in job.files.items()}
    with store.scratch() as scratch, StoredTensors(store, files) as tensors:
        target = replace(find_target(job.target["name"]), **job.target) if job.target is not None else None
        loras = tuple(LoraInput(Path(lora["path"]), lora["weight"], lora["adapter"]) for lora in job.loras)
        embeddings = tuple(EmbeddingInput(Path(e["path"]), e["token"]) for e in job.embeddings)
        plan = job.precision or {}
        precision = PrecisionPlan(**{**plan, "float32_operators": tuple(plan.get("float32_operators", ()))})
        context = Context(
            scratch,
            logger,
            tensors,
            progress,
            target,
            precision,
            loras=loras,
            embeddings=embeddings,
            original=_original(job, store, model) if "original" in instance.reads else None,
            cache=StoredCache(store, job.code) if job.code else Cache(),
        )
        check_input(job.pass_name, instance, model)
        result = instance.run(model, context)
    _check_unchanged(job)
    _check_same_pass(job, entry, instance)
    check_result(job.pass_name, instance, model, result)
    return _keep(instance, result, store, tensors, checked_facts(job.pass_name, context.reported))


def _original(job: Job, store: Store, model: Model) -> Model:
    """Return the network as it was loaded; the job names those of its facets that are no longer the model's."""
    named = {
        name.removeprefix(ORIGINAL): digest
        for name, digest in job.facets.items()
        if name.startswith(ORIGINAL)
    }
    facets = {"architecture": model.architecture, "weights": model.weights, **_facets(job, store, named)}
    return Model(job.component, **facets)


def _model(job: Job, store: Store) -> Model:
    return Model(job.component, **_facets(job, store, job.facets))


def _facets(job: Job, store: Store, digests: Mapping[str, str]) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    for name, digest in digests.items():
        if name not in FACETS:
            continue
        text = job.inline.get(digest)
        data = text.encode() if text is not None else _stored(job, store, digest, name)
        facets[name] = FACETS[name].from_bytes(data)
    return facets


def _stored(job: Job, store: Store, digest: str, name: str) -> bytes:
    data = store.read_bytes(digest)
    if data is None:
        raise DamagedError(
            f"{job.node}: its {name} ({digest[:12]}) was lost or damaged; run again to remake it"
        )
    return data


def check_input(name: str, instance: Pass, model: Model) -> None:
    """Refuse to run a pass on a model that lacks what it reads.

    Raises:
        PassError: with the pass and the facet.
    """
    for facet in FACETS:
        if facet in instance.reads and facet not in instance.optional and getattr(model, facet) is None:
            raise PassError(
                f"pass {name} reads the {facet} of {model.component}, and there is none; put a step that makes it "
                "before this one, such as `convert` for a graph"
            )


def check_result(name: str, instance: Pass, before: Model, after: object) -> None:
    """Hold a pass to what it declared.

    Raises:
        PassError: when `after` is no model of the same component, holds a facet of the wrong type, changes a
            facet that the pass does not write, or has an invalid graph.
    """
    if not isinstance(after, Model):
        raise PassError(
            f"pass {name} returned {type(after).__name__}, not a Model; return model.replace(...)"
        )
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
            raise PassError(
                f"pass {name} changed the {facet} without declaring it; add {facet!r} to `writes`"
            )
    if "graph" in instance.writes and after.graph is not None:
        _check_graph(name, after.graph.data)


def checked_facts(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a pass as they come back from JSON.

    Raises:
        PassError: when they hold what JSON can't: sets, arrays, NaN.
    """
    try:
        checked: dict[str, Any] = json.loads(canonical_json(facts))
    except (TypeError, ValueError) as error:
        raise PassError(
            f"pass {name} left facts that JSON can't hold: {error}; use numbers, text, lists, maps"
        ) from error
    return checked


def _check_graph(name: str, data: bytes) -> None:
    import onnx

    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise PassError(f"pass {name} returned a graph that is not valid ONNX: {error}") from error


def _keep(instance: Pass, result: Model, store: Store, tensors: StoredTensors, facts: dict[str, Any]) -> Done:
    outputs: dict[str, str] = {}
    parts: dict[str, int] = {}
    for facet in instance.writes:
        value = getattr(result, facet)
        if value is None:
            continue
        data = value.to_bytes()
        outputs[facet] = store.put_bytes(data)
        parts[outputs[facet]] = len(data)
        if isinstance(value, Weights):
            parts.update({digest: tensors.sizes[digest] for digest in value.files if digest in tensors.sizes})
    return Done(outputs, parts, facts)


def _check_unchanged(job: Job) -> None:
    """Refuse a result whose source was written to since its digest was taken."""
    for path, stamp in job.stamps.items():
        status = Path(path).stat()
        if [status.st_size, status.st_mtime_ns] != stamp:
            raise SourceError(f"{path} changed while it was read; run again when it is complete")


def _check_same_pass(job: Job, entry: PassEntry, instance: Pass) -> None:
    """Refuse the result of a plugin whose code or data was written to since its key was made."""
    if (job.plugin is None and not job.rule_plugins) or not job.code:
        return
    from olivelike.engine.keys.makers import pass_key

    key = pass_key(entry, instance, {}, None)
    if isinstance(key, str) or key.maker != job.code:
        raise PassError(
            f"pass {job.pass_name} changed while it was waiting or running ({entry.module_file}, or what it uses); "
            "run again"
        )


def _materialize(job: Job, store: Store, progress: Progress) -> Done:
    from olivelike.engine.output.materialize import materialize
    from olivelike.engine.output.output_files import explained

    model = _model(job, store)
    if model.graph is None or model.weights is None:
        raise PassError(f"{job.component}: its chain makes no graph; put `convert` into it")
    files = TensorFiles(store, {digest: Path(path) for digest, path in job.files.items()})
    folder = Path(job.folder)
    with explained(folder):
        result = materialize(model.graph, model.weights, files, folder, progress, **job.options)
    _check_unchanged(job)
    return Done(facts=result.to_json())
