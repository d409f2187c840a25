"""Planning: nodes, keys, hits and misses with reasons; nothing here runs a pass or writes a file."""

from olivelike.plan.additions import Additions, OpenedEmbedding, OpenedLora
from olivelike.plan.building import build_nodes
from olivelike.plan.chains import check_chains
from olivelike.plan.explain import differences, nearest
from olivelike.plan.key import Key
from olivelike.plan.node import PIPELINE, Node
from olivelike.plan.planner import Plan, PlannedNode, all_hits, estimate, judge, make_plan
from olivelike.plan.resolver import Resolution, Resolver

__all__ = [
    "PIPELINE",
    "Additions", "Key", "Node", "OpenedEmbedding", "OpenedLora", "Plan", "PlannedNode", "Resolution", "Resolver",
    "all_hits", "build_nodes", "check_chains", "differences", "estimate", "judge", "make_plan", "nearest",
]  # fmt: skip
