"""Resolving nodes: from what is known upstream to a key, and from a key to a stored result.

The same resolver serves `plan`, which asks it about every node and runs nothing, and a run, which tells it what each
executed node made. Downstream keys hold the digests of what upstream made, so equal output stops a rerun there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from olivelike.engine.kinds import kind_of
from olivelike.engine.kinds.kind import Assignment, Upstream
from olivelike.engine.plan.node import Node, changes_network
from olivelike.engine.plan.question import Question

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike._untrusted import JsonView
    from olivelike.engine.keys import Key
    from olivelike.engine.output.output_files import OutputStates
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.store import Action


@dataclass(frozen=True)
class Shelved:
    """A node's result that no node has made."""

    outputs: Mapping[str, str]
    """Digest of each thing, by name."""
    contents: Mapping[str, bytes]
    """By name."""
    facts: JsonView


@dataclass(frozen=True)
class Resolution:
    """Key, stored result and reason of one node before it runs."""

    key: Key | None
    """`None` while an upstream result is unknown, or when the key can't be computed."""
    action: Action | None = None
    """The stored result, on a hit."""
    done: bool = False
    """True on a hit."""
    problem: str | None = None
    """Why the key can't be computed, so that the node runs each time."""
    shelved: Shelved | None = None
    """On a miss, what a shelf knows of the result."""
    damage: str = ""
    """Flaw of the stored result, or of a shelf that might have known it."""


