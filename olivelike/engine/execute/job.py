"""What a worker is told, and what it answers: plain JSON, one message a line, never pickled objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from olivelike.engine.plan import Additions
    from olivelike.sources import Checkpoint


@dataclass(frozen=True)
class Job:
    """One node, ready to run in a child process."""

    node: str
    kind: Literal["load", "pass", "materialize", "assets", "tokenizer"]
    component: str
    store: str
    log: str
    pass_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """Those of the pass; for `materialize`, its file names where they are not the usual ones."""
    plugin: str | None = None
    rule_plugins: list[str] = field(default_factory=list)
    """Plugins that add rules to the pass."""
    code: str = ""
    """Digest of the pass's code and tools, for what it remembers; empty if it can't be known."""
    facets: dict[str, str] = field(default_factory=dict)
    """Digest of each facet that the model has, by name."""
    inline: dict[str, str] = field(default_factory=dict)
    """Facets that are not in the store, by digest: weight tables bound from a checkpoint, as JSON text."""
    files: dict[str, str] = field(default_factory=dict)
    """Path of each source file that holds weights, by digest."""
    stamps: dict[str, list[int]] = field(default_factory=dict)
    """Size in bytes and time in nanoseconds of each of those files when its digest was taken, by path."""
    target: dict[str, Any] | None = None
    """What the workflow chose, if the pass reads it: `Target.lowering`."""
    precision: dict[str, Any] | None = None
    """The fields of `PrecisionPlan`, if the pass reads it."""
    loras: list[dict[str, Any]] = field(default_factory=list)
    """The fields of `LoraInput`, if the pass reads them."""
    embeddings: list[dict[str, Any]] = field(default_factory=list)
    """The fields of `EmbeddingInput`, if the pass reads them."""
    checkpoint: dict[str, Any] | None = None
    """For `load`: the arguments of `adapt`; or `graph`, the path of an ONNX file."""
    assets: dict[str, Any] | None = None
    """For `assets`: the source's index, the path of each file by relative path, and tokens to add by component."""
    folder: str = ""
    """For `materialize`: an existing folder to write into."""

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Done:
    """A job's result."""

    outputs: dict[str, str] = field(default_factory=dict)
    """Digest of each facet that the node may write, by name."""
    parts: dict[str, int] = field(default_factory=dict)
    """Size of every object in the store that the result needs, by digest."""
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    memory_before_bytes: int = 0
    """What the worker had resident as it began: imports and what allocators keep of earlier jobs."""


def checkpoint_input(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a worker needs to know of a stored component, as JSON values."""
    if checkpoint.graph is not None:
        return {"component": checkpoint.component, "graph": str(checkpoint.graph)}
    return {
        "component": checkpoint.component,
        "library": checkpoint.library,
        "class_name": checkpoint.class_name,
        "config": dict(checkpoint.config),
        "shapes": {name: list(shape) for name, shape in checkpoint.shapes.items()},
        "original": checkpoint.original,
    }


def lora_inputs(additions: Additions, component: str) -> list[dict[str, Any]]:
    """Return the LoRAs of a component as JSON values."""
    return [
        {
            "path": str(opened.file.path),
            "weight": opened.lora.weight_of(component),
            "adapter": opened.lora.adapter,
        }
        for opened in additions.loras_of(component)
    ]


def embedding_inputs(additions: Additions, component: str) -> list[dict[str, Any]]:
    """Return the textual inversions of a component as JSON values."""
    return [
        {"path": str(opened.path), "token": opened.token} for opened in additions.embeddings_of(component)
    ]
