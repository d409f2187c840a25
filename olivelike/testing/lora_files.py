"""LoRA files of every format, with seeded random factors, for any network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from olivelike._untrusted import Json
from olivelike.families import DENOISERS, FAMILIES, TEXT_ENCODERS
from olivelike.families.networks.unet import COMPONENT, LdmNames
from olivelike.testing.checkpoints import Array, random_parameter

LoraFormat = Literal[
    "diffusers_old", "diffusers_mid", "peft", "peft_native", "peft_native_loha", "peft_native_lokr",
    "kohya", "kohya_sdxl", "locon", "locon_mid", "loha", "loha_mid", "lokr", "lokr_mid",
    "dora", "dora_input", "dora_peft",
]  # fmt: skip
Modules = Literal["attention", "attention+ff", "all"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Style:
    spelling: Literal["old", "mid", "peft", "native", "kohya", "ldm"]
    kind: Literal["lora", "loha", "lokr"] = "lora"
    core: bool = False
    magnitude: Literal["", "output", "input", "peft"] = ""


FORMATS: Mapping[str, _Style] = {
    "diffusers_old": _Style("old"),
    "diffusers_mid": _Style("mid"),
    "peft": _Style("peft"),
    "peft_native": _Style("native"),
    "peft_native_loha": _Style("native", "loha"),
    "peft_native_lokr": _Style("native", "lokr"),
    "kohya": _Style("kohya"),
    "kohya_sdxl": _Style("ldm"),
    "locon": _Style("kohya"),
    "locon_mid": _Style("kohya", core=True),
    "loha": _Style("kohya", "loha"),
    "loha_mid": _Style("kohya", "loha", core=True),
    "lokr": _Style("kohya", "lokr"),
    "lokr_mid": _Style("kohya", "lokr", core=True),
    "dora": _Style("kohya", magnitude="output"),
    "dora_input": _Style("kohya", magnitude="input"),
    "dora_peft": _Style("peft", magnitude="peft"),
}

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ROLES = {
    "old": {"down": "_lora.down.weight", "up": "_lora.up.weight"},
    "mid": {"down": ".lora.down.weight", "up": ".lora.up.weight"},
    "peft": {"down": ".lora_A.weight", "up": ".lora_B.weight", "magnitude": ".lora_magnitude_vector.weight"},
    "kohya": {"down": ".lora_down.weight", "up": ".lora_up.weight", "mid": ".lora_mid.weight",
              "magnitude": ".dora_scale"},
}  # fmt: skip
_TEXT_MID = {"down": ".lora_linear_layer.down.weight", "up": ".lora_linear_layer.up.weight"}
_ROLES |= {"native": _ROLES["peft"], "ldm": _ROLES["kohya"]}
_TRANSFORMER = (".ff.net.", ".mlp.fc", ".proj_in", ".proj_out")
_TEXT_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
_TABLES = ("token_embedding", "position_embedding")


def make_lora(
    path: str | Path,
    format: LoraFormat,  # noqa: A002  (the word of the field)
    *,
    base: str | Path | Mapping[str, Mapping[str, Shape]],
    rank: int = 4,
    alpha: float | None = None,
    seed: int = 0,
    components: tuple[str, ...] = (COMPONENT, TEXT_ENCODERS[0]),
    modules: Modules = "attention",
    dtype: Literal["F32", "F16", "BF16"] = "F32",
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a LoRA with seeded random factors for a network, as its trainer would spell it.

    The same seed gives the same factors under every spelling of one kind. Raises `ValueError` if a PEFT-native file is
    asked for several components, or nothing matches.

    Args:
        path: the file; for `peft_native` formats a folder, made if absent.
        format: a spelling and a kind; `kohya_sdxl` has LDM names, and `…_mid` a core for each convolution.
        base: a diffusers folder, or parameter → shape of each component.
        rank: of the factors.
        alpha: stored as the format stores it; the diffusers formats before PEFT have no place for it.
        seed: of the factors.
        components: what the file changes; one only for `peft_native` formats.
        modules: `attention` (its four projections), `attention+ff` (all of the transformer blocks, with the
            projections around them), or `all` linear layers and convolutions; the oldest format has attention
            only.
        dtype: of the tensors.
        metadata: more of it for the header.

    Returns:
        The path.
    """
    style, target = FORMATS[format], Path(path)
    if style.spelling == "native" and len(components) != 1:
        raise ValueError(f"PEFT's own format holds one component, not {', '.join(components)}")
    written = _Writing(style, frozenset(components), rank, alpha, seed)
    tensors: dict[str, Array] = {}
    targets: dict[str, list[str]] = {}
    for component in components:
        shapes = _layers(base, component)
        for layer in shapes:
            factors = _module(written, component, layer, shapes) if _chosen(layer, modules) else {}
            tensors |= factors
            if factors:
                targets.setdefault(component, []).append(layer)
    if not tensors:
        raise ValueError(f"no layer of {', '.join(components)} fits {format} with modules {modules!r}")
    header = dict(metadata or {})
    if style.spelling == "peft":
        header["lora_adapter_metadata"] = json.dumps(_diffusers_config(written, targets))
    if style.spelling == "native":
        target.mkdir(parents=True, exist_ok=True)
        config = json.dumps(_peft_config(written, targets[components[0]]), indent=2)
        (target / "adapter_config.json").write_text(config + "\n", encoding="utf-8")
        _save(target / "adapter_model.safetensors", tensors, dtype, header)
    else:
        _save(target, tensors, dtype, header)
    return target


