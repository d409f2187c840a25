"""The engine: what every front end calls to plan and run workflows."""

from olivelike.engine.convert_request import ConvertRequest, draft_workflow, save_workflow
from olivelike.engine.preparation import Options, Prepared, plan, prepare
from olivelike.engine.run import RunResult, run

__all__ = [
    "ConvertRequest", "Options", "Prepared", "RunResult",
    "draft_workflow", "plan", "prepare", "run", "save_workflow",
]  # fmt: skip
