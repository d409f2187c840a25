"""Paint with optimum's pipelines; run in an environment of optimum's own, where olivelike is not installed.

Arguments: folder, pipeline class, file for the picture (`.npy`), file of initial latents (`.npy`) or seed, and options
of the call as JSON. What draws from latents does so with DDIM.
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

folder, class_name, picture, start, options = sys.argv[1:]
torch.set_num_threads(1)
pipeline = getattr(optimum.onnxruntime, class_name).from_pretrained(folder)
if start.isdecimal():
    begin = {"generator": torch.Generator().manual_seed(int(start))}
else:
    begin = {"latents": torch.from_numpy(np.load(start))}
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
pipeline.set_progress_bar_config(disable=True)
np.save(picture, pipeline(**begin, **json.loads(options), output_type="np").images[0])
names = ("optimum-onnx", "diffusers", "transformers", "torch", "onnxruntime")
told = {"class": type(pipeline).__name__, **{name: version(name) for name in names}}
sys.stdout.write(json.dumps(told) + "\n")
