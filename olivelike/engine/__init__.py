"""The engine: what every front end calls to plan and run workflows."""

from olivelike.engine.convert_request import ConvertRequest, convert, draft, networks_of, save_workflow
from olivelike.engine.preparation import Options, Pin, Prepared, pin, plan, prepare, validate
from olivelike.engine.run import RunResult, run

__all__ = [
    "ConvertRequest", "Options", "Pin", "Prepared", "RunResult",
    "convert", "draft", "networks_of", "pin", "plan", "prepare", "run", "save_workflow", "validate",
]  # fmt: skip