@dataclass(frozen=True)
class _Writing:
    """Facts that all modules of a file have in common."""

    style: _Style
    components: frozenset[str]
    rank: int
    alpha: float | None
    seed: int


def _module(file: _Writing, component: str, layer: str, layers: Mapping[str, Shape]) -> dict[str, Array]:
    """Return stored name → values of one layer's factors; nothing if the format can't say it."""
    import numpy as np

    style, shape = file.style, layers[layer]
    name = _name(style, component, layer, frozenset(layers), file.components)
    if name is None:
        return {}
    suffixes = _ROLES[style.spelling]
    if style.spelling == "mid" and component not in DENOISERS:
        suffixes = _TEXT_MID
    tensors: dict[str, Array] = {}
    for role, size in factor_shapes(style.kind, shape, file.rank, core=style.core).items():
        values = random_parameter(f"{layer}/{role}.weight", size, file.seed, component)
        tensors[name + suffixes.get(role, f".{role}")] = values
    if style.magnitude:
        axis = 1 if style.magnitude == "input" else 0
        values = random_parameter(f"{layer}/magnitude.weight", (shape[axis],), file.seed, component)
        tensors[name + suffixes["magnitude"]] = values.reshape(_magnitude_shape(style, shape))
    if file.alpha is not None and style.spelling in ("kohya", "ldm"):
        tensors[f"{name}.alpha"] = np.array(file.alpha, np.float32)
    return tensors


def _magnitude_shape(style: _Style, shape: Shape) -> Shape:
    ones = [1] * (len(shape) - 2)
    if style.magnitude == "input":
        return (1, shape[1], *ones)
    if style.magnitude == "output":
        return (shape[0], 1, *ones)
    return (1, shape[0], *ones) if ones else (shape[0],)


def _name(style: _Style, component: str, layer: str, layers: frozenset[str], components: frozenset[str]) -> str | None:
    match style.spelling:
        case "old":
            return _diffusers_old_name(component, layer)
        case "native":
            return f"base_model.model.{_path_in(component, layer)}"
        case "kohya":
            return _kohya_name(component, layer, components)
        case "ldm" if component in DENOISERS:
            return _kohya_name(component, LdmNames(layers)(layer) or layer, components)
        case "ldm":
            return _kohya_name(component, layer, components | {*TEXT_ENCODERS})
    return _dotted_name(component, layer)


def _diffusers_old_name(component: str, layer: str) -> str | None:
    """Return the name before `_lora.down.weight`; `None` for what is no attention projection."""
    owner, _, leaf = layer.rpartition(".")
    if component in DENOISERS:
        found = re.fullmatch(r"(.+\.attn[12])\.(to_q|to_k|to_v|to_out)(?:\.0)?", layer)
        return f"{component}.{found[1]}.processor.{found[2]}" if found else None
    if owner.endswith("self_attn"):
        return f"{component}.text_model.{owner}.{_TEXT_ATTENTION[leaf]}"
    return None


def _dotted_name(component: str, layer: str) -> str:
    """Return the name that diffusers gives a layer: component and path."""
    return f"{component}.{_path_in(component, layer)}"


def _path_in(component: str, layer: str) -> str:
    """Return a layer's path, with the level that text encoders had when most files were written."""
    return layer if component in DENOISERS or layer == "text_projection" else f"text_model.{layer}"


def _kohya_name(component: str, layer: str, components: frozenset[str]) -> str:
    """Return kohya's name of a layer; two text encoders are numbered, one is not."""
    words = next(family.lora_names[component] for family in FAMILIES.values() if component in family.lora_names)
    first = components.isdisjoint(TEXT_ENCODERS[1:]) or component != TEXT_ENCODERS[0]
    return f"lora_{words[0] if first else words[1]}_{_path_in(component, layer).replace('.', '_')}"


