"""Pipelines of ONNX networks that make pictures.

```python
from pathlib import Path

from olivelike.runtime import Request, SessionSettings, open_pipeline

pipeline = open_pipeline(Path("models/demo"), SessionSettings())
result = pipeline.generate(Request(("a red circle on a blue background",), seed=7))
result.pictures[0].image.save("circle.png")
```

| module | what it does |
| --- | --- |
| `folder` | what a pipeline's folder holds, and what its configs say |
| `request`, `settling` | what to make: `Request`, checked against the folder |
| `pipeline` | `open_pipeline`, `Pipeline.generate`, `Pipeline.batches` |
| `network` | one of the folder's networks in a session, with buffers that are made once |
| `conditioning` | prompts → what the UNet attends to |
| `noise`, `latents`, `masks` | what denoising starts from |
| `denoising`, `guidance`, `preview` | the loop around the UNet |
| `vae`, `safety` | latents → pictures, and the check of each |
| `result` | what comes out |
| `session`, `settings`, `open_session` | inference engines |
| `interruption` | ending what an engine computes, from another thread |
| `prompts`, `pictures` | A1111's prompt syntax; picture files |
| `schedulers`, `scheduler_names` | schedulers of diffusers by name; `diffusers_import` brings little else |
| `other_schedulers`, `scheduler_config` | which of them can't draw here, and what their configs may say |

What it changes in the process that imports it, each when it is first needed and for good: the first session on the CPU
registers an arena with ONNX Runtime's environment, which sessions of the program share if they ask for
`session.use_env_allocators`; the first one on an NVIDIA GPU loads CUDA's libraries. While those are looked for,
`sys.stdout` is another one for a moment, since ONNX Runtime prints what it does not find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.pipeline import Pipeline, open_pipeline
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.pipeline.result import Batch, Picture, Result, require_safe
    from olivelike.runtime.sessions.session_settings import SessionSettings

__all__ = [
    "Batch",
    "Picture",
    "Pipeline",
    "Request",
    "Result",
    "SessionSettings",
    "Step",
    "open_pipeline",
    "require_safe",
]

__getattr__ = names_from(
    __name__,
    {
        "pipeline.denoising": ("Step",),
        "pipeline.pipeline": ("Pipeline", "open_pipeline"),
        "pipeline.request": ("Request",),
        "pipeline.result": ("Batch", "Picture", "Result", "require_safe"),
        "sessions.session_settings": ("SessionSettings",),
    },
)
