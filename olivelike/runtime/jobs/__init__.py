"""Whole batches of work: prompt lines in, picture files out.

```python
from pathlib import Path

from olivelike.runtime.jobs import draw, plan_jobs, read_prompts
from olivelike.runtime.pictures import PictureWriter

plan = plan_jobs(Path("models/demo"), read_prompts(["@prompts.txt"]), {"steps": 20})
draw(plan, PictureWriter("pictures"))
```

`plan_jobs(folder, made_before=Path("cat.png"))` plans a picture again. LoRAs come from
`olivelike.engine.output.swap`, given as `lora_files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.runtime.jobs.control_files import parse_control
    from olivelike.runtime.jobs.fast import Lora
    from olivelike.runtime.jobs.job_drawing import draw
    from olivelike.runtime.jobs.job_plan import Job, JobPlan, LoraFiles, plan_jobs
    from olivelike.runtime.jobs.prompt_lines import PromptLine, read_prompts

__all__ = [
    "Job", "JobPlan", "Lora", "LoraFiles", "PromptLine", "draw", "parse_control", "plan_jobs",
    "read_prompts",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
