"""`one_file`: the ends of all chains put together, and written as one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from olivelike._untrusted import Json
from olivelike.engine.execute.stored_tensors import TensorFiles
from olivelike.engine.kinds.joined import JoinedNode, JoinedTask
from olivelike.engine.kinds.kind import Assignment, Done, Estimate, Needs, Task, Workbench, Workplace
from olivelike.engine.output.output_files import explained
from olivelike.engine.plan.node import Node
from olivelike.model import Graph, Weights
from olivelike.sources import PipelineSource
from olivelike.store import Store

_MEMORY = 200 << 20
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class OneFileTask(JoinedTask):
    """Write a pipeline."""

    folder: str
    """An existing folder to write into."""
    model_file: str
    data_file: str

    def needs(self, store: Store) -> Needs:
        """Return also the folder."""
        return replace(super().needs(store), folder=self.folder, file_names=(self.model_file, self.data_file))

    def run(self, bench: Workbench) -> Done:
        """Write model and data; nothing is stored."""
        from olivelike.engine.output.materialize import materialize
        from olivelike.extras.one_file.pipeline_graph import pipeline_facts, pipeline_graph

        models = self.read_models(bench)
        graphs = {name: model.graph for name, model in models.items() if model.graph is not None}
        architectures = {name: model.architecture for name, model in models.items() if model.architecture is not None}
        tensors = {
            f"{component}/{parameter}": tensor
            for component, model in models.items()
            for parameter, tensor in (model.weights or {}).items()
        }
        facts = pipeline_facts(self.index, self.read_assets(bench), architectures)
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


class OneFileNode(JoinedNode):
    """The end of all chains in one output."""

    task_type = OneFileTask

    def options(self, node: Node) -> Json:
        """Return the names of the files."""
        return node.file_names

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:  # noqa: ARG002
        """Return the size of all weights, and room for the largest tensor."""
        checkpoints = [source.checkpoint(name) for name in node.components if name in source.checkpoints]
        size = sum(checkpoint.elements for checkpoint in checkpoints) * _FLOAT_BYTES
        largest = max((checkpoint.largest for checkpoint in checkpoints), default=0)
        return Estimate(size, _MEMORY + 3 * _FLOAT_BYTES * largest)

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        assert assignment.folder is not None
        fields = {**self.joined_fields(assignment), **assignment.node.file_names}
        return OneFileTask(place, **fields, folder=str(assignment.folder))
