"""LoRAs on top of a transformer that is optimised already: the picture of a run that merged them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_transformers import assert_alike
from safetensors.numpy import save_file
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.output.initializers import Initializers
from olivelike.engine.output.swap import LiveLoras
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import SourceError
from olivelike.runtime import Request, open_pipeline
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_transformers import little_transformer
from tests.fixtures.transformer_loras import KOHYA, PEFT, File, write

ORIGINAL = {
    "flux": File("flux", "kohya", "lora_unet_", KOHYA, True, True, r"_blocks\.\d\.(?!proc)|final_layer", "tensor"),
    "flux2": File("flux2", "BFL", "diffusion_model.", PEFT, True, False, r"^(double|single)_blocks|final_layer"),
    "sd3": File("sd3", "kohya", "lora_unet_", KOHYA, True, True, "joint_blocks|final_layer", "tensor"),
    "z_image": File("z_image", "ComfyUI", "diffusion_model.", PEFT, True, False, r"attention\.(qkv|out)"),
}
"""A file in names of the original code for each family, whose `qkv` is one matrix."""


class Outputs:
    """What a pipeline, or its transformer alone, becomes without LoRAs, and with two of them."""

    def __init__(self, root: Path, family: str, precision: str = "fp32", target: str = "cpu") -> None:
        self.source, self.root, self.target, self.precision = little_transformer(family), root, target, precision
        self.options = Options(cache_dir=root / "cache")
        shapes = {name: tensor.shape for name, tensor in load_model(self.source, "transformer").weights.items()}
        dora = File(family, "PEFT-dora", "transformer.", kind="dora", only="attn|attention")
        files = [write(one, shapes, root / f"{one.name}.safetensors") for one in (ORIGINAL[family], dora)]
        self.loras = [f"{files[0]}:0.8", f"{files[1]}:0.3"]

    def make(self, loras=(), *, whole=False):
        folder = self.root / ("merged" if loras else "plain")
        names = {path.parent.name for path in self.source.glob("*/config.json")} - {"vae"}
        names = names | {"vae_encoder", "vae_decoder"} if whole else {"transformer"}
        lend_graphs(self.root / "cache", [load_model(self.source, name).architecture for name in sorted(names)])
        if whole:
            asked = ConvertRequest(str(self.source), self.target, folder, tuple(loras), precision=self.precision)
            run(*draft(asked, self.options), executor=InlineExecutor)
            return folder
        step = {"fp16": ", float16", "w8": ", weights8"}.get(self.precision, "")
        workflow = self.root / "workflow.yaml"
        workflow.write_text(
            f"name: small\nsource: {self.source}\ntarget: {self.target}\nloras: {json.dumps(loras)}\n"
            f"components:\n  transformer: [merge_lora, convert, fuse{step}]\noutput: {folder}\n",
            encoding="utf-8",
        )
        run(str(workflow), self.options, executor=InlineExecutor)
        return folder


def check_swapped(outputs, plain, merged):
    """Compare what LoRAs make of a transformer on disk with one that they are merged into; return the former."""
    files = LiveLoras()
    swapped = files.merge([files.named(text) for text in outputs.loras], plain)
    stored = Initializers(merged / "transformer" / "model.onnx")
    assert swapped.keys() == {"transformer"}
    for name, array in swapped["transformer"].items():
        assert np.array_equal(array, stored.read(name)), name
    return swapped


def picture(folder, initializers=None):
    request = Request(prompts=("a red circle",), steps=2, seed=5, size=(64, 64))
    return np.asarray(open_pipeline(folder, initializers=initializers).generate(request).pictures[0].image).astype(int)


def test_several_loras_on_top_give_the_weights_of_a_run_that_merged_them(tmp_path):
    outputs = Outputs(tmp_path, "flux2")
    plain = outputs.make()
    check_swapped(outputs, plain, outputs.make(outputs.loras))
    tensors = {
        f"diffusion_model.layers.0.attention.qkv.lora_{role}.weight": np.ones((4, 4), np.float32) for role in "AB"
    }
    save_file(tensors, path := tmp_path / "other.safetensors")
    told = "other.safetensors: this LoRA is for Z-Image, and .* is FLUX.2-klein; a LoRA fits its own family alone"
    files = LiveLoras()
    with pytest.raises(SourceError, match=told):
        files.check([files.named(str(path))], plain)
    with pytest.raises(SourceError, match=told):
        outputs.make([str(path)])


@pytest.mark.slow
@pytest.mark.parametrize("family", ORIGINAL)
def test_several_loras_on_top_give_the_picture_of_a_run_that_merged_them(family, tmp_path):
    outputs = Outputs(tmp_path, family)
    plain, merged = outputs.make(whole=True), outputs.make(outputs.loras, whole=True)
    swapped = check_swapped(outputs, plain, merged)
    expected = picture(merged)
    assert np.array_equal(picture(plain, swapped), expected)
    assert abs(picture(plain) - expected).max() > 20


@pytest.mark.parametrize(("target", "precision"), [("cuda", "fp16"), ("cpu", "w8")])
def test_loras_on_top_of_halves_and_bytes_are_merged_into_what_these_stand_for(target, precision, tmp_path):
    outputs = Outputs(tmp_path, "flux2", precision, target)
    plain, merged = outputs.make(), outputs.make(outputs.loras)
    files = LiveLoras()
    (swapped,) = files.merge([files.named(text) for text in outputs.loras], plain).values()
    before, after = (Initializers(folder / "transformer" / "model.onnx") for folder in (plain, merged))
    for name, array in swapped.items():
        base, wanted = before.read(name), after.read(name)
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        if ".lower" in name or ".rest" in name:  # The last 4 of 12 bits.
            continue
        if array.dtype.kind == "u":  # Two roundings, and another scale.
            assert np.abs(array.astype(int) - wanted.astype(int)).max() <= 3, name
            continue
        error, change = (np.linalg.norm(array.astype(float) - one.astype(float)) for one in (wanted, base))
        assert error <= 2e-2 * change, name


@pytest.mark.parametrize("precision", ["w8", "fp16"])
@pytest.mark.parametrize("family", ["flux2", pytest.param("z_image", marks=pytest.mark.slow)])
def test_a_lora_on_top_of_pairs_and_divided_layers_draws_what_diffusers_draws(drawn, family, precision, tmp_path):
    made = drawn(family)
    shapes = {name: tensor.shape for name, tensor in load_model(made.source, "transformer").weights.items()}
    file = write(File(family, "PEFT", "transformer."), shapes, tmp_path / "style.safetensors")
    folder, files = made.converted(precision=precision), LiveLoras()
    swapped = files.merge([files.named(f"{file}:0.8")], folder)
    # Layers of 12 bits have the last 4 in a product of their own.
    assert any(name.endswith(".rest") for name in swapped["transformer"]) == (precision == "w8")
    made.torch_pipeline("").load_lora_weights(str(file), adapter_name="style")
    try:
        made.torch_pipeline("").set_adapters(["style"], [0.8])
        expected = made.painted()
    finally:
        made.torch_pipeline("").unload_lora_weights()
    assert psnr(open_pipeline(folder).generate(made.ask()).pictures[0].image, expected) < 20
    result = open_pipeline(folder, initializers=swapped).generate(made.ask())
    assert_alike(result, expected, least=45 if precision == "w8" else 55)