def _layers(base: str | Path | Mapping[str, Mapping[str, Shape]], component: str) -> dict[str, Shape]:
    """Return the layers of a component that a LoRA can change, without a text encoder's oldest level."""
    shapes = _stored_shapes(Path(base) / component) if isinstance(base, str | Path) else base[component]
    return {
        name.removeprefix("text_model.").removesuffix(".weight"): tuple(shape)
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) > 1 and not any(table in name for table in _TABLES)
    }


def _stored_shapes(folder: Path) -> dict[str, Shape]:
    from safetensors import safe_open

    shapes: dict[str, Shape] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def _chosen(layer: str, modules: Modules) -> bool:
    attention = ".attn1." in layer or ".attn2." in layer or ".self_attn." in layer
    transformer = ".attentions." in layer or layer.startswith("encoder.")
    return (
        modules == "all"
        or attention
        or (modules == "attention+ff" and transformer and any(part in layer for part in _TRANSFORMER))
    )


def _diffusers_config(file: _Writing, targets: Mapping[str, list[str]]) -> Json:
    """Return what diffusers writes into the header: a config of PEFT per component, flat."""
    return {
        f"{component}.{name}": value
        for component, layers in targets.items()
        for name, value in _peft_config(file, layers).items()
    }


def _peft_config(file: _Writing, layers: list[str]) -> Json:
    """Return PEFT's config of one component, as far as it has no defaults."""
    config: Json = {
        "peft_type": file.style.kind.upper(),
        "r": file.rank,
        "target_modules": layers,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    alpha = file.rank if file.alpha is None else file.alpha
    if file.style.kind != "lora":
        return {**config, "alpha": alpha}
    return {**config, "lora_alpha": alpha, "use_dora": bool(file.style.magnitude)}


def _save(path: Path, tensors: Mapping[str, Array], dtype: str, metadata: dict[str, str]) -> None:
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, _DTYPES[dtype])
    kept = {name: torch.from_numpy(values).to(kind).contiguous() for name, values in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(kept, path, {"format": "pt", **metadata})


def factor_shapes(kind: str, weight: Shape, rank: int, *, core: bool = False) -> dict[str, Shape]:
    """Return role → shape: `down`, `up`, `mid`, or the names of LyCORIS.

    Args:
        kind: `lora`, `loha` or `lokr`.
        weight: (out, in) or (out, in, height, width).
        core: whether the kernel of a convolution is a factor of its own.
    """
    out, width, kernel = weight[0], weight[1], weight[2:]
    has_core = core and math.prod(kernel) > 1
    match kind:
        case "lora" if has_core:
            return {"down": (rank, width, 1, 1), "mid": (rank, rank, *kernel), "up": (out, rank, 1, 1)}
        case "lora":
            return {"down": (rank, width, *kernel), "up": (out, rank, *([1] * len(kernel)))}
        case "loha" if has_core:
            pairs = {f"hada_t{i}": (rank, rank, *kernel) for i in (1, 2)}
            return pairs | {
                f"hada_w{i}_{side}": (rank, size) for i in (1, 2) for side, size in (("a", out), ("b", width))
            }
        case "loha":
            columns = width * math.prod(kernel)
            sides: Mapping[str, Shape] = {"a": (out, rank), "b": (rank, columns)}
            return {f"hada_w{i}_{side}": shape for i in (1, 2) for side, shape in sides.items()}
    return _lokr(weight, rank, has_core=has_core)


def _lokr(weight: Shape, rank: int, *, has_core: bool) -> dict[str, Shape]:
    """Return Kronecker factors: the small one whole, the large one in parts if the rank is low enough."""
    (small_out, large_out), (small_in, large_in) = _split(weight[0]), _split(weight[1])
    kernel = weight[2:]
    shapes: dict[str, Shape] = {"lokr_w1": (small_out, small_in)}
    if rank >= max(large_out, large_in) / 2:
        return shapes | {"lokr_w2": (large_out, large_in, *kernel)}
    if has_core:
        return shapes | {
            "lokr_t2": (rank, rank, *kernel),
            "lokr_w2_a": (rank, large_out),
            "lokr_w2_b": (rank, large_in),
        }
    return shapes | {"lokr_w2_a": (large_out, rank), "lokr_w2_b": (rank, large_in * math.prod(kernel))}


def _split(size: int) -> tuple[int, int]:
    """Return the two divisors nearest to each other, the smaller first."""
    small = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    return small, size // small
