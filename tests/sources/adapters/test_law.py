"""The law of each format, recomputed in NumPy from the stored tensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from olivelike.errors import UsageError
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import FORMATS, make_lora

ALPHA = 1.5
RANK = 2
WEIGHT = -0.6


def kron(left, right):
    """Return the Kronecker product over the first two axes of a matrix and a kernel, by its definition."""
    product = np.einsum("ij,kl...->ikjl...", left, right)
    return product.reshape(left.shape[0] * right.shape[0], left.shape[1] * right.shape[1], *right.shape[2:])


def delta(factors, shape):
    """Return up @ down and its kin, without a scale, in float64."""
    f = {role: values.astype(np.float64) for role, values in factors.items()}
    if "down" in f:
        if "mid" in f:
            up, down = f["up"][:, :, 0, 0], f["down"][:, :, 0, 0]
            return np.einsum("on,nmkl,mi->oikl", up, f["mid"], down)
        return (f["up"].reshape(len(f["up"]), -1) @ f["down"].reshape(len(f["down"]), -1)).reshape(shape)
    if "hada_t1" in f:
        return np.prod(
            [np.einsum("ijkl,ip,jr->prkl", f[f"hada_t{n}"], f[f"hada_w{n}_a"], f[f"hada_w{n}_b"]) for n in (1, 2)],
            axis=0,
        )
    if "hada_w1_a" in f:
        return ((f["hada_w1_a"] @ f["hada_w1_b"]) * (f["hada_w2_a"] @ f["hada_w2_b"])).reshape(shape)
    if "lokr_t2" in f:
        second = np.einsum("ijkl,ip,jr->prkl", f["lokr_t2"], f["lokr_w2_a"], f["lokr_w2_b"])
    elif "lokr_w2" in f:
        second = f["lokr_w2"]
    else:
        second = (f["lokr_w2_a"] @ f["lokr_w2_b"]).reshape(len(f["lokr_w2_a"]), -1, *shape[2:])
    return kron(f["lokr_w1"], second)


def expected_weight(base, factors, scale, weight):
    base = base.astype(np.float64)
    changed = base + scale * delta(factors, base.shape)
    magnitude = factors.get("magnitude", factors.get("dora_scale"))
    if magnitude is not None:
        axis = 1 if "dora_scale" in factors and magnitude.shape[0] == 1 else 0
        others = tuple(n for n in range(base.ndim) if n != axis)
        norm = np.sqrt((changed**2).sum(others, keepdims=True))
        changed = magnitude.reshape(norm.shape).astype(np.float64) * changed / norm
    return base + weight * (changed - base)


def options_of(style, networks):
    spelling = FORMATS[style].spelling
    modules = "attention" if spelling in ("old", "mid") else "all"
    components = ("unet",) if spelling == "native" else tuple(networks)
    return {"base": networks.shapes, "components": components, "modules": modules, "rank": RANK}


def check_law(style, networks, path, alpha):
    lora = open_lora(path)
    stored = load_file(lora.path)
    has_alpha = FORMATS[style].spelling not in ("old", "mid")
    for component in lora.components:
        network = networks[component]
        merged = network.merge((lora, WEIGHT))
        modules = [module for module in lora.modules.values() if module.component == component]
        assert len(merged) == len(modules)
        remaining = dict(merged)
        for module in modules:
            factors = {role: stored[name] for role, name in module.roles.items() if role != "alpha"}
            whole = "lokr_w1" in factors and "lokr_w2" in factors
            scale = alpha / RANK if has_alpha and (not whole or FORMATS[style].spelling == "native") else 1.0
            name = parameter_of(module, network)
            error = remaining.pop(name) - expected_weight(network.state[name], factors, scale, WEIGHT)
            assert np.linalg.norm(error) < 1e-6 * np.linalg.norm(network.state[name])
        assert not remaining


def parameter_of(module, network):
    """Return the parameter that a module names, found without the code under test."""
    name = module.name.removeprefix("base_model.model.").replace("processor.", "").replace(".", "_")
    for prefix in ("lora_unet_", "lora_te1_", "lora_te2_", "lora_te_", "unet_", "text_encoder_2_", "text_encoder_"):
        name = name.removeprefix(prefix)
    flat = {key.removesuffix(".weight").replace(".", "_"): key for key in network.shapes if key.endswith(".weight")}
    spellings = [name, name.removeprefix("text_model_"), f"{name}_0"]
    if "self_attn_to_" in name:
        spellings += [s.replace("_to_", "_") + "_proj" for s in spellings[:2]]
    return next(flat[spelled] for spelled in spellings if spelled in flat)


@pytest.mark.parametrize("style", sorted(FORMATS.keys() - {"kohya_sdxl"}))
def test_merged_weights_follow_the_law_of_the_format(style, sd1, tmp_path):
    name = "lora" if FORMATS[style].spelling == "native" else "lora.safetensors"
    path = make_lora(tmp_path / name, style, alpha=ALPHA, **options_of(style, sd1))
    check_law(style, sd1, path, ALPHA)


def test_without_alpha_the_difference_is_not_scaled(sd1, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", "kohya", **options_of("kohya", sd1))
    check_law("kohya", sd1, path, RANK)


def test_ldm_names_of_sdxl_give_the_weights_of_diffusers_names(sdxl, tmp_path):
    options = {"base": sdxl.shapes, "components": tuple(sdxl), "modules": "all", "alpha": ALPHA}
    ldm = open_lora(make_lora(tmp_path / "ldm.safetensors", "kohya_sdxl", **options))
    flat = open_lora(make_lora(tmp_path / "flat.safetensors", "kohya", **options))
    for network in sdxl.values():
        actual, expected = network.merge(ldm), network.merge(flat)
        layers = [name for name, shape in network.shapes.items() if name.endswith(".weight") and len(shape) > 1]
        tables = [name for name in layers if "token_embedding" in name or "position_embedding" in name]
        assert actual.keys() == expected.keys() == set(layers) - set(tables)
        assert all(np.array_equal(values, expected[name]) for name, values in actual.items())


def test_loras_in_any_order_give_the_same_bits(sd1, tmp_path):
    styles = {"kohya": 0.8, "dora": 0.5, "loha": -0.3, "lokr": 1.2}
    loras = [
        (
            open_lora(
                make_lora(
                    tmp_path / f"{style}.safetensors",
                    style,
                    seed=seed,
                    **options_of(style, sd1) | {"components": ("text_encoder",)},
                )
            ),
            weight,
        )
        for seed, (style, weight) in enumerate(styles.items())
    ]
    network = sd1["text_encoder"]
    first, *others = (network.merge(*order) for order in (loras, loras[::-1], [*loras[2:], *loras[:2]]))
    for other in others:
        assert all(other[name].tobytes() == values.tobytes() for name, values in first.items())


def test_two_loras_are_the_sum_of_their_differences(sd1, tmp_path):
    options = options_of("kohya", sd1)
    a, b = (open_lora(make_lora(tmp_path / f"{seed}.safetensors", "kohya", seed=seed, **options)) for seed in (1, 2))
    network = sd1["text_encoder"]
    both, left, right = network.merge((a, 0.5), (b, 2.0)), network.merge((a, 0.5)), network.merge((b, 2.0))
    for name, values in both.items():
        expected = left[name].astype(np.float64) + right[name] - network.state[name]
        assert np.linalg.norm(values - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("style", ["kohya", "dora", "lokr"])
def test_a_lora_of_weight_0_changes_nothing(style, sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", style, **options_of(style, sd1)))
    assert sd1["unet"].merge((lora, 0.0)) == {}
    other = open_lora(make_lora(tmp_path / "other.safetensors", "kohya", seed=3, **options_of("kohya", sd1)))
    alone, beside = sd1["unet"].merge(other), sd1["unet"].merge((lora, 0.0), other)
    assert all(beside[name].tobytes() == values.tobytes() for name, values in alone.items())


def test_parameters_without_a_difference_are_not_touched(sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes))
    merged = sd1["unet"].merge(lora)
    assert list(merged) == sorted(merged)
    assert all(".attn" in name and name.endswith(".weight") for name in merged)
    assert all(values.dtype == np.float32 for values in merged.values())


def test_a_lora_of_one_component_leaves_the_other_alone(sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes, components=("unet",)))
    assert lora.components == {"unet"}
    assert sd1["text_encoder"].merge(lora) == {}


def test_a_half_precision_base_is_merged_in_float32(sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes, dtype="F16"))
    network = sd1["text_encoder"]
    halves = {name: values.astype(np.float16) for name, values in network.state.items()}
    merged = network.merge(lora, state=halves)
    stored = load_file(lora.path)
    name = "encoder.layers.0.self_attn.q_proj.weight"
    module = lora.modules["lora_te_text_model_encoder_layers_0_self_attn_q_proj"]
    factors = {role: stored[key] for role, key in module.roles.items()}
    expected = expected_weight(halves[name], factors, 1.0, 1.0)
    assert np.linalg.norm(merged[name] - expected) < 1e-6 * np.linalg.norm(expected)


def test_pefts_metadata_overrides_alpha_per_module(sd1, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", "peft", base=sd1.shapes, alpha=4)
    with safe_open(path, "np") as file:
        metadata = json.loads(file.metadata()["lora_adapter_metadata"])
    metadata["unet.alpha_pattern"] = {"attn2.to_k": 6}
    metadata["text_encoder.use_rslora"] = True
    save_file(load_file(path), path, {"lora_adapter_metadata": json.dumps(metadata)})
    lora = open_lora(path)
    scales = {name: module.scale for name, module in lora.modules.items()}
    assert {scale for name, scale in scales.items() if "attn2.to_k" in name} == {1.5}
    assert {scale for name, scale in scales.items() if "attn2.to_v" in name} == {1.0}
    assert {scale for name, scale in scales.items() if name.startswith("text_encoder")} == {2.0}


def test_a_read_only_base_is_left_as_it_is(sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes))
    network = sd1["text_encoder"]
    frozen = {name: values.copy() for name, values in network.state.items()}
    for values in frozen.values():
        values.flags.writeable = False
    merged = network.merge(lora, state=frozen)
    assert all(np.array_equal(frozen[name], network.state[name]) for name in merged)


def test_a_row_of_zeros_stays_zero_under_dora(sd1, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", "dora", base=sd1.shapes, components=("text_encoder",))
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    for name, values in tensors.items():
        if name.endswith("lora_up.weight"):
            values[0] = 0
    save_file(tensors, path)
    network = sd1["text_encoder"]
    state = {name: values.copy() for name, values in network.state.items()}
    for values in state.values():
        values[0] = 0
    for values in network.merge(open_lora(path), state=state).values():
        assert np.isfinite(values).all()
        assert not values[0].any()


def test_a_weight_that_is_no_number_is_refused(sd1, tmp_path):
    lora = open_lora(make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes))
    with pytest.raises(UsageError, match="finite number, not nan"):
        sd1["unet"].merge((lora, float("nan")))
