"""The base of nodes that take the models of several chains together, and the files beside the networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_file
from olivelike.engine.kinds.asset_nodes import ASSETS, objects_of_assets
from olivelike.engine.kinds.model_node import ModelNode, ModelTask, weights_digest
from olivelike.engine.output.asset_table import read_assets
from olivelike.families import TOKENIZERS
from olivelike.model import FACETS, Model, Weights
from olivelike.model.components import PIPELINE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike._untrusted import Json
    from olivelike.engine.kinds.kind import Assignment, Needs, Upstream, Workbench
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.engine.plan.node import Node
    from olivelike.model.architecture import Config
    from olivelike.store import Store


@dataclass(frozen=True)
class JoinedTask(ModelTask):
    """A task that takes several models; facets are called `COMPONENT.FACET`."""

    assets: str
    """Digest of the table of assets."""
    index: Config
    """The source's `model_index.json`."""

    def needs(self, store: Store) -> Needs:
        """Return also the assets."""
        needs = super().needs(store)
        return replace(needs, objects=needs.objects | objects_of_assets(store, self.assets))

    def read_models(self, bench: Workbench) -> dict[str, Model]:
        """Return the models by component."""
        found: dict[str, Json] = {}
        for name, digest in self.facets.items():
            component, _, facet = name.rpartition(".")
            if digest in self.tables:
                value: Any = Weights.from_json(self.tables[digest])
            else:
                value = FACETS[facet].from_bytes(bench.store.require_bytes(digest, f"{component}: its {facet}"))
            found.setdefault(component, {})[facet] = value
        return {component: Model(component, **facets) for component, facets in found.items()}

    def read_assets(self, bench: Workbench) -> dict[str, bytes]:
        """Return the files beside the networks, by relative path."""
        table = read_assets(bench.store.require_bytes(self.assets, f"{self.place.node}: its table of assets"))
        return {path: bench.store.require_bytes(digest, path) for path, digest in table.items()}


class JoinedNode(ModelNode):
    """A node behind several chains and the assets."""

    def files(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[Path, ...]:  # noqa: ARG002
        """Return the files that must be hashed before the node's key is known."""
        return joined_files(node, inputs)

    def facets(self, node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:
        """Return the digest of each facet of each component, and of the files that say what else the pipeline is."""
        return joined_facets(node, upstream, inputs)

    def joined_fields(self, assignment: Assignment) -> Json:
        """Return the fields of a `JoinedTask`."""
        return joined_fields(assignment.node, assignment.upstream, assignment.facets, assignment.inputs)


def joined_files(node: Node, inputs: Inputs) -> tuple[Path, ...]:
    """Return the files with the weights of the components that a node joins."""
    return tuple(path for component in _joined(node) for path in inputs.weight_files(component))


def joined_facets(node: Node, upstream: Upstream, inputs: Inputs) -> dict[str, str]:
    """Return the digest of each facet of the components that a node joins, and of what else the pipeline is."""
    from olivelike.model.scheduler_settings import TABLE

    made = upstream.made
    assets = made[ASSETS] if ASSETS in made else made[f"{PIPELINE}.{ASSETS}"]
    found = {ASSETS: assets, "scheduler defaults": digest_file(TABLE)}
    for component in _joined(node):
        start = f"{component}."
        own = {name.removeprefix(start): digest for name, digest in made.items() if name.startswith(start)}
        found |= {f"{start}{name}": own[name] for name in ("architecture", "graph") if name in own}
        if component not in TOKENIZERS:
            found[f"{start}weights"] = weights_digest(component, own, inputs)
    return found


def joined_fields(node: Node, upstream: Upstream, facets: Mapping[str, str], inputs: Inputs) -> Json:
    """Return the fields of a `JoinedTask` for what `joined_facets` has."""
    networks = [name for name in _joined(node) if name not in TOKENIZERS]
    files = {path for component in networks for path in inputs.weight_files(component)}
    # Merged weights are read from the checkpoint and the LoRAs, whenever they are.
    files |= {lora.file.path for component in networks for lora in inputs.adapters.loras_of(component)}
    files |= {path for component in networks for path in inputs.guide_files(component).values()}
    tables: dict[str, list[Any]] = {}
    for component in networks:
        adaptation = upstream.made.get(f"{component}.adaptation")
        if adaptation is not None:
            bound = inputs.bound_weights(component, adaptation)
            if bound in facets.values():
                tables[bound] = inputs.weight_table(component, adaptation).to_json()
    return {
        "facets": {name: digest for name, digest in facets.items() if "." in name},
        "tables": tables,
        "files": {inputs.digests[path]: str(path) for path in sorted(files)},
        "stamps": {str(path): inputs.digests.stamps[path] for path in sorted(files)},
        "assets": facets[ASSETS],
        "index": dict(inputs.source.index),
    }


def _joined(node: Node) -> list[str]:
    """Return the components that a node joins; a step that draws joins what calibration saw, too."""
    return [component for component in node.components if component != PIPELINE]
