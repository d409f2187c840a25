"""`load`: what a stored network means, by its form alone; another checkpoint of the same form is a hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike._extras import needed
from olivelike.engine.kinds.kind import Kind, Task
from olivelike.errors import SourceError
from olivelike.graphs.shelf import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from olivelike._untrusted import Json
    from olivelike.engine.kinds.kind import Assignment, Done, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.model.architecture import Config
    from olivelike.sources import Adaptation, PipelineSource


@dataclass(frozen=True)
class LoadTask(Task):
    """Ask diffusers and transformers what a checkpoint is: the arguments of `adapt`."""

    library: str
    class_name: str
    config: Config
    shapes: Mapping[str, list[int]]
    original: str | None
    file: str
    """The first weight file, for messages."""

    def run(self, bench: Workbench) -> Done:
        """Make `architecture` and `adaptation`. Raises `SourceError` naming the file if it does not fit its config."""
        from olivelike.sources.names.adapt import adapt

        shapes = {name: tuple(shape) for name, shape in self.shapes.items()}
        component = self.place.component
        try:
            found = adapt(component, self.library, self.class_name, self.config, shapes, self.original)
        except SourceError as error:
            raise SourceError(f"{self.file}: {error}") from error
        return bench.keep(_made(found), load_facts(found))


def _made(found: Adaptation) -> dict[str, bytes]:
    return {"architecture": found.network.to_bytes(), "adaptation": found.to_bytes()}


def load_facts(found: Adaptation) -> Json:
    """Return what a record says of a checkpoint that was read."""
    return {"parameters": len(found.names), "unused": list(found.unused)}


_ADOPT = ("TASKS", "AdoptTask", "a source of ONNX models that another exporter made")


class LoadNode(Kind):
    """The beginning of a network's chain."""

    task_type = LoadTask

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:  # noqa: ARG002
        """Return the digest of the checkpoint's form."""
        return {"checkpoint": inputs.source.checkpoint(node.component).layout_digest}

    def shelved(self, node: Node, upstream: Upstream, inputs: Inputs) -> Answer | None:  # noqa: ARG002
        """Return architecture and names of a published network, or of one's own."""
        found = inputs.shelf.adaptation(inputs.source.checkpoint(node.component))
        return None if found is None else Answer(_made(found), load_facts(found))

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return what is made of a source of this sort."""
        graph = inputs.source.checkpoint(node.component).graph
        made = frozenset({"adaptation", "architecture" if graph is None else "graph"})
        return made, made

    def work(self, node: Node, source: PipelineSource) -> Callable[..., Any]:
        """Return what reads a source of this sort."""
        return self.task_type.run if source.checkpoint(node.component).graph is None else needed(*_ADOPT).run

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        checkpoint = assignment.inputs.source.checkpoint(place.component)
        if checkpoint.graph is not None:
            adopt: Callable[..., Task] = needed(*_ADOPT)
            return adopt(place, str(checkpoint.graph))
        shapes = {name: list(shape) for name, shape in checkpoint.shapes.items()}
        file = min(map(str, (path for _, path in checkpoint.tensors.values())), default="")
        return LoadTask(
            place, checkpoint.library, checkpoint.class_name, dict(checkpoint.config), shapes, checkpoint.original, file
        )
