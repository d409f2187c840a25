"""`materialize`: graph and weights, streamed into a folder of an output."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.engine.execute.stored_tensors import TensorFiles
from olivelike.engine.kinds.kind import Done, Estimate
from olivelike.engine.kinds.model_node import ModelNode, ModelTask
from olivelike.engine.output.output_files import explained, facts_of, is_current, write_file
from olivelike.errors import PassError, SourceError
from olivelike.families import TOKENIZERS
from olivelike.model import Weights
from olivelike.model.client_layouts import DEFAULT, LAYOUTS
from olivelike.model.components import MODEL_FILE
from olivelike.model.records.output import LOST, ComponentRecord, OutputRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike._untrusted import Json, JsonView
    from olivelike.engine.keys import Key
    from olivelike.engine.kinds.kind import Assignment, Needs, Task, Workbench, Workplace
    from olivelike.engine.plan.node import Node
    from olivelike.model.architecture import Config
    from olivelike.sources import PipelineSource
    from olivelike.store import Store

_MEMORY = 384 << 20
"""Resident memory of a process that materialises, and of pieces of tensors that are read ahead or wait, in bytes."""
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class MaterializeTask(ModelTask):
    """Write a component."""

    folder: str
    """An existing folder to write into."""
    file_names: Mapping[str, str]
    """`model_file` and `data_file`, where they are not the usual ones."""
    most_data_bytes: int | None
    """Size of a data file at most."""
    config: Config | None
    """The source's `config.json`, for a network whose architecture nobody knows; `None` writes none."""
    earlier: tuple[str, str, JsonView] | None = None
    """Model file of an output that differs in its weights alone, the digest of those, and what its record says."""

    def needs(self, store: Store) -> Needs:
        """Return also the folder."""
        names = {"model_file": MODEL_FILE, "data_file": LAYOUTS[DEFAULT].data_file, **self.file_names}
        return replace(super().needs(store), folder=self.folder, file_names=(names["model_file"], names["data_file"]))

    def elsewhere(self) -> Task:
        """Return the task that derives all anew: an earlier output lies on this machine."""
        return replace(self, earlier=None)

    def run(self, bench: Workbench) -> Done:
        """Write model, data and config; nothing is stored."""
        from olivelike.engine.output.initializers import EarlierNetwork, Initializers
        from olivelike.engine.output.materialize import materialize
        from olivelike.engine.output.pipeline_files import component_config, to_json

        model = self.read_model(bench)
        if model.graph is None or model.weights is None:
            raise PassError(f"{self.place.component}: its chain makes no graph; put `convert` into it")
        folder = Path(self.folder)
        with explained(folder):
            files = TensorFiles(bench.store, self.weight_files)
            earlier = None
            if self.earlier is not None and (known := self._table(bench, self.earlier[1])) is not None:
                with contextlib.suppress(SourceError):  # What can't be read is derived anew.
                    earlier = EarlierNetwork(Initializers(Path(self.earlier[0])), known, **self.earlier[2])
            result = materialize(
                model.graph, model.weights, files, folder, bench.progress,
                **self.file_names, most_data_bytes=self.most_data_bytes, earlier=earlier,
            )  # fmt: skip
            content = to_json(self.config) if self.config else None
            if model.architecture is not None and self.place.component not in TOKENIZERS:
                content = component_config(model.architecture)
            if content is not None:
                write_file(folder / "config.json", content)
                result.files["config.json"] = asdict(facts_of(folder / "config.json"))
        self.check_unchanged()
        return Done(facts=vars(result))

    def _table(self, bench: Workbench, digest: str) -> Weights | None:
        """Return a table of weights; `None` if nobody knows it any more."""
        if digest in self.tables:
            return Weights.from_json(self.tables[digest])
        data = bench.store.read_bytes(digest)
        return None if data is None else Weights.from_bytes(data)


class MaterializeNode(ModelNode):
    """The end of a chain in one output, whose own record says what it holds."""

    task_type = MaterializeTask
    libraries = ("diffusers", "transformers")
    """Configs have their versions."""
    always_reads = ("architecture", "weights", "graph")

    def options(self, node: Node) -> Json:
        """Return the names of the files, and how large they get."""
        limit = node.most_data_bytes
        return {**node.file_names, **({} if limit is None else {"most_data_bytes": limit})}

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:
        """Return the size of the weights behind all passes, and room for what waits and for the largest tensors.

        The very largest is a table, or read by rows: of those, what is written last waits. Others may be taken as a
        whole by two threads, or the one that a textual inversion is added to.
        """
        if node.component not in source.checkpoints:  # a tokenizer
            return Estimate(2_000_000, _MEMORY)
        checkpoint = source.checkpoint(node.component)
        scale = math.prod(before.step.instance.resources.weights_scale for before in chain if before.step)
        size = int(checkpoint.elements * _FLOAT_BYTES * scale)
        grows = any("embeddings" in before.step.instance.reads for before in chain if before.step)
        whole = checkpoint.largest if grows else checkpoint.second_largest
        return Estimate(size, _MEMORY + checkpoint.largest + 3 * _FLOAT_BYTES * whole)

    def surely_runs(self, node: Node, key: Key, record: OutputRecord | None) -> bool:
        """Tell whether the output holds nothing that the same code made of other weights, or of these."""
        return _recorded(node, key, record) is None

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        node, inputs = assignment.node, assignment.inputs
        checkpoints = inputs.source.checkpoints
        config = dict(checkpoints[node.component].config) if node.component in checkpoints else None
        assert assignment.folder is not None
        fields = self.model_fields(assignment)
        earlier = _earlier(assignment)
        adaptation = assignment.upstream.made.get("adaptation")
        if earlier is not None and adaptation is not None:  # The earlier weights may be those without a LoRA.
            bound = inputs.bound_weights(node.component, adaptation)
            fields["tables"] = {bound: inputs.weight_table(node.component, adaptation).to_json()}
        return MaterializeTask(
            place,
            **fields,
            folder=str(assignment.folder),
            file_names=node.file_names,
            most_data_bytes=node.most_data_bytes,
            config=config,
            earlier=earlier,
        )


def _earlier(assignment: Assignment) -> tuple[str, str, JsonView] | None:
    """Return what lies in the output if the same code made it, of all the same but the weights."""
    output, key, component = assignment.node.output, assignment.key, assignment.node.component
    before = OutputRecord.read(output.path) if output is not None and assignment.reuse else None
    record = None if key is None else _recorded(assignment.node, key, before)
    if output is None or before is None or record is None:
        return None
    model = before.find_model_file(component)
    if model is None or not is_current(output.path, before, before.component_files(component), assignment.inputs.store):
        return None
    lost = {kind: getattr(record, kind) for kind in LOST}
    return str(output.path / model), record.facets["weights"], {"derivations": record.derivations, "lost": lost}


def _recorded(node: Node, key: Key, before: OutputRecord | None) -> ComponentRecord | None:
    """Return what a record has of the node's component, if the key made it, or the same one of other weights."""
    record = before.components.get(node.component) if before is not None else None
    if record is None:
        return None
    same_but_weights = replace(key, facets={**key.facets, "weights": record.facets.get("weights", "")})
    return record if same_but_weights.digest == record.key else None
