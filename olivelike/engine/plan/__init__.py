"""Planning: nodes, keys, hits and misses with reasons; nothing here runs a pass or writes a file."""

from olivelike.engine.keys import Key
from olivelike.engine.plan.adapters import Adapters, OpenedEmbedding, OpenedLora
from olivelike.engine.plan.building import active_steps, build_nodes
from olivelike.engine.plan.chains import check_chains
from olivelike.engine.plan.explain import differences, nearest, nearest_of
from olivelike.engine.plan.inputs import Inputs
from olivelike.engine.plan.node import Node
from olivelike.engine.plan.planner import Plan, PlannedNode, all_hits, estimate, explain_status, make_plan
from olivelike.engine.plan.resolver import Resolution, Resolver

__all__ = [
    "Adapters", "Inputs", "Key", "Node", "OpenedEmbedding", "OpenedLora", "Plan", "PlannedNode",
    "Resolution", "Resolver", "active_steps", "all_hits", "build_nodes", "check_chains", "differences", "estimate",
    "explain_status", "make_plan", "nearest", "nearest_of",
]  # fmt: skip
