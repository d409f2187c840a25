"""LoRAs of transformers in each spelling that diffusers converts: the weights that it merges, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.sources.adapters.layer_names import held_layers
from olivelike.sources.adapters.lora_file import check_denoiser, denoisers_of
from olivelike.sources.adapters.merge import match_modules
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.checkpoints import random_parameter
from olivelike.testing.lora_files import factor_shapes, make_lora
from tests.fixtures.transformer_loras import KOHYA, PEFT, RANK, File, original_layers, own_layers, write

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


@pytest.mark.parametrize(
    ("alpha", "factor", "weight"), [(1e300, 1, 1), (4, 1e30, 1), (4, 1, 1e300), (float("nan"), 1, 1), (0, 1, 1)]
)
def test_what_makes_numbers_that_float32_lacks_or_nothing_is_refused(alpha, factor, weight, transformers, tmp_path):
    one = transformers("flux")
    name, (rows, columns) = next((n.removesuffix(".weight"), s) for n, s in one.shapes.items() if "attn.to_q.w" in n)
    tensors = {
        f"{name}.lora_A.weight": np.full((RANK, columns), factor, np.float32),
        f"{name}.lora_B.weight": np.full((rows, RANK), factor, np.float32),
        f"{name}.alpha": np.array(alpha, np.float64),
    }
    save_file({f"transformer.{key}": value for key, value in tensors.items()}, path := tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match="makes numbers that float32 can't hold|alpha is nan|all its alphas are 0"):
        one.merge((open_lora(path), weight))


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


def parts_of(layer, tensors, path, prefix="diffusion_model."):
    """Write and open a file with one module."""
    save_file({f"{prefix}{layer}.{role}": values for role, values in tensors.items()}, path)
    return open_lora(path)


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr", "dora"])
def test_each_kind_changes_the_layers_that_one_matrix_holds(kind, transformers, tmp_path):
    one, layer = transformers("flux"), "single_blocks.1.linear1"
    shape = original_layers(one.shapes)[layer]
    factors = {
        role: random_parameter(f"{role}.weight", size, 0, "transformer")
        for role, size in factor_shapes("lora" if kind == "dora" else kind, shape, RANK).items()
    }
    names = {"down": "lora_A.weight", "up": "lora_B.weight"}
    tensors = {names.get(role, role): values for role, values in factors.items()}
    if kind == "loha":
        delta = (factors["hada_w1_a"] @ factors["hada_w1_b"]) * (factors["hada_w2_a"] @ factors["hada_w2_b"])
    elif kind == "lokr":
        delta = np.kron(factors["lokr_w1"], factors["lokr_w2_a"] @ factors["lokr_w2_b"])
    else:
        delta = factors["up"] @ factors["down"]
    block = "single_transformer_blocks.1."
    held = [f"{block}{name}.weight" for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    expected = np.concatenate([one.state[name] for name in held]) + delta
    if kind == "dora":
        tensors["dora_scale"] = 1 + abs(random_parameter("magnitude.weight", (shape[0], 1), 0, "transformer"))
        expected *= tensors["dora_scale"] / np.linalg.norm(expected, axis=1, keepdims=True)
    merged = one.merge(parts_of(layer, tensors, tmp_path / "a.safetensors"))
    assert [*merged] == sorted(held)
    assert np.allclose(np.concatenate([merged[name] for name in held]), expected, rtol=1e-5, atol=1e-6)
    if kind == "dora":
        tensors["dora_scale"] = np.ones((1, shape[1]), np.float32)
        with pytest.raises(SourceError, match="single_blocks.1.linear1 has magnitudes of inputs for layers"):
            one.merge(parts_of(layer, tensors, tmp_path / "a.safetensors"))


@pytest.mark.parametrize("weight", [1.0, -0.5])
def test_layers_of_their_own_change_their_rows_of_one_matrix(weight, transformers, tmp_path):
    one = transformers("flux2")
    packed = "single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight"
    rows, width = one.shapes[packed]
    first = {"attn.to_q": 0, "attn.to_k": width, "attn.to_v": 2 * width, "proj_mlp": 3 * width}
    tensors, expected = {}, one.state[packed].copy()
    for part, start in first.items():
        count = rows - 3 * width if part == "proj_mlp" else width
        down, up = (random_parameter(f"{part}{size}.weight", size, 0, "a") for size in ((2, width), (count, 2)))
        tensors |= {f"{part}.lora_A.weight": down, f"{part}.lora_B.weight": up}
        expected[start : start + count] += weight * (up @ down)
    stored = {f"transformer.single_transformer_blocks.0.{name}": values for name, values in tensors.items()}
    save_file(stored, tmp_path / "a.safetensors")
    merged = one.merge((open_lora(tmp_path / "a.safetensors"), weight))
    assert [*merged] == [packed]
    assert np.allclose(merged[packed], expected, rtol=1e-5, atol=1e-6)
    name = "transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj"
    both = {f"{name}.lora_A.weight": np.ones((1, width), "f4"), f"{name}.lora_B.weight": np.ones((rows, 1), "f4")}
    save_file({**stored, **both}, tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match=r"attn.to_k and .*to_qkv_mlp_proj both change single_transformer_blocks.0"):
        one.merge(open_lora(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("family", ["flux", "flux2", "sd3"])
def test_halves_of_the_last_norm_change_places(family, transformers, tmp_path):
    one, parameter = transformers(family), "norm_out.linear.weight"
    rows, width = one.shapes[parameter]
    up, down = random_parameter("up.weight", (rows, 2), 0, "a"), random_parameter("down.weight", (2, width), 0, "a")
    tensors = {"lora_down.weight": down, "lora_up.weight": up, "alpha": np.array(4, "f4")}
    merged = one.merge(parts_of("final_layer_adaLN_modulation_1", tensors, tmp_path / "a.safetensors", "lora_unet_"))
    assert np.allclose(merged[parameter], one.state[parameter] + 2 * np.roll(up @ down, rows // 2, axis=0), atol=1e-5)


TOLD = {
    "flux": ("lora_unet_single_blocks_0_modulation_lin", "FLUX.1"),
    "flux2": ("diffusion_model.single_stream_modulation.lin", "FLUX.2-klein"),
    "both": ("lora_unet_double_blocks_0_img_attn_qkv", "FLUX.1 or FLUX.2-klein"),
    "z_image": ("diffusion_model.noise_refiner.0.attention.to_q", "Z-Image"),
    "sd3": ("lora_unet_joint_blocks_0_x_block_attn_qkv", "Stable Diffusion 3"),
    "unet": ("lora_unet_mid_block_attentions_0_proj_in", "Stable Diffusion"),
}


@pytest.mark.parametrize(("kind", "family"), [
    ("flux", "flux2"), ("flux2", "flux"), ("both", "sd3"), ("z_image", "flux2"), ("sd3", "z_image"), ("unet", "flux2"),
    ("flux2", "sd1"), ("both", "sdxl"),
])  # fmt: skip
def test_a_lora_of_another_family_is_told_by_its_names(kind, family, tmp_path):
    name, title = TOLD[kind]
    lora = parts_of(name, {"lora_down.weight": np.ones((1, 8), "f4"), "lora_up.weight": np.ones((8, 1), "f4")},
                    tmp_path / "a.safetensors", "")  # fmt: skip
    with pytest.raises(SourceError, match=f"this LoRA is for {title}, and here is {FAMILIES[family].title}; a LoRA"):
        check_denoiser(lora, FAMILIES[family], "here")
    own = {"both": {"flux", "flux2"}, "unet": {"sd1", "sd2", "sdxl", "sdxl_refiner"}}.get(kind, {kind})
    assert denoisers_of(lora) == own
    for name in own:
        check_denoiser(lora, FAMILIES[name], "here")


def test_a_lora_of_more_blocks_is_refused_with_their_number(transformers, tmp_path):
    one = transformers("flux2")
    tensors = {}
    for block in range(9):
        name = f"diffusion_model.single_blocks.{block}.linear2"
        rows, columns = one.shapes["single_transformer_blocks.0.attn.to_out.weight"]
        tensors[f"{name}.lora_A.weight"] = np.ones((1, columns), "f4")
        tensors[f"{name}.lora_B.weight"] = np.ones((rows, 1), "f4")
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match=r"7 modules have no layer in transformer, of 9 for it: .*and 2 more"):
        one.merge(open_lora(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("rank", [1, 3])
def test_factors_whose_product_is_of_another_size_are_never_multiplied(rank, transformers, tmp_path):
    huge = 1 << 17  # Squared, it is 64 GiB.
    tensors = {"lokr_w1": np.ones((huge, rank), "f4"), "lokr_w2": np.ones((rank, huge), "f4")}
    lora = parts_of("single_blocks.0.linear2", tensors, tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match=r"does not fit single_transformer_blocks.0.attn.to_out.weight of t"):
        transformers("flux2").merge(lora)


def test_norms_of_control_loras_are_refused_by_name(tmp_path):
    factors = {f"lora_{role}.weight": np.ones((4, 4), "f4") for role in "AB"}
    with pytest.raises(SourceError, match=r"trained norms, as FLUX.1's control LoRAs do, .*: .*query_norm.scale"):
        parts_of("double_blocks.0.img_attn.proj", {**factors, "norm.query_norm.scale": np.ones(4, "f4")},
                 tmp_path / "a.safetensors", "")  # fmt: skip


def test_a_lora_of_a_flow_says_nothing_of_few_steps_of_noise(tmp_path):
    factors = {f"lora_{role}.weight": np.ones((4, 4), "f4") for role in "AB"}
    lora = parts_of("single_blocks.0.linear2", factors, tmp_path / "flux_sd_lcm_lightning_4steps.safetensors")
    assert lora.few_steps is None


@pytest.mark.slow
@pytest.mark.parametrize(("family", "style", "components"), [
    ("flux", "kohya", ("text_encoder",)), ("sd3", "peft", ("text_encoder", "text_encoder_2")),
    ("sd3", "diffusers_mid", ("text_encoder", "text_encoder_2")),
])  # fmt: skip
def test_text_encoders_beside_a_transformer_are_merged_as_diffusers_does(
    family, style, components, sdxl, transformers, tmp_path
):
    networks = {
        name: replace(sdxl["text_encoder_2" if family == "sd3" else name], component=name) for name in components
    }
    shapes = {name: one.shapes for name, one in networks.items()}
    path = make_lora(tmp_path / "a.safetensors", style, base=shapes, components=components, alpha=3.0)
    stored = load_file(path)
    assert sum("alpha" not in name for name in stored) >= 16 * len(components)
    one = transformers(family)
    layer = "transformer_blocks.0.attn.to_q"
    kohya = style == "kohya"
    prefix, roles = ("lora_unet_double_blocks_0_img_attn_proj", KOHYA) if kohya else (f"transformer.{layer}", PEFT)
    rows, columns = one.shapes[f"{layer}.weight"]
    more = {prefix + roles[0]: np.ones((1, columns), "f4"), prefix + roles[1]: np.ones((rows, 1), "f4")}
    save_file({**stored, **more}, path)
    lora = check(family, {"transformer": one, **networks}, path)
    assert lora.components == {"transformer", *components}


def test_t5_is_a_text_encoder_whose_number_kohya_gives(tmp_path):
    shapes = {"encoder.block.0.layer.0.SelfAttention.q.weight": (8, 8), "shared.weight": (4, 8)}
    for number in (2, 3):
        name = f"lora_te{number}_encoder_block_0_layer_0_SelfAttention_q"
        factors = {"lora_down.weight": np.ones((1, 8), "f4"), "lora_up.weight": np.ones((8, 1), "f4")}
        lora = parts_of(name, factors, tmp_path / "a.safetensors", "")
        assert lora.components == {f"text_encoder_{number}"}
        assert [*match_modules(f"text_encoder_{number}", shapes, lora)] == [*shapes][:1]
