"""`load` of an ONNX source: the model file itself, written anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from olivelike.engine.kinds.kind import Done, Needs, Task, Workbench, check_graph
from olivelike.engine.kinds.load import load_facts
from olivelike.store import Store


@dataclass(frozen=True)
class AdoptTask(Task):
    """Read the model file of an ONNX source."""

    graph: str

    def needs(self, store: Store) -> Needs:  # noqa: ARG002
        """Return the model file."""
        return Needs(files=(self.graph,))

    def run(self, bench: Workbench) -> Done:
        """Make `graph` and `adaptation`."""
        from olivelike.extras.adopt.onnx_graph import load_onnx

        found, graph = load_onnx(self.place.component, Path(self.graph))
        check_graph("load", graph.data)
        return bench.keep({"graph": graph.to_bytes(), "adaptation": found.to_bytes()}, load_facts(found))
