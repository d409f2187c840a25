"""Olive's convert and transformer optimisation of one SD 1.5 UNet, as its Stable Diffusion example does it.

    python benchmarks/olive_unet.py CHECKPOINT OUTPUT

Run by `spine.py --peer`; needs benchmarks/requirements-peers.txt.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

LOADER = """
import torch
from diffusers import UNet2DConditionModel

def load(model_path):
    model = UNet2DConditionModel.from_pretrained(model_path, subfolder="unet")
    forward = model.forward
    model.forward = lambda sample, timestep, encoder_hidden_states: forward(
        sample, timestep, encoder_hidden_states, return_dict=False
    )
    return model

def inputs(model=None):
    return {
        "sample": torch.rand(2, 4, 64, 64),
        "timestep": torch.rand(2),
        "encoder_hidden_states": torch.rand(2, 77, 768),
    }
"""


def main(checkpoint: Path, output: Path) -> None:
    """Run Olive."""
    from olive.workflows import run

    with tempfile.TemporaryDirectory() as temporary:
        script = Path(temporary) / "user_script.py"
        script.write_text(LOADER, encoding="utf-8")
        run(
            {
                "input_model": {
                    "type": "PyTorchModel",
                    "model_path": str(checkpoint),
                    "model_loader": "load",
                    "model_script": str(script),
                    "dummy_inputs_func": "inputs",
                    "io_config": {
                        "input_names": ["sample", "timestep", "encoder_hidden_states"],
                        "output_names": ["out_sample"],
                    },
                },
                "systems": {
                    "local": {
                        "type": "LocalSystem",
                        "accelerators": [{"device": "gpu", "execution_providers": ["CUDAExecutionProvider"]}],
                    }
                },
                "passes": {
                    "convert": {"type": "OnnxConversion", "target_opset": 18},
                    "optimize": {
                        "type": "OrtTransformersOptimization",
                        "model_type": "unet",
                        "opt_level": 0,
                        "float16": True,
                        "keep_io_types": False,
                    },
                },
                "host": "local",
                "target": "local",
                "cache_dir": str(Path(temporary) / "cache"),
                "output_dir": str(output),
            }
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
