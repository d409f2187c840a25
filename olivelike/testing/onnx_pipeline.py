"""ONNX pipelines as others export them: the tiny checkpoint's networks through torch's TorchScript exporter.

Three layouts are in the wild: diffusers' conversion script (opset 14, all dimensions open), optimum (opset 17 and
more, a `config.json` beside each model), and Olive (component folders without `model_index.json`).
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from olivelike.export.interface import interface_of
from olivelike.testing.models import tiny_model
from olivelike.testing.parity import torch_network

if TYPE_CHECKING:
    from collections.abc import Iterable

Layout = Literal["diffusers", "optimum", "olive"]

DATA_FILE: Final = "weights.pb"

_OPEN_DIMS: Final = {
    "input_ids": ("batch", "sequence"),
    "sample": ("batch", "channels", "height", "width"),
    "latent_sample": ("batch", "channels", "height", "width"),
    "timestep": ("batch",),
    "encoder_hidden_states": ("batch", "sequence"),
    "clip_input": ("batch", "channels", "height", "width"),
    "images": ("batch", "height", "width", "channels"),
}
"""As diffusers' `convert_stable_diffusion_checkpoint_to_onnx.py` names them."""


def export_with_torchscript(
    component: str,
    folder: str | Path,
    *,
    opset: int = 17,
    named_as: Layout = "optimum",
    external: bool = False,
    half: bool = False,
    seed: int = 0,
) -> Path:
    """Export a network of the tiny checkpoint into `folder`, as others do.

    Args:
        component: such as `unet`.
        folder: where `model.onnx` goes; made if absent.
        opset: of the export; below 17, LayerNormalization is spelled out.
        named_as: `diffusers` opens all dimensions, under its names.
        external: keep the weights in a data file beside the model.
        half: convert the model to float16 with ONNX Runtime's converter, inputs and outputs too.
        seed: of the weights.

    Returns:
        The model file.
    """
    import onnx
    import torch

    model = tiny_model(component, seed=seed)
    assert model.architecture is not None
    interface = interface_of(component, model.architecture.config)
    random = torch.Generator().manual_seed(seed)
    arguments = tuple(
        torch.randint(0, 90, value.example, dtype=torch.int32, generator=random)
        if value.dtype == "int32"
        else torch.randn(value.example, generator=random)
        for value in interface.inputs
    )
    axes = {
        value.name: dict(enumerate(_OPEN_DIMS[value.name]))
        if named_as == "diffusers"
        else {axis: dim for axis, dim in enumerate(value.dims) if dim}
        for value in interface.inputs
    }
    path = Path(folder) / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            torch_network(model).float(),
            arguments,
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=[value.name for value in interface.inputs],
            output_names=list(interface.outputs),
            dynamic_axes=axes,
        )
    if half:
        _convert_to_half(path)
    if external:
        proto = onnx.load(path)
        onnx.save(proto, path, save_as_external_data=True, location=DATA_FILE, size_threshold=1024)
    return path


def make_onnx_pipeline(
    folder: str | Path,
    components: Iterable[str] = ("text_encoder", "vae_decoder"),
    *,
    layout: Layout = "diffusers",
    **options: Any,
) -> Path:
    """Write a folder with some networks of the tiny checkpoint, exported by others.

    Args:
        folder: where to write; made if absent.
        components: names such as `unet`.
        layout: whose folder it looks like.
        options: of `export_with_torchscript`.

    Returns:
        The folder.
    """
    root = Path(folder)
    names = list(components)
    options.setdefault("opset", 14 if layout == "diffusers" else 17)
    for name in names:
        model = tiny_model(name)
        assert model.architecture is not None
        export_with_torchscript(name, root / name, named_as=layout, **options)
        if layout == "optimum":
            text = json.dumps(model.architecture.config, indent=2, sort_keys=True)
            (root / name / "config.json").write_text(text, encoding="utf-8")
    if layout != "olive":
        (root / "model_index.json").write_text(json.dumps(_index(names, layout), indent=2), encoding="utf-8")
    return root


def _index(components: list[str], layout: Layout) -> dict[str, Any]:
    if layout == "diffusers":
        entries = {name: ["diffusers", "OnnxRuntimeModel"] for name in components}
        return {"_class_name": "OnnxStableDiffusionPipeline", "_diffusers_version": "0.30.0", **entries}
    classes = {
        "unet": "ORTUnet", "text_encoder": "ORTTextEncoder", "vae_encoder": "ORTVaeEncoder",
        "vae_decoder": "ORTVaeDecoder", "safety_checker": "ORTSafetyChecker",
    }  # fmt: skip
    entries = {name: ["optimum.onnxruntime.modeling_diffusion", classes[name]] for name in components}
    return {"_class_name": "ORTStableDiffusionPipeline", "_diffusers_version": "0.30.0", **entries}


def _convert_to_half(path: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    proto = onnx.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx.save(convert_float_to_float16(proto, keep_io_types=False), path)
