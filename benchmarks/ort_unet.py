"""ONNX Runtime's own way for one SD 1.5 UNet: diffusers' TorchScript export, then its transformers optimizer in fp16.

    python benchmarks/ort_unet.py CHECKPOINT OUTPUT

The export is that of diffusers' convert_stable_diffusion_checkpoint_to_onnx.py, the rest is what onnxruntime's
stable_diffusion/optimize_pipeline.py does to it. Run by `peers.py --peers`.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path


def main(checkpoint: Path, output: Path) -> None:
    """Export and optimise."""
    import torch
    from diffusers import UNet2DConditionModel
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    warnings.simplefilter("ignore")
    unet = UNet2DConditionModel.from_pretrained(checkpoint, subfolder="unet")
    width, channels, side = unet.config.cross_attention_dim, unet.config.in_channels, unet.config.sample_size
    inputs = (
        torch.randn(2, channels, side, side),
        torch.full((2,), 500.0),
        torch.randn(2, 77, width),
        False,  # No dictionary of outputs.
    )
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        raw = Path(temporary) / "model.onnx"
        with torch.no_grad():
            torch.onnx.export(
                unet,
                inputs,
                str(raw),
                input_names=["sample", "timestep", "encoder_hidden_states", "return_dict"],
                output_names=["out_sample"],
                dynamic_axes={
                    "sample": {0: "batch", 1: "channels", 2: "height", 3: "width"},
                    "timestep": {0: "batch"},
                    "encoder_hidden_states": {0: "batch", 1: "sequence"},
                },
                opset_version=17,
                dynamo=False,
            )
        del unet
        model = optimize_model(
            str(raw),
            model_type="unet",
            num_heads=0,
            hidden_size=0,
            opt_level=0,
            optimization_options=FusionOptions("unet"),
            use_gpu=True,
        )
        model.convert_float_to_float16(keep_io_types=False, op_block_list=["RandomNormalLike"])
        model.save_model_to_file(str(output / "model.onnx"), use_external_data_format=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
