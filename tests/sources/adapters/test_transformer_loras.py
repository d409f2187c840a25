"""LoRAs of transformers in each spelling that diffusers converts: the weights that it merges, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from olivelike.sources.adapters.layer_names import held_layers
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.checkpoints import random_parameter
from tests.fixtures.transformer_loras import KOHYA, PEFT, File, original_layers, own_layers, write

WEIGHT = 0.7
DEFAULT = (".lora_A.default.weight", ".lora_B.default.weight")
LIBRARY = (".lora.down.weight", ".lora.up.weight")
PIPELINES = {
    "flux": "FluxPipeline", "flux2": "Flux2KleinPipeline", "z_image": "ZImagePipeline",
    "sd3": "StableDiffusion3Pipeline",
}  # fmt: skip
# Left out is what diffusers does not do: layers outside FLUX.1's blocks in kohya's names get lost, and halves of
# FLUX.2's `norm_out` are not swapped, as its checkpoints' are; for FLUX.1's `linear1` it has the published width alone.
ORIGINAL = r"^(double|single)_blocks"
NOT_QKV = r"^(double|single)_blocks\.\d\.(?!.*qkv)"
DOUBLE = r"double_blocks\.\d\.(img|txt)"
BLOCKS = r"transformer_blocks|double_blocks|single_blocks"
FILES = [
    File("flux", "PEFT", "transformer."),
    File("flux", "PEFT-alpha", "transformer.", alpha="tensor"),
    File("flux", "PEFT-header", "transformer.", alpha="header"),
    File("flux", "PEFT-ranks", "transformer.", alpha="header", ranks={r"attn\.to_q": 2, r"ff\.net\.2": 6}),
    File("flux", "PEFT-dora", "transformer.", kind="dora"),
    File("flux", "kohya", "lora_unet_", KOHYA, True, True, rf"{DOUBLE}|linear2|single.*modulation", "tensor"),
    File("flux", "ComfyUI", "diffusion_model.", KOHYA, True, False, rf"{DOUBLE}|linear2", "tensor"),
    File("flux", "kohya-diffusers", "lora_transformer_", KOHYA, False, True, r"attn\.", "tensor"),
    File("flux", "XLabs", "", (".down.weight", ".up.weight"), True, False, r"processor"),
    File("flux2", "PEFT", "transformer."),
    File("flux2", "PEFT-header", "transformer.", alpha="header"),
    File("flux2", "PEFT-ranks", "transformer.", alpha="header", ranks={r"attn\.to_q": 2, r"ff\.linear_in": 6}),
    File("flux2", "PEFT-dora", "transformer.", kind="dora"),
    File("flux2", "BFL", "diffusion_model.", PEFT, True, False, rf"{ORIGINAL}|^final_layer.lin|^\w+_in\b|^\w+stream"),
    File("flux2", "BFL-PEFT", "base_model.model.", PEFT, True, False, ORIGINAL),
    File("flux2", "kohya", "lora_unet_", KOHYA, True, True, rf"{ORIGINAL}|img_in", "tensor"),
    File("flux2", "cut", "diffusion_model.", PEFT, True, False, r"^sformer_blocks"),
    File("flux2", "LoKr-LyCORIS", "lycoris_", flat=True, only=BLOCKS, alpha="tensor", kind="lokr"),
    File("flux2", "LoKr-ComfyUI", "diffusion_model.", PEFT, True, False, NOT_QKV, "tensor", "lokr"),
    File("flux2", "LoKr-bare", "", only=BLOCKS, alpha="tensor", kind="lokr"),
    File("z_image", "PEFT", "transformer."),
    File("z_image", "PEFT-header", "transformer.", alpha="header"),
    File("z_image", "PEFT-dora", "transformer.", kind="dora", only="attention"),
    File("z_image", "ComfyUI", "diffusion_model.", only="attention|feed_forward|adaLN", alpha="tensor"),
    File("z_image", "ai-toolkit", "diffusion_model.", KOHYA, only="attention|feed_forward", alpha="tensor"),
    File("z_image", "adapter", "", DEFAULT, only="attention|feed_forward"),
    File("z_image", "kohya", "lora_unet_", KOHYA, flat=True, only="to_[qkv]$|feed_forward", alpha="tensor"),
    File("z_image", "kohya-packed", "lora_unet_", LIBRARY, True, True, r"attention\.(qkv|out)", "tensor"),
    File("z_image", "LoKr", "diffusion_model.", only="attention|feed_forward", alpha="tensor", kind="lokr"),
    File("sd3", "PEFT", "transformer."),
    File("sd3", "PEFT-header", "transformer.", alpha="header"),
    File("sd3", "PEFT-ranks", "transformer.", alpha="header", ranks={r"attn2\.to_q": 2, r"ff\.net\.2": 6}),
    File("sd3", "PEFT-dora", "transformer.", kind="dora", only="attn"),
]  # fmt: skip
QUICK = ("flux-kohya", "flux2-BFL", "flux2-LoKr-ComfyUI", "z_image-kohya-packed", "sd3-PEFT-ranks")


def fused(family, networks, path, weight):
    """Return weights by component after diffusers has fused a file."""
    import diffusers

    pipeline_class = getattr(diffusers, PIPELINES[family])
    built = {name: one.build() for name, one in networks.items()}
    parts = dict.fromkeys(pipeline_class._get_signature_keys(pipeline_class)[0])
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    pipeline = pipeline_class(**{**parts, "scheduler": scheduler, **built})
    pipeline.load_lora_weights(str(path))
    pipeline.fuse_lora(components=list(built), lora_scale=weight)
    pipeline.unload_lora_weights()
    return {
        name: {key: tensor.detach().numpy() for key, tensor in one.state_dict().items()} for name, one in built.items()
    }


def check(family, networks, path, weight=WEIGHT):
    lora = open_lora(path)
    assert lora.components <= set(networks)
    expected = fused(family, networks, path, weight)
    for component in lora.components:
        own, theirs = networks[component], expected[component]
        merged = own.merge((lora, weight))
        assert merged.keys() == {name for name in theirs if not np.array_equal(theirs[name], own.state[name])}
        for name, values in merged.items():
            error = np.linalg.norm(values - theirs[name]) / np.linalg.norm(theirs[name])
            assert error < 1e-6, name
    return lora


@pytest.mark.parametrize(
    "file", [pytest.param(one, marks=() if str(one) in QUICK else pytest.mark.slow, id=str(one)) for one in FILES]
)
def test_weights_equal_those_that_diffusers_fuses(file, transformers, tmp_path):
    one = transformers(file.family)
    path = write(file, one.shapes, tmp_path / "lora.safetensors")
    lora = check(file.family, {"transformer": one}, path, 1.0 if file.kind == "dora" else WEIGHT)
    assert lora.components == {"transformer"}
    assert lora.family in (file.family, None)


@pytest.mark.parametrize("family", ["flux", "flux2", "sd3", "z_image"])
def test_layers_of_original_names_hold_what_diffusers_reads_of_checkpoints(family, transformers):
    import torch
    from diffusers.loaders import single_file_utils

    class Filled(dict):
        """A checkpoint with all that it is asked for."""

        def pop(self, name, *others):
            return super().pop(name) if name in self else torch.zeros(21504 if "linear1" in name else 6)

    shapes, stored, expected = transformers(family).shapes, Filled(), {}
    for name, shape in original_layers(shapes).items():
        # The converter of FLUX.1 has the published width alone for what its single blocks hold as one.
        skipped = r".*processor|.*linear1" if family == "flux" else "sformer|single_transformer"
        if not re.match(skipped, name):
            stored[f"{name}.weight"] = torch.from_numpy(random_parameter(f"{name}.weight", shape, 0, "transformer"))
    for name, places in held_layers("transformer", shapes):
        first = 0
        for place in places if f"{name}.weight" in stored else ():
            whole = expected.setdefault(place.parameter, np.zeros(shapes[place.parameter], np.float32))
            whole[place.first : place.first + place.count] = stored[f"{name}.weight"][first : first + place.count]
            first += place.count
    left = {name for name in map("{}.weight".format, own_layers(shapes)) if name not in expected}
    assert all(family == "flux" and re.search(r"single.*(to_[qkv]|proj_mlp)", name) for name in left)
    converted = getattr(single_file_utils, f"convert_{family}_transformer_checkpoint_to_diffusers")(stored)
    for name, values in expected.items():
        assert np.array_equal(converted[name], values), name
