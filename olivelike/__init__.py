"""olivelike: a declarative, cached workflow engine that optimises Stable Diffusion pipelines for ONNX Runtime.

What the command line does, a script does with these names; `docs/python.md` has an example of each.

```python
from pathlib import Path

import olivelike

olivelike.run("workflows/mine.yaml")
pipeline = olivelike.open_pipeline(Path("models/mine"))
pipeline.generate(olivelike.Request(("a red circle",), seed=7)).pictures[0].image.save("circle.png")
```

Errors are those of `olivelike.errors`. Each name is imported at its first use, since what is behind it is heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.engine.convert_request import ConvertRequest as ConvertRequest, convert as convert
    from olivelike.engine.explanation import Explanation as Explanation, explain as explain
    from olivelike.engine.output.folder_info import FolderInfo as FolderInfo, describe_folder as describe_folder
    from olivelike.engine.output.swap import swap_loras as swap_loras
    from olivelike.engine.preparation import Options as Options, pin as pin, plan as plan, validate as validate
    from olivelike.engine.run import RunResult as RunResult, run as run
    from olivelike.errors import OlivelikeError as OlivelikeError
    from olivelike.graphs.inspect import Inspection as Inspection, inspect_model as inspect_model
    from olivelike.measure.bench.ablation import Ablation as Ablation, ablate as ablate
    from olivelike.measure.bench.bench_report import BenchReport as BenchReport
    from olivelike.measure.bench.bench_settings import BenchSettings as BenchSettings
    from olivelike.measure.bench.whole_pictures import bench as bench
    from olivelike.measure.clients import CheckResult as CheckResult, check_client as check_client
    from olivelike.measure.doctor import Diagnosis as Diagnosis, diagnose as diagnose
    from olivelike.measure.profile import FolderProfile as FolderProfile, profile_folder as profile_folder
    from olivelike.measure.report import write_report as write_report
    from olivelike.measure.report.graph_drawing import to_dot as to_dot, to_mermaid as to_mermaid, to_svg as to_svg
    from olivelike.measure.report.recorded_runs import (
        RecordedRun as RecordedRun,
        find_run as find_run,
        last_writer as last_writer,
    )
    from olivelike.measure.verify.folder_verification import (
        FolderVerification as FolderVerification,
        verify_folder as verify_folder,
    )
    from olivelike.model import (
        Architecture as Architecture,
        Graph as Graph,
        Model as Model,
        Tensor as Tensor,
        Weights as Weights,
    )
    from olivelike.pass_api import Context as Context, Pass as Pass, Resources as Resources
    from olivelike.runtime import (
        Pipeline as Pipeline,
        Request as Request,
        Result as Result,
        SessionSettings as SessionSettings,
        open_pipeline as open_pipeline,
    )
    from olivelike.runtime.pictures.picture_reading import PictureFile as PictureFile, read_picture as read_picture
    from olivelike.sources.adapters.lora_file import WeightedLora as WeightedLora
    from olivelike.sources.adapters.open_lora import open_lora as open_lora
    from olivelike.sources.identify.weight_file import (
        WeightFileInfo as WeightFileInfo,
        describe_weight_file as describe_weight_file,
    )
    from olivelike.store import Store as Store
    from olivelike.workflow import json_schema as json_schema, load_workflow as load_workflow
    from olivelike.workflow.passes import Registry as Registry, new_pass as new_pass
    from olivelike.workflow.passes.pass_description import (
        PassDescription as PassDescription,
        describe_pass as describe_pass,
        pass_options as pass_options,
    )
    from olivelike.workflow.scaffold import create_project as create_project

_HOMES = {
    "engine.convert_request": ("ConvertRequest", "convert"),
    "engine.explanation": ("Explanation", "explain"),
    "engine.output.folder_info": ("FolderInfo", "describe_folder"),
    "engine.output.swap": ("swap_loras",),
    "engine.preparation": ("Options", "pin", "plan", "validate"),
    "engine.run": ("RunResult", "run"),
    "errors": ("OlivelikeError",),
    "graphs.inspect": ("Inspection", "inspect_model"),
    "measure.bench.whole_pictures": ("bench",),
    "measure.bench.bench_report": ("BenchReport",),
    "measure.bench.bench_settings": ("BenchSettings",),
    "measure.bench.ablation": ("Ablation", "ablate"),
    "measure.clients": ("CheckResult", "check_client"),
    "measure.doctor": ("Diagnosis", "diagnose"),
    "measure.profile": ("FolderProfile", "profile_folder"),
    "measure.report": ("write_report",),
    "measure.report.graph_drawing": ("to_dot", "to_mermaid", "to_svg"),
    "measure.report.recorded_runs": ("RecordedRun", "find_run", "last_writer"),
    "measure.verify.folder_verification": ("FolderVerification", "verify_folder"),
    "model": ("Architecture", "Graph", "Model", "Tensor", "Weights"),
    "pass_api": ("Context", "Pass", "Resources"),
    "runtime": ("Pipeline", "Request", "Result", "SessionSettings", "open_pipeline"),
    "runtime.pictures.picture_reading": ("PictureFile", "read_picture"),
    "sources.adapters.lora_file": ("WeightedLora",),
    "sources.adapters.open_lora": ("open_lora",),
    "sources.identify.weight_file": ("WeightFileInfo", "describe_weight_file"),
    "store": ("Store",),
    "workflow": ("json_schema", "load_workflow"),
    "workflow.passes": ("Registry", "new_pass"),
    "workflow.passes.pass_description": ("PassDescription", "describe_pass", "pass_options"),
    "workflow.scaffold": ("create_project",),
}
"""Where each public name is; `tests/test_public_names.py` holds their signatures."""
_find = names_from(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # Reading it takes 25 ms, which a run with nothing to do would feel.
        from importlib.metadata import version

        return version("olivelike")
    return _find(name)


def __dir__() -> list[str]:
    return sorted([*(name for names in _HOMES.values() for name in names), "__version__"])
