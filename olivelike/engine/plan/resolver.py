"""Resolving nodes: from what is known upstream to a key, and from a key to a stored result.

The same resolver serves `plan`, which asks it about every node and runs nothing, and the executor, which tells
it what each executed node produced. Downstream keys hold the digests of what upstream produced, so equal output
stops a rerun there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from olivelike.digest import digest_file, digest_json
from olivelike.engine.keys.key import Key
from olivelike.engine.keys.makers import code_of, modules_of, pass_key, versions_of
from olivelike.engine.plan.node import ORIGINAL, changes_network
from olivelike.engine.plan.source_digests import FileDigests
from olivelike.errors import DamagedError, SourceError
from olivelike.sources import Adaptation, bind, known_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.engine.plan.additions import Additions
    from olivelike.engine.plan.node import Node
    from olivelike.model import Weights
    from olivelike.sources import PipelineSource
    from olivelike.store import Action, Store
    from olivelike.workflow import LoadedWorkflow

MATERIALIZE_MEMORY = 120 << 20
"""Resident memory of a process that materialises, before its first tensor, in bytes."""


class OutputState(Protocol):
    """Tells whether an output folder already holds what a key stands for."""

    def __call__(self, node: Node, key: str) -> bool:
        """Tell whether the output of a `materialize` node holds the result of `key`."""


@dataclass(frozen=True)
class Resolution:
    """What is known of one node before it runs."""

    key: Key | None
    """`None` while an upstream result is unknown, or when the key can't be computed."""
    action: Action | None = None
    """The stored result, on a hit."""
    done: bool = False
    """True on a hit."""
    problem: str | None = None
    """Why the key can't be computed, so that the node runs each time."""


