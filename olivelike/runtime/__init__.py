"""Pipelines of ONNX networks that make pictures.

```python
from pathlib import Path

from olivelike.runtime import Request, SessionSettings, open_pipeline

pipeline = open_pipeline(Path("models/demo"), SessionSettings())
result = pipeline.generate(Request(("a red circle on a blue background",), seed=7))
result.pictures[0].image.save("circle.png")
```

`olivelike.runtime.jobs` reads files of prompts, makes pictures again and writes files; `olivelike generate` is made of
it.

| folder | what it does |
| --- | --- |
| `jobs` | prompt lines → planned requests → picture files with their records |
| `pipeline` | a `Request` → pictures: conditioning, latents, the loop around the denoiser, VAE, safety checker |
| `prompts` | A1111's prompt syntax, wildcards, embeddings of prompts |
| `schedulers` | diffusers' schedulers by name, and what their configs may say |
| `pictures` | picture files: names, records, sheets |
| `sessions` | networks in ONNX Runtime or OpenVINO: settings, providers, devices, failures |

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
    from olivelike.runtime.pipeline.request import Batch, Control, Picture, Request, Result, require_safe
    from olivelike.runtime.sessions.session_settings import SessionSettings

__all__ = [
    "Batch", "Control", "Picture", "Pipeline", "Request", "Result", "SessionSettings", "Step", "open_pipeline",
    "require_safe",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
