"""olivelike: a declarative, cached workflow engine that optimises Stable Diffusion pipelines for ONNX Runtime.

What the command line does, a script does with these names; `docs/python.md` has an example of each.

```python
import olivelike

olivelike.run("workflows/mine.yaml")
pipeline = olivelike.open_pipeline("models/mine")
pipeline.generate(olivelike.Request(("a red circle",), seed=7)).pictures[0].image.save("circle.png")
```

Errors are those of `olivelike.errors`. Each name is imported at its first use, since what is behind it is heavy.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from olivelike._lazy import homes, names_from
from olivelike._light_onnx_ir import LightOnnxIr

if TYPE_CHECKING:
    from olivelike.engine.convert_request import ConvertRequest as ConvertRequest, convert as convert
    from olivelike.engine.explanation import Explanation as Explanation, explain as explain
    from olivelike.engine.fleet import (
        FleetPlan as FleetPlan,
        FleetResult as FleetResult,
        combinations as combinations,
        explain_fleet as explain_fleet,
        pin_fleet as pin_fleet,
        plan_fleet as plan_fleet,
        run_fleet as run_fleet,
        validate_fleet as validate_fleet,
    )
    from olivelike.engine.output.folder_info import FolderInfo as FolderInfo, describe_folder as describe_folder
    from olivelike.engine.output.swap import swap_loras as swap_loras
    from olivelike.engine.preparation import pin as pin, plan as plan, validate as validate
    from olivelike.engine.prepared import Options as Options
    from olivelike.engine.run import run as run
    from olivelike.engine.run_result import RunResult as RunResult
    from olivelike.errors import OlivelikeError as OlivelikeError
    from olivelike.extras.bench.ablation import Ablation as Ablation, ablate as ablate
    from olivelike.extras.bench.bench_report import BenchReport as BenchReport
    from olivelike.extras.bench.bench_settings import BenchSettings as BenchSettings
    from olivelike.extras.bench.whole_pictures import bench as bench
    from olivelike.extras.deploy.joined_package import ModelPackage as ModelPackage, package_outputs as package_outputs
    from olivelike.extras.deploy.web_page import WebPage as WebPage, export_web as export_web
    from olivelike.graphs.inspect import Inspection as Inspection, inspect_model as inspect_model
    from olivelike.measure.clients import CheckResult as CheckResult, check_client as check_client
    from olivelike.measure.doctor import Diagnosis as Diagnosis, diagnose as diagnose
    from olivelike.measure.profiling import profile_folder as profile_folder
    from olivelike.measure.report import write_report as write_report
    from olivelike.measure.report.graph_drawing import to_dot as to_dot, to_mermaid as to_mermaid, to_svg as to_svg
    from olivelike.measure.report.recorded_runs import (
        RecordedRun as RecordedRun,
        find_run as find_run,
        last_writer as last_writer,
    )
    from olivelike.measure.result_rows import FolderProfile as FolderProfile
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
        Control as Control,
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

_find = names_from(__name__, __file__)
sys.meta_path.insert(0, LightOnnxIr)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # Reading it takes 25 ms, which a run with nothing to do would feel.
        from olivelike._installed import own_version

        return own_version()
    return _find(name)


def __dir__() -> list[str]:
    return sorted([*homes(__file__), "__version__"])