class Resolver:
    """Keys and results of one workflow's nodes, as they become known."""

    def __init__(
        self,
        workflow: LoadedWorkflow,
        source: PipelineSource,
        additions: Additions,
        store: Store,
        output_state: OutputState,
    ) -> None:
        self._workflow = workflow
        self._source = source
        self._additions = additions
        self._store = store
        self._output_state = output_state
        self._facets: dict[str, dict[str, str]] = {}
        self._originals: dict[str, dict[str, str]] = {}
        self._weights: dict[str, Weights] = {}
        self._bound: dict[str, str] = {}
        self._digests = FileDigests(lambda path: known_digest(path) or store.file_digest(path))

    def resolve(self, node: Node) -> Resolution:
        """Return the node's key and, if there is one, its stored result.

        Its parent must be settled for the key to be known.
        """
        match node.kind:
            case "load":
                return self._look_up(self._load_key(node))
            case "assets":
                return self._look_up(self._assets_key(node))
            case "tokenizer":
                return self._resolve_tokenizer(node)
            case "pass":
                return self._resolve_pass(node)
            case "materialize":
                return self._resolve_materialize(node)

    def settle(self, node: Node, outputs: Mapping[str, str]) -> None:
        """Note what a node produced: digests by facet name."""
        before = self._facets.get(node.parent or "", {})
        self._facets[node.id] = {**before, **outputs}
        if (node.parent or "") in self._originals:
            self._originals[node.id] = self._originals[node.parent or ""]
        elif node.step is not None and changes_network(node.step.instance):
            self._originals[node.id] = before

    def facets(self, node: Node) -> dict[str, str] | None:
        """Return the digests of the facets that a node reads; `None` while its parent is unsettled.

        The weights of a checkpoint are bound when they are first read: that takes the digests of its files.
        """
        if node.parent is None:
            return {}
        known = self._facets.get(node.parent)
        if known is None:
            return None
        found = {name: known[name] for name in _reads(node) if name in known}
        if "weights" in _reads(node) and "weights" not in found:
            found["weights"] = self._bind(node.component, known["adaptation"])
        if "original" in _reads(node):
            found.update(self._original(node, found))
        if node.step is not None and node.step.precision is not None:
            found["precision"] = digest_json(["precision/1", asdict(node.step.precision)])
        if "loras" in _reads(node):
            found["loras"] = self._additions.loras_digest(node.component, self._digests)
        if "embeddings" in _reads(node):
            found["embeddings"] = self._additions.embeddings_digest(node.component, self._digests)
        return found

    def _original(self, node: Node, facets: Mapping[str, str]) -> dict[str, str]:
        """Return the network's facets before any pass changed its weights, where they are not those that it reads."""
        known = self._loaded(node)
        found = {name: known[name] for name in ("architecture", "weights") if name in known}
        if "weights" not in found:
            found["weights"] = self._bind(node.component, known["adaptation"])
        return {f"{ORIGINAL}{name}": digest for name, digest in found.items() if facets.get(name) != digest}

    def _loaded(self, node: Node) -> Mapping[str, str]:
        """Return the digests of a node's facets before any pass changed the network other than by what was added."""
        parent = node.parent or ""
        return self._originals.get(parent) or self._facets.get(parent, {})

    def is_ready(self, node: Node) -> bool:
        """Tell whether `resolve` would answer at once: false while files that it asks about are being hashed."""
        return all(map(self._digests.is_ready, self._files(node)))

    def _files(self, node: Node) -> tuple[Path, ...]:
        """Return the files whose digests decide the facets that a node reads."""
        reads = _reads(node)
        bound = "weights" not in reads or "weights" in self._facets.get(node.parent or "", {})
        if "original" in reads:
            bound = bound and "weights" in self._loaded(node)
        files = () if bound else self._checkpoint_files(node.component)
        return (*files, *self._additions.files(node.component, reads))

    def _checkpoint_files(self, component: str) -> tuple[Path, ...]:
        """Return the weight files of a component; a tokenizer has none."""
        checkpoint = self._source.checkpoints.get(component)
        return tuple(checkpoint.files) if checkpoint is not None else ()

    def bound_weights(self, digest: str) -> Weights | None:
        """Return a weight table that was bound from a checkpoint, by digest; those of passes are in the store."""
        return self._weights.get(digest)

    def file_digests(self, component: str) -> dict[Path, str]:
        """Return the SHA-256 of each checkpoint file of a component; big files are hashed once and remembered."""
        return {path: self._digests[path] for path in self._checkpoint_files(component)}

    def file_digest(self, path: Path) -> str:
        """Return the SHA-256 of a file of the source, or of what comes on top of it."""
        return self._digests[path]

    def stamps(self, node: Node) -> dict[str, list[int]]:
        """Return size in bytes and time in nanoseconds of each source file of a node when its digest was taken."""
        paths = set(self._additions.files(node.component, _reads(node)))
        if {"weights", "original"} & set(_reads(node)):
            paths.update(self._checkpoint_files(node.component))
        return {str(path): self._digests.stamps[path] for path in sorted(paths)}

    def prefetch(self) -> None:
        """Begin to hash the files of the checkpoints and what comes on top of them in the background."""
        paths = {path for checkpoint in self._source.checkpoints.values() for path in checkpoint.files}
        paths.update(path for opened in self._additions.loras for path in opened.files)
        paths.update(opened.path for opened in self._additions.embeddings)
        self._digests.prefetch(paths)

    def _bind(self, component: str, adaptation: str) -> str:
        if component not in self._bound:
            data = self._store.read_bytes(adaptation)
            if data is None:
                raise DamagedError(
                    f"{component}: its adaptation ({adaptation[:12]}) was lost or damaged; run again"
                )
            checkpoint = self._source.checkpoint(component)
            weights = bind(Adaptation.from_bytes(data), checkpoint, self.file_digests(component))
            self._weights[weights.digest] = weights
            self._bound[component] = weights.digest
        return self._bound[component]

    def _load_key(self, node: Node) -> Key:
        facets = {"checkpoint": self._source.checkpoint(node.component).layout_digest}
        return self._key(node, {"component": node.component}, facets)

    def _assets_key(self, node: Node) -> Key:
        try:
            files = {relative: digest_file(path) for relative, path in self._source.extras.items()}
        except OSError as error:
            raise SourceError(
                f"{error.filename} can't be read: {error.strerror}; fetch the source again"
            ) from error
        classes = {name: entry for name, entry in self._source.index.items() if not name.startswith("_")}
        facets = {"assets": digest_json(["assets/1", classes, files])}
        if tokens := self._additions.tokens(self._source):
            facets["tokens"] = digest_json(["tokens/1", tokens])
        return self._key(node, {}, facets)

    def _resolve_tokenizer(self, node: Node) -> Resolution:
        facets = self.facets(node)
        if facets is None:
            return Resolution(None)
        return self._look_up(self._key(node, {"component": node.component}, facets))

    def _resolve_pass(self, node: Node) -> Resolution:
        assert node.step is not None
        instance = node.step.instance
        entry = self._workflow.registry.get(node.step.pass_name)
        facets = self.facets(node)
        if facets is None:
            return Resolution(None)
        target = self._workflow.workflow.target.facts() if "target" in instance.reads else None
        key = pass_key(entry, instance, facets, target)
        return Resolution(None, problem=key) if isinstance(key, str) else self._look_up(key)

    def _resolve_materialize(self, node: Node) -> Resolution:
        facets = self.facets(node)
        if facets is None:
            return Resolution(None)
        key = self._key(node, dict(node.file_names), facets)
        return Resolution(key, done=self._output_state(node, key.digest))

    def _key(self, node: Node, options: dict[str, object], facets: dict[str, str]) -> Key:
        """Return the key of a node that is no pass."""
        modules = modules_of(node, self._source)
        code = code_of(modules)
        assert code.digest is not None, code.uncacheable
        return Key(
            node.kind, code.digest, dict(code.modules), options, facets, tools=versions_of(modules, code)
        )

    def _look_up(self, key: Key) -> Resolution:
        action = self._store.get_action(key.digest)
        return Resolution(key, action, done=action is not None)


def _reads(node: Node) -> tuple[str, ...]:
    """Return the facets that decide a node's result."""
    if node.step is not None:
        return tuple(name for name in node.step.instance.reads if name != "target")
    if node.kind == "tokenizer":
        return ("assets",)
    return ("architecture", "weights", "graph") if node.kind == "materialize" else ()
