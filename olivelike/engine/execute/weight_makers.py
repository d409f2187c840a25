"""The maker of a weight's values: a pass of its component's chain, or a file of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.engine.plan.planner import ancestors
from olivelike.model import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.model.records.run_record import NodeRecord


class WeightMakers:
    """Looks up makers in what the nodes of a chain have made, which all have ended."""

    def __init__(self, node: Node, nodes: Sequence[Node], results: Mapping[str, NodeRecord], inputs: Inputs) -> None:
        """Look at the chain, or the chains, that end at a node which writes."""
        self._node, self._nodes, self._results, self._inputs = node, nodes, results, inputs
        self._tables: dict[str, list[tuple[str, Weights]]] = {}

    def of(self, parameter: str) -> str:
        """Return what gave a parameter its values, such as `pass scale` or `from model.safetensors`; or nothing."""
        component = self._node.component
        if self._node.joins:
            component, _, parameter = parameter.partition("/")
        found = self._tables_of(component)
        for (maker, table), (_, before) in zip(found, [*found[1:], ("", Weights({}))], strict=True):
            if table.get(parameter) != before.get(parameter):
                return maker or self._file(component, table, parameter)
        return ""

    def _tables_of(self, component: str) -> list[tuple[str, Weights]]:
        """Return the tables of a component, the last first, each with the pass that made it; the checkpoint's last."""
        if component not in self._tables:
            chain = ancestors(self._node, self._nodes)
            if self._node.joins:
                end = next(node for node in self._nodes if node.id == self._node.components[component])
                chain = [end, *ancestors(end, self._nodes)]
            store, found = self._inputs.store, []
            for node in chain:
                made = self._results[node.id].outputs
                if "weights" in made and (data := store.read_bytes(made["weights"])) is not None:
                    found.append((f"pass {node.name}" if node.step is not None else "", Weights.from_bytes(data)))
                if "adaptation" in made:
                    found.append(("", self._inputs.weight_table(component, made["adaptation"])))
            self._tables[component] = found
        return self._tables[component]

    def _file(self, component: str, table: Weights, parameter: str) -> str:
        files = {self._inputs.digests[path]: path for path in self._inputs.weight_files(component)}
        path = files.get(table[parameter].file)
        return "" if path is None else f"from {path}"
