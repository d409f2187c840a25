"""The base of nodes that take a component's model: its facets, and the files that its weights lie in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import Json
from olivelike.engine.keys import CONTENT, embeddings_digest, guides_digest, loras_digest
from olivelike.engine.kinds.kind import Kind, Needs, Task
from olivelike.errors import SourceError
from olivelike.model import FACETS, Model, Weights
from olivelike.pass_api.pass_class import GUIDES_READ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.engine.kinds.kind import Assignment, Upstream, Workbench
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.store import Store

ORIGINAL = "original."
"""Stands before the name of a facet that a node reads as it was loaded, where passes have changed it since."""


@dataclass(frozen=True)
class ModelTask(Task):
    """A task that takes a model."""

    facets: Mapping[str, str]
    """Digest of each facet that the node reads, by name; those as loaded behind `original.`."""
    tables: Mapping[str, list[Any]]
    """Weights of the checkpoint, by digest: tables that are in no store."""
    files: Mapping[str, str]
    """Path of each source file that holds weights, by digest."""
    stamps: Mapping[str, list[int]]
    """Size in bytes and time in nanoseconds of each source file when its digest was taken, or before, by path."""

    @property
    def weight_files(self) -> dict[str, Path]:
        """Path of each source file that holds weights, by digest."""
        return {digest: Path(path) for digest, path in self.files.items()}

    def read_model(self, bench: Workbench) -> Model:
        """Return the model that the node reads."""
        return Model(self.place.component, **self._facets(bench, self.facets))

    def read_original(self, bench: Workbench, model: Model) -> Model:
        """Return the network as it was loaded; the task names those of its facets that are no longer the model's."""
        named = {
            name.removeprefix(ORIGINAL): digest for name, digest in self.facets.items() if name.startswith(ORIGINAL)
        }
        facets = {"architecture": model.architecture, "weights": model.weights, **self._facets(bench, named)}
        return Model(self.place.component, **facets)

    def needs(self, store: Store) -> Needs:
        """Return facets and merged tensors that are stored, and the files of source and adapters."""
        objects: set[str] = set()
        for name, digest in self.facets.items():
            data = None if digest in self.tables else store.read_bytes(digest)
            if data is not None:  # Some digests are of things that are nowhere stored.
                objects.add(digest)
                if name.endswith("weights"):
                    objects |= Weights.from_bytes(data).files - self.files.keys()
        return Needs(frozenset(objects), tuple(self.stamps))

    def check_unchanged(self) -> None:
        """Refuse a result whose source was written to since its digest was taken, or the task was planned.

        Raises `SourceError` naming the file.
        """
        for path, stamp in self.stamps.items():
            status = Path(path).stat()
            if [status.st_size, status.st_mtime_ns] != stamp:
                raise SourceError(f"{path} changed while it was read; run again when it is complete")

    def _facets(self, bench: Workbench, digests: Mapping[str, str]) -> Json:
        return {
            name: Weights.from_json(self.tables[digest])
            if digest in self.tables
            else FACETS[name].from_bytes(bench.store.require_bytes(digest, f"{self.place.node}: its {name}"))
            for name, digest in digests.items()
            if name in FACETS
        }


class ModelNode(Kind):
    """A node behind the beginning of a chain.

    A checkpoint's weights are bound when they are first read: that takes the digests of its files, which are hashed
    while nodes run that need the architecture alone.
    """

    def files(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[Path, ...]:
        """Return the files that must be hashed before the node's key is known."""
        reads = self.reads(node)
        bound = "weights" not in reads or "weights" in upstream.made
        if "original" in reads:
            bound = bound and "weights" in _as_loaded(upstream)
        files = () if bound else inputs.weight_files(node.component)
        return (*files, *inputs.adapter_files(node.component, reads))

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:
        """Return the digest of all that the node reads, by name."""
        reads, component = self.reads(node), node.component
        found = super().facets(node, upstream, inputs)
        if "weights" in reads:
            found["weights"] = weights_digest(component, upstream.made, inputs)
        if "original" in reads:
            loaded = _as_loaded(upstream)
            network = {"weights": weights_digest(component, loaded, inputs)}
            if "architecture" in loaded:
                network["architecture"] = loaded["architecture"]
            found |= {f"{ORIGINAL}{name}": d for name, d in network.items() if found.get(name) != d}
        if "loras" in reads:
            loras = inputs.adapters.loras_of(component)
            found["loras"] = loras_digest(
                ([inputs.digests[path] for path in lora.files], lora.lora.weight_of(component), lora.lora.adapter)
                for lora in loras
            )
        if "embeddings" in reads:
            embeddings = inputs.adapters.embeddings_of(component)
            found["embeddings"] = embeddings_digest((one.token, inputs.digests[one.path]) for one in embeddings)
        if guides := inputs.guide_files(component, reads):
            found[GUIDES_READ] = guides_digest({key: inputs.digests[path] for key, path in guides.items()})
        return found

    def behind(self, node: Node, inputs: Inputs) -> dict[str, dict[str, Json]]:
        """Return the LoRAs and the textual inversions that the node reads."""
        reads, component, found = self.reads(node), node.component, dict[str, dict[str, Json]]()
        if "loras" in reads:
            found["loras"] = {
                one.file.path.name: {
                    "weight": one.lora.weight_of(component),
                    "adapter": one.lora.adapter,
                    CONTENT: [inputs.digests[path] for path in one.files],
                }
                for one in inputs.adapters.loras_of(component)
            }
        if "embeddings" in reads:
            found["embeddings"] = {
                one.token: {CONTENT: inputs.digests[one.path]} for one in inputs.adapters.embeddings_of(component)
            }
        return found

    def model_fields(self, assignment: Assignment) -> Json:
        """Return the fields of a `ModelTask`."""
        node, inputs, upstream = assignment.node, assignment.inputs, assignment.upstream
        reads = self.reads(node)
        takes_weights = bool({"weights", "original"} & set(reads))
        files = {*inputs.weight_files(node.component)} if takes_weights else set()
        if takes_weights:  # Merged weights are read from the checkpoint and the LoRAs, whenever they are.
            files |= {lora.file.path for lora in inputs.adapters.loras_of(node.component)}
            files |= {*inputs.guide_files(node.component).values()}
        tables: dict[str, list[Any]] = {}
        if takes_weights and (adaptation := upstream.made.get("adaptation")) is not None:
            bound = inputs.bound_weights(node.component, adaptation)
            if bound in assignment.facets.values():
                tables[bound] = inputs.weight_table(node.component, adaptation).to_json()
        stamped = {*files, *inputs.adapter_files(node.component, reads)}
        return {
            "facets": assignment.facets,
            "tables": tables,
            "files": {inputs.digests[path]: str(path) for path in sorted(files)},
            "stamps": {str(path): inputs.digests.stamps[path] for path in sorted(stamped)},
        }


def _as_loaded(upstream: Upstream) -> Mapping[str, str]:
    """Return what was made before any pass changed the network other than by what was added."""
    return upstream.original or upstream.made


def weights_digest(component: str, made: Mapping[str, str], inputs: Inputs) -> str:
    """Return the digest of a component's weights: those that were made, or the checkpoint's."""
    return made["weights"] if "weights" in made else inputs.bound_weights(component, made["adaptation"])
