"""Planning: nodes, keys, hits and misses with reasons; nothing here runs a pass or writes a file."""

from olivelike.engine.keys.key import Key
from olivelike.engine.plan.additions import Additions, OpenedEmbedding, OpenedLora
from olivelike.engine.plan.building import build_nodes
from olivelike.engine.plan.chains import check_chains
from olivelike.engine.plan.explain import differences, nearest
from olivelike.engine.plan.node import PIPELINE, Node
from olivelike.engine.plan.planner import Plan, PlannedNode, all_hits, estimate, judge, make_plan
from olivelike.engine.plan.resolver import Resolution, Resolver

__all__ = [
    "PIPELINE",
    "Additions", "Key", "Node", "OpenedEmbedding", "OpenedLora", "Plan", "PlannedNode", "Resolution", "Resolver",
    "all_hits", "build_nodes", "check_chains", "differences", "estimate", "judge", "make_plan", "nearest",
]  # fmt: skip
