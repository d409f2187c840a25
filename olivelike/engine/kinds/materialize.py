"""`materialize`: graph and weights, streamed into a folder of an output."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.engine.execute.stored_tensors import TensorFiles
from olivelike.engine.kinds.kind import Done, Estimate
from olivelike.engine.kinds.model_node import ModelJob, ModelNode
from olivelike.engine.output.output_files import explained, facts_of, write_file
from olivelike.errors import PassError
from olivelike.model.families import TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike.engine.kinds.kind import Assignment, Job, Workbench, Workplace
    from olivelike.engine.plan.node import Node
    from olivelike.sources import PipelineSource

_MEMORY = 120 << 20
"""Resident memory of a process that materialises, before its first tensor, in bytes."""
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class MaterializeJob(ModelJob):
    """Write a component."""

    folder: str
    """An existing folder to write into."""
    file_names: Mapping[str, str]
    """`model_file` and `data_file`, where they are not the usual ones."""
    most_data_bytes: int | None
    """Size of a data file at most."""
    config: Mapping[str, Any] | None
    """The source's `config.json`, for a network whose architecture nobody knows; `None` writes none."""

    def run(self, bench: Workbench) -> Done:
        """Write model, data and config; nothing is stored."""
        from olivelike.engine.output.materialize import materialize
        from olivelike.engine.output.pipeline_files import component_config, to_json

        model = self.read_model(bench)
        if model.graph is None or model.weights is None:
            raise PassError(f"{self.place.component}: its chain makes no graph; put `convert` into it")
        folder = Path(self.folder)
        with explained(folder):
            files = TensorFiles(bench.store, self.weight_files)
            result = materialize(
                model.graph, model.weights, files, folder, bench.progress,
                **self.file_names, most_data_bytes=self.most_data_bytes,
            )  # fmt: skip
            content = to_json(self.config) if self.config else None
            if model.architecture is not None and self.place.component not in TOKENIZERS:
                content = component_config(model.architecture)
            if content is not None:
                write_file(folder / "config.json", content)
                result.files["config.json"] = asdict(facts_of(folder / "config.json"))
        self.check_unchanged()
        return Done(facts=vars(result))


class MaterializeNode(ModelNode):
    """The end of a chain in one output, whose own record says what it holds."""

    job_type = MaterializeJob
    libraries = ("diffusers", "transformers")
    """Configs have their versions."""
    always_reads = ("architecture", "weights", "graph")

    def options(self, node: Node) -> dict[str, Any]:
        """Return the names of the files, and how large they get."""
        limit = node.most_data_bytes
        return {**node.file_names, **({} if limit is None else {"most_data_bytes": limit})}

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:
        """Return the size of the weights behind all passes, and room for the largest tensor."""
        if node.component not in source.checkpoints:  # a tokenizer
            return Estimate(2_000_000, _MEMORY)
        checkpoint = source.checkpoint(node.component)
        scale = math.prod(before.step.instance.resources.weights_scale for before in chain if before.step)
        size = int(checkpoint.elements * _FLOAT_BYTES * scale)
        return Estimate(size, _MEMORY + 3 * _FLOAT_BYTES * checkpoint.largest)

    def job(self, place: Workplace, assignment: Assignment) -> Job:
        """Return what a worker is to do."""
        node, checkpoints = assignment.node, assignment.inputs.source.checkpoints
        config = dict(checkpoints[node.component].config) if node.component in checkpoints else None
        assert assignment.folder is not None
        return MaterializeJob(
            place,
            **self.model_fields(assignment),
            folder=str(assignment.folder),
            file_names=node.file_names,
            most_data_bytes=node.most_data_bytes,
            config=config,
        )
