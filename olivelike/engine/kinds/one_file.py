"""`one_file`: the ends of all chains put together, and written as one model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_file
from olivelike.engine.execute.stored_tensors import TensorFiles
from olivelike.engine.kinds.assets import ASSETS, objects_of_assets
from olivelike.engine.kinds.kind import Done, Estimate
from olivelike.engine.kinds.model_node import ModelJob, ModelNode, weights_digest
from olivelike.engine.output.output_files import explained
from olivelike.model import Architecture, Graph, Weights
from olivelike.model.families import TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike.engine.kinds.kind import Assignment, Job, Needs, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.sources import PipelineSource
    from olivelike.store import Store

_MEMORY = 200 << 20
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class OneFileJob(ModelJob):
    """Write a pipeline; facets are called `COMPONENT.FACET`."""

    assets: str
    """Digest of the table of assets."""
    index: Mapping[str, Any]
    """The source's `model_index.json`."""
    folder: str
    """An existing folder to write into."""
    model_file: str
    data_file: str

    def needs(self, store: Store) -> Needs:
        """Return also the assets, and the folder."""
        needs = super().needs(store)
        return replace(needs, objects=needs.objects | objects_of_assets(store, self.assets), folder=self.folder)

    def run(self, bench: Workbench) -> Done:
        """Write model and data; nothing is stored."""
        from olivelike.engine.output.materialize import materialize
        from olivelike.engine.output.pipeline_facts import pipeline_facts
        from olivelike.graphs.one_file.pipeline_graph import pipeline_graph

        graphs: dict[str, Graph] = {}
        architectures: dict[str, Architecture] = {}
        tensors: dict[str, Any] = {}
        for name in self.facets:
            component, _, facet = name.rpartition(".")
            found: Any = self._read(bench, name)
            if facet == "graph":
                graphs[component] = found
            elif facet == "architecture":
                architectures[component] = found
            else:
                tensors |= {f"{component}/{parameter}": tensor for parameter, tensor in found.items()}
        table = json.loads(bench.store.require_bytes(self.assets, f"{self.place.node}: its table of assets"))
        assets = {path: bench.store.require_bytes(digest, path) for path, digest in table.items()}
        facts = pipeline_facts(self.index, assets, architectures)
        graph = Graph.from_ir(pipeline_graph(graphs, facts))
        folder = Path(self.folder)
        with explained(folder):
            files = TensorFiles(bench.store, self.weight_files)
            written = materialize(
                graph, Weights(tensors), files, folder, bench.progress,
                model_file=self.model_file, data_file=self.data_file,
            )  # fmt: skip
        self.check_unchanged()
        return Done(facts=vars(written))

    def _read(self, bench: Workbench, name: str) -> Architecture | Graph | Weights:
        component, _, facet = name.rpartition(".")
        digest = self.facets[name]
        if digest in self.tables:
            return Weights.from_json(self.tables[digest])
        kinds: dict[str, Any] = {"architecture": Architecture, "graph": Graph, "weights": Weights}
        found: Architecture | Graph | Weights = kinds[facet].from_bytes(
            bench.store.require_bytes(digest, f"{component}: its {facet}")
        )
        return found


class OneFileNode(ModelNode):
    """The end of all chains in one output."""

    job_type = OneFileJob
    libraries = ("diffusers",)
    """Schedulers have the defaults of its release."""

    def files(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[Path, ...]:  # noqa: ARG002
        """Return the files that must be hashed before the node's key is known."""
        return tuple(path for component in node.components for path in inputs.weight_files(component))

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:
        """Return the digest of each facet of each component, and of the files that say what else the pipeline is."""
        from olivelike.engine.output.scheduler_defaults import TABLE

        found = {ASSETS: upstream.made[ASSETS], "scheduler defaults": digest_file(TABLE)}
        for component in node.components:
            start = f"{component}."
            made = {name.removeprefix(start): d for name, d in upstream.made.items() if name.startswith(start)}
            found |= {f"{start}{name}": made[name] for name in ("architecture", "graph") if name in made}
            if component not in TOKENIZERS:
                found[f"{start}weights"] = weights_digest(component, made, inputs)
        return found

    def options(self, node: Node) -> dict[str, Any]:
        """Return the names of the files."""
        return node.file_names

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:  # noqa: ARG002
        """Return the size of all weights, and room for the largest tensor."""
        checkpoints = [source.checkpoint(name) for name in node.components if name in source.checkpoints]
        size = sum(checkpoint.elements for checkpoint in checkpoints) * _FLOAT_BYTES
        largest = max((checkpoint.largest for checkpoint in checkpoints), default=0)
        return Estimate(size, _MEMORY + 3 * _FLOAT_BYTES * largest)

    def job(self, place: Workplace, assignment: Assignment) -> Job:
        """Return what a worker is to do."""
        node, inputs, upstream = assignment.node, assignment.inputs, assignment.upstream
        networks = [name for name in node.components if name not in TOKENIZERS]
        files = {path for component in networks for path in inputs.weight_files(component)}
        # Merged weights are read from the checkpoint and the LoRAs, whenever they are.
        files |= {lora.file.path for component in networks for lora in inputs.adapters.loras_of(component)}
        tables: dict[str, list[Any]] = {}
        for component in networks:
            adaptation = upstream.made.get(f"{component}.adaptation")
            if adaptation is not None:
                bound = inputs.bound_weights(component, adaptation)
                if bound in assignment.facets.values():
                    tables[bound] = inputs.weight_table(component, adaptation).to_json()
        assert assignment.folder is not None
        return OneFileJob(
            place,
            facets={name: digest for name, digest in assignment.facets.items() if "." in name},
            tables=tables,
            files={inputs.digests[path]: str(path) for path in sorted(files)},
            stamps={str(path): inputs.digests.stamps[path] for path in sorted(files)},
            assets=assignment.facets[ASSETS],
            index=dict(inputs.source.index),
            folder=str(assignment.folder),
            **node.file_names,
        )
