"""Paint with optimum's pipelines; run in an environment of optimum's own, where olivelike is not installed.

Arguments: folder, pipeline class, file of initial latents (`.npy`), file for the picture (`.npy`).
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import version

import numpy as np
import torch

warnings.simplefilter("ignore")
import optimum.onnxruntime  # noqa: E402
from diffusers import DDIMScheduler  # noqa: E402

folder, class_name, latents, picture = sys.argv[1:]
torch.set_num_threads(1)
pipeline = getattr(optimum.onnxruntime, class_name).from_pretrained(folder)
pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
pipeline.set_progress_bar_config(disable=True)
result = pipeline(
    "a cat on the moon", height=64, width=64, num_inference_steps=2, guidance_scale=5.0,
    latents=torch.from_numpy(np.load(latents)), output_type="np",
)  # fmt: skip
np.save(picture, result.images[0])
names = ("optimum-onnx", "diffusers", "transformers", "torch", "onnxruntime")
told = {"class": type(pipeline).__name__, **{name: version(name) for name in names}}
sys.stdout.write(json.dumps(told) + "\n")
