"""The engine: what every front end calls to plan and run workflows."""

from olivelike.engine.preparation import Options, Prepared, plan, prepare
from olivelike.engine.run import RunResult, run

__all__ = ["Options", "Prepared", "RunResult", "plan", "prepare", "run"]