class Resolver:
    """Keys and results of one workflow's nodes, as they become known; digests are all that it holds."""

    def __init__(self, inputs: Inputs, outputs: OutputStates) -> None:
        """Know nothing yet; `inputs` is the workflow, opened."""
        self.inputs = inputs
        self._outputs = outputs
        self._behind: dict[str | None, Upstream] = {None: Upstream()}
        """Digests behind each node that has ended."""

    def resolve(self, node: Node) -> Resolution:
        """Return the node's key and, if there is one, its stored result.

        What its parent made must be recorded for the key to be known.
        """
        if self.waits_for(node):
            return Resolution(None)
        facets = self.facets(node)
        assert facets is not None
        key = kind_of(node).key(node, facets, self.inputs)
        if isinstance(key, str):
            return Resolution(None, problem=key)
        key = replace(key, behind=kind_of(node).behind(node, self.inputs))
        if node.output is not None:
            return Resolution(key, done=self._outputs(node, key.digest))
        action, flaw = self.stored(node, key)
        if action is not None:
            return Resolution(key, action, done=True)
        return self._on_shelf(node, key, flaw)

    def is_near(self, node: Node) -> bool:
        """Tell whether what is hashed now is a file that the node asks about, so that its bytes are in memory."""
        upstream = self._upstream(node) or Upstream()
        return any(map(self.inputs.digests.has_begun, kind_of(node).files(node, upstream, self.inputs)))

    def has_output(self, node: Node) -> bool:
        """Tell whether there is a record where a node writes to."""
        return self._outputs.record(node) is not None

    def resolve_ahead(self, node: Node) -> Key | None:
        """Return a key of stand-ins for files that are not hashed yet, if the node runs whatever they hold."""
        upstream, kind = self._upstream(node), kind_of(node)
        if upstream is None:
            return None
        inputs = self.inputs.unhashed
        key = kind.key(node, kind.facets(node, upstream, inputs), inputs)
        if isinstance(key, str) or not kind.surely_runs(node, key, self._outputs.record(node)):
            return None
        return key

    def stored(self, node: Node, key: Key) -> tuple[Action | None, str]:
        """Return the stored result of a node if it answers the node's question, else what is wrong with it."""
        action = self.inputs.store.get_action(key.digest)
        if action is None:
            return None, ""
        flaw = self.question(node, key).flaw(action, self.inputs.store.read_bytes)
        return (action, "") if flaw is None else (None, f"the stored result of {node.id} is wrong: {flaw}")

    def question(self, node: Node, key: Key) -> Question:
        """Return what a record of the node has to answer; the node's key is known."""
        return Question(node, key, self._upstream(node) or Upstream(), self.inputs)

    def _on_shelf(self, node: Node, key: Key, flaw: str) -> Resolution:
        inputs, upstream = self.inputs, self._upstream(node) or Upstream()
        seen = len(inputs.shelf.damages)
        answer = kind_of(node).shelved(node, upstream, inputs)
        damage = "; ".join(filter(None, (flaw, *inputs.shelf.damages[seen:])))
        if answer is None:
            return Resolution(key, damage=damage)
        outputs = dict(zip(answer.made, inputs.know(answer.made.values()), strict=True))
        return Resolution(key, shelved=Shelved(outputs, answer.made, answer.facts), damage=damage)

    def record_outputs(self, node: Node, outputs: Mapping[str, str]) -> None:
        """Note what a node made: digests by name."""
        before = self._behind.get(node.parent, Upstream())
        original = before.original
        if original is None and node.step is not None and changes_network(node.step.instance):
            original = before.made
        awaited = {name: end for name, end in before.awaited.items() if name not in outputs}
        self._behind[node.id] = Upstream({**before.made, **outputs}, original, awaited)

    def foresee(self, node: Node) -> None:
        """Note that a node has yet to run; of a step that is what it writes, since all else stays as it was."""
        before = self._behind.get(node.parent)
        if before is not None and node.step is not None:
            self.record_outputs(node, {})
            awaited = {**before.awaited, **dict.fromkeys(node.step.instance.writes, node.id)}
            self._behind[node.id] = replace(self._behind[node.id], awaited=awaited)

    def waits_for(self, node: Node) -> tuple[str, ...]:
        """Return the nodes that have yet to run before the node's key is known."""
        reads = {*kind_of(node).reads(node)}
        found: list[str] = []
        for end in (node.parent, *node.joins):
            before = self._behind.get(end)
            if before is None:
                found += [end] if end is not None else []
                continue
            whole = end in node.joins or "original" in reads
            found += [waited for name, waited in before.awaited.items() if whole or name in reads]
        return tuple(dict.fromkeys(found))

    def facets(self, node: Node) -> dict[str, str] | None:
        """Return the digests of what a node reads, by name; `None` while what its parent made is unknown."""
        upstream = self._upstream(node)
        return None if upstream is None else kind_of(node).facets(node, upstream, self.inputs)

    def is_ready(self, node: Node) -> bool:
        """Tell whether `resolve` would answer at once: false while files that it asks about are being hashed."""
        upstream = self._upstream(node) or Upstream()
        return all(map(self.inputs.digests.is_ready, kind_of(node).files(node, upstream, self.inputs)))

    def assignment(
        self, node: Node, key: Key | None, folder: Path | None, *, reuse: bool, ahead: bool = False
    ) -> Assignment:
        """Return what the task of a node is made from.

        Args:
            node: The node.
            key: Its key.
            folder: Where a node with an output writes to.
            reuse: Whether the results of earlier runs may be used.
            ahead: Whether the key is of `resolve_ahead`.
        """
        inputs, upstream = self.inputs.unhashed if ahead else self.inputs, self._upstream(node) or Upstream()
        return Assignment(node, inputs, upstream, kind_of(node).facets(node, upstream, inputs), key, folder, reuse)

    def _upstream(self, node: Node) -> Upstream | None:
        """Return what is known before a node, `None` while something is not; what it joins, behind its component."""
        found = self._behind.get(node.parent)
        if found is None or not node.joins:
            return found
        if any(end not in self._behind for end in node.joins):
            return None
        joined = {
            f"{component}.{name}": digest
            for component, end in node.components.items()
            for name, digest in self._behind[end].made.items()
        }
        return Upstream({**found.made, **joined})
