"""Variants of a sweep in one DAG: what they have in common is one node, and runs once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from olivelike.digest import digest_json

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from olivelike.engine.plan.node import Node


def merge_variants(variants: Mapping[str | None, Sequence[Node]]) -> tuple[Node, ...]:
    """Return the nodes of all variants, parents first, equal ones once.

    Nodes are equal if their steps, and all steps before them, are. One that some variants lack is called after the
    first that has it: `unet.fuse@attention`.

    Args:
        variants: The nodes of each variant, parents first, by its name.
    """
    identities: dict[str | None, dict[str, Hashable]] = {}
    names: dict[Hashable, str] = {}
    users: dict[Hashable, int] = {}
    for variant, nodes in variants.items():
        known: dict[str, Hashable] = {}
        for node in nodes:
            known[node.id] = identity = _identity(node, known)
            names.setdefault(identity, f"{node.id}@{variant}")
            users[identity] = users.get(identity, 0) + 1
        identities[variant] = known
    shared: dict[Hashable, Node] = {}
    for variant, nodes in variants.items():
        for node in nodes:
            identity = identities[variant][node.id]
            if identity not in shared:
                parent = node.parent and _name(identities[variant][node.parent], names, users, len(variants))
                joins = tuple(_name(identities[variant][end], names, users, len(variants)) for end in node.joins)
                name = _name(identity, names, users, len(variants))
                shared[identity] = replace(node, id=name, parent=parent, joins=joins)
    return tuple(shared.values())


def _identity(node: Node, known: Mapping[str, Hashable]) -> Hashable:
    step = node.step and (
        node.step.pass_name,
        digest_json(node.step.instance.model_dump(mode="json")),
        node.step.precision,
    )
    joined = tuple(known[end] for end in node.joins)
    return node.component, node.kind, node.parent and known[node.parent], step, node.output, joined, node.calibration


def _name(identity: Hashable, names: Mapping[Hashable, str], users: Mapping[Hashable, int], variants: int) -> str:
    """Return a node's id: the plain one where every variant has it."""
    name = names[identity]
    return name.rpartition("@")[0] if users[identity] == variants else name
