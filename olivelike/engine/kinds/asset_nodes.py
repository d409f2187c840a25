"""`assets`: the files beside the networks, brought up to date; `tokenizer`: one of their tokenizers as a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.digest import canonical_json, digest_file, digest_json
from olivelike.engine.keys import assets_digest, tokens_digest
from olivelike.engine.kinds.kind import Estimate, Kind, Needs, Task
from olivelike.engine.output.asset_table import SCHEDULER_MODEL, read_assets
from olivelike.errors import SourceError
from olivelike.families import family_of_folder
from olivelike.model import Weights
from olivelike.model.few_steps import FewSteps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike._untrusted import Json, JsonView
    from olivelike.engine.kinds.kind import Assignment, Done, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.model.architecture import Config
    from olivelike.sources import PipelineSource
    from olivelike.store import Store

_MEMORY = 480 << 20
"""Memory of the libraries that some files are left to; those of published pipelines take 90 MB."""
ASSETS = "assets"
"""Name of the table of these files among what nodes make: a map from relative path to digest."""


@dataclass(frozen=True)
class AssetsTask(Task):
    """Bring tokenizers, scheduler and feature extractor up to date."""

    index: Config
    """The source's `model_index.json`."""
    files: Mapping[str, str]
    """Path of each file, by relative path."""
    tokens: Mapping[str, JsonView]
    """Tokens that tokenizers get, by their folder: see `Adapters.tokens`."""
    few_steps: JsonView | None = None
    """Kind of few-step model that the networks are: fields of a `FewSteps`."""
    scheduler_model: bool = False
    """Whether schedules are there as a graph, too."""

    def needs(self, store: Store) -> Needs:  # noqa: ARG002
        """Return the files."""
        return Needs(files=tuple(self.files.values()))

    def run(self, bench: Workbench) -> Done:
        """Make the table of assets."""
        from olivelike.engine.output.assets import normalise_assets

        files = {name: Path(path) for name, path in self.files.items()}
        few_steps = None if self.few_steps is None else FewSteps(**self.few_steps)
        contents = normalise_assets(self.index, files, self.tokens, few_steps)
        if self.scheduler_model:
            from olivelike.engine.output.scheduler_model import file_of_schedules

            contents[SCHEDULER_MODEL] = file_of_schedules(contents, family_of_folder(self.index, (), {}))
        kept = bench.keep(contents)
        table = bench.keep({ASSETS: canonical_json(kept.outputs)}, {"files": len(contents)})
        return replace(table, parts={**kept.parts, **table.parts})


class AssetsNode(Kind):
    """The files beside the networks, of the whole pipeline."""

    task_type = AssetsTask
    libraries = ("tokenizers",)

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:  # noqa: ARG002
        """Return the digest of the files, of the schedulers' defaults, and of what is added to tokenizers and files."""
        from olivelike.model.scheduler_settings import TABLE

        source = inputs.source
        try:
            files = {relative: digest_file(path) for relative, path in source.extras.items()}
        except OSError as error:
            raise SourceError(f"{error.filename} can't be read: {error.strerror}; fetch the source again") from error
        tokens = inputs.adapters.tokens(source)
        added = {"tokens": tokens_digest(tokens)} if tokens else {}
        if source.few_steps is not None:
            added["few steps"] = digest_json(["few steps/1", source.few_steps.scheduler_config({})])
        if inputs.workflow.workflow.scheduler_model:
            added["scheduler model"] = "1"
        return {ASSETS: assets_digest(source.index, files), "scheduler defaults": digest_file(TABLE), **added}

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return the table."""
        return frozenset({ASSETS}), frozenset({ASSETS})

    def options(self, node: Node) -> Json:  # noqa: ARG002
        """Return nothing: there is one such node."""
        return {}

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:  # noqa: ARG002
        """Return what a few small files cost."""
        return Estimate(4_000_000, _MEMORY)

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        source = assignment.inputs.source
        files = {relative: str(path) for relative, path in source.extras.items()}
        few_steps = None if source.few_steps is None else asdict(source.few_steps)
        tokens, workflow = assignment.inputs.adapters.tokens(source), assignment.inputs.workflow.workflow
        return AssetsTask(place, dict(source.index), files, tokens, few_steps, workflow.scheduler_model)


@dataclass(frozen=True)
class TokenizerTask(Task):
    """Take a tokenizer's vocabulary out of the assets."""

    assets: str

    def needs(self, store: Store) -> Needs:
        """Return the assets."""
        return Needs(objects_of_assets(store, self.assets))

    def run(self, bench: Workbench) -> Done:
        """Make `architecture`, and `weights` without a parameter."""
        from olivelike.engine.output.tokenizer_step import tokenizer_architecture

        component = self.place.component
        table = read_assets(bench.store.require_bytes(self.assets, f"{self.place.node}: its table of assets"))
        files = {
            name: bench.store.require_bytes(digest, f"{self.place.node}: its {name}")
            for name, digest in table.items()
            if name.startswith(f"{component}/")
        }
        architecture = tokenizer_architecture(component, files)
        return bench.keep({"architecture": architecture.to_bytes(), "weights": Weights({}).to_bytes()})


def objects_of_assets(store: Store, assets: str) -> frozenset[str]:
    """Return the digests of a table of assets and of all that it names, as far as they are stored."""
    table = store.read_bytes(assets)
    return frozenset() if table is None else frozenset({assets, *read_assets(table).values()})


class TokenizerNode(Kind):
    """The beginning of a tokenizer's chain."""

    task_type = TokenizerTask
    always_reads = (ASSETS,)

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return a network without a parameter."""
        made = frozenset({"architecture", "weights"})
        return made, made

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        return TokenizerTask(place, assignment.facets[ASSETS])
