"""Checkpoints in one file, as model sites hold them: the weights of a folder in the names of the original code.

How trainers, the original (LDM) code and open_clip spell what diffusers and transformers name their own way.

Written from the networks' definitions: https://github.com/CompVis/stable-diffusion (`openaimodel.py`, `model.py`) and
https://github.com/mlfoundations/open_clip (`transformer.py`).
"""

from __future__ import annotations

import json
import math
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from olivelike.errors import SourceError, UsageError
from olivelike.model.components import INDEX_FILE
from olivelike.testing.checkpoints import Array, Dtype, random_parameter, write_safetensors

if TYPE_CHECKING:
    from olivelike._untrusted import Json

    Read = Callable[[str], Array]

_FILES = ("diffusion_pytorch_model.safetensors", "model.safetensors")
_STORED = {"F32": "<f4", "F16": "<f2"}
_SEED_OF_UNUSED = 1
_TOLD_BY_NO_TENSOR = frozenset({"norm_num_groups", "attention_head_dim", "num_attention_heads", "hidden_act"})


@dataclass(frozen=True)
class _Entry:
    """One tensor of the file."""

    dtype: Dtype
    shape: tuple[int, ...]
    value: Callable[[], Array]


def make_single_file(
    folder: str | Path,
    path: str | Path,
    *,
    dtype: Literal["F32", "F16", "BF16"] | None = None,
    components: Iterable[str] | None = None,
    prefixes: bool = True,
    pickled: bool = False,
    marks: Iterable[str] = (),
    metadata: Mapping[str, str] | None = None,
    hollow: bool = False,
) -> Path:
    """Write a folder of `make_checkpoint` as one file in the layout of the original code.

    open_clip's q, k and v are one tensor and its projection is transposed; the VAE's attention is convolutions of one
    pixel; an SD 2 file has the last text layer, which its pipeline skips. Tensors are streamed, unless pickled. Raises
    `ValueError` if the folder holds a network whose original names are not known.

    Args:
        folder: a diffusers folder, layout `saved`.
        path: the file; its folder exists.
        dtype: of the floating tensors; `None` keeps each as it is.
        components: folders to put in, such as `vae`; by default all but the safety checker.
        prefixes: begin each name with its network's prefix; `False` fits a file with one network.
        pickled: write a `.ckpt` of torch, with `state_dict` and training leftovers, in place of safetensors.
        marks: names of empty tensors to add, such as `v_pred` and `ztsnr`.
        metadata: entries of the safetensors header.
        hollow: leave a hole in place of the weights, as in `make_checkpoint`.

    Returns:
        The file.
    """
    root, target = Path(folder), Path(path)
    index = json.loads((root / INDEX_FILE).read_text(encoding="utf-8"))
    entries: dict[str, _Entry] = {}
    for component, entry in sorted(index.items()):
        wanted = component != "safety_checker" if components is None else component in components
        exists = isinstance(entry, list) and entry[0] and (root / component / "config.json").is_file()
        if wanted and exists:
            prefix = _prefix(component, index)
            found = _network(root, component, index)
            entries |= {(prefix if prefixes else "") + name: value for name, value in found.items()}
    entries |= {mark: _Entry("F32", (0,), _empty) for mark in marks}
    if dtype is not None:
        entries = {
            name: _Entry(e.dtype if e.dtype == "I64" else dtype, e.shape, e.value) for name, e in entries.items()
        }
    if pickled:
        _pickle(target, entries)
    else:
        tensors = {name: (entry.dtype, entry.shape) for name, entry in entries.items()}
        value = None if hollow else lambda name: entries[name].value()
        write_safetensors(target, tensors, value, metadata)
    return target


def require_readable(folder: str | Path) -> None:
    """Check that a folder's networks are what a reader of one file takes them for.

    One file has no config: widths are read from the tensors, and what they do not tell (groups, heads) is that of the
    published family.

    Raises:
        UsageError: naming the network and what differs.
    """
    from olivelike.sources.single_file import SingleFile

    with tempfile.TemporaryDirectory(prefix="olivelike-single-file-") as scratch:
        file = SingleFile.open(make_single_file(folder, Path(scratch, "hollow"), hollow=True), None, None)
        for part in file.identity.parts:
            own = json.loads((Path(folder) / part.folder / "config.json").read_bytes())
            try:
                known = file.config(part.folder)
            except SourceError as error:
                raise UsageError(f"{folder} can't be put into one file: {error}") from error
            for key in sorted(_TOLD_BY_NO_TENSOR & own.keys() & known.keys()):
                if own[key] != known[key]:
                    raise UsageError(
                        f"{folder} can't be put into one file: {part.folder} has {key} {own[key]}, which no tensor "
                        f"tells, and a file of its family is read with {known[key]}; the size `small` of "
                        "`make-checkpoint` is like the published ones"
                    )


def _prefix(component: str, index: Json) -> str:
    xl = "XL" in index["_class_name"]
    base = index.get("text_encoder", [None])[0] is not None
    match component:
        case "unet":
            return "model.diffusion_model."
        case "vae":
            return "first_stage_model."
        case "text_encoder":
            return "conditioner.embedders.0.transformer." if xl else "cond_stage_model."
        case "text_encoder_2":
            return f"conditioner.embedders.{int(base)}.model."
    raise ValueError(f"no original names are known for {component}")


def _network(root: Path, component: str, index: Json) -> dict[str, _Entry]:
    """Return a network's tensors by original name, without its prefix."""
    config = json.loads((root / component / "config.json").read_text(encoding="utf-8"))
    file = next(root / component / name for name in _FILES if (root / component / name).is_file())
    tensors = _stored(file)
    match component:
        case "unet":
            return {original_unet(name, config): entry for name, entry in tensors.items()}
        case "vae":
            return _vae(tensors, config)
        case "text_encoder_2":
            return _open_clip(tensors, config)
    if "XL" in index["_class_name"]:
        return _clip(tensors, config)
    second = config["hidden_act"] == "gelu"
    level = "model." if second else "transformer."
    named = _open_clip(tensors, config, skipped_layer=True) if second else _clip(tensors, config)
    return {level + name: entry for name, entry in named.items()}


def _stored(path: Path) -> dict[str, _Entry]:
    """Return the tensors of a safetensors file, each read when it is asked for; a mapped file would stay in memory."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)

    def take(dtype: Dtype, shape: list[int], begin: int) -> _Entry:
        def read() -> Array:
            import numpy as np

            array = np.fromfile(path, _STORED[dtype], math.prod(shape), offset=8 + length + begin)
            return array.reshape(shape)

        return _Entry(dtype, tuple(shape), read)

    return {name: take(e["dtype"], e["shape"], e["data_offsets"][0]) for name, e in header.items()}


def _vae(tensors: dict[str, _Entry], config: Json) -> dict[str, _Entry]:
    named: dict[str, _Entry] = {}
    for name, entry in tensors.items():
        original = original_vae(name, config)
        if is_vae_attention_matrix(original):
            named[original] = _changed(entry, (*entry.shape, 1, 1), lambda a: a[:, :, None, None])
        else:
            named[original] = entry
    return named


def _clip(tensors: dict[str, _Entry], config: Json) -> dict[str, _Entry]:
    import numpy as np

    length = config["max_position_embeddings"]
    named = {f"text_model.{name.removeprefix('text_model.')}": entry for name, entry in tensors.items()}
    positions = _Entry("I64", (1, length), lambda: np.arange(length)[None])
    return {**named, "text_model.embeddings.position_ids": positions}


def _open_clip(tensors: dict[str, _Entry], config: Json, *, skipped_layer: bool = False) -> dict[str, _Entry]:
    import numpy as np

    tensors = {name.removeprefix("text_model."): entry for name, entry in tensors.items()}
    named: dict[str, _Entry] = {}
    projection = tensors.pop("text_projection.weight", None)
    for name, entry in tensors.items():
        original = original_open_clip(name)
        if original is not None:
            named[original] = entry
    for layer in range(config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            parts = [tensors[f"encoder.layers.{layer}.self_attn.{x}_proj.{kind}"] for x in "qkv"]
            named[f"transformer.resblocks.{layer}.attn.in_proj_{kind}"] = _joined(parts)
    width = config["hidden_size"]
    if projection is not None:
        named["text_projection"] = _changed(projection, projection.shape[::-1], lambda a: a.T)
    if skipped_layer:
        last = f"transformer.resblocks.{config['num_hidden_layers']}."
        first = "transformer.resblocks.0."
        for name, entry in list(named.items()):
            if name.startswith(first):
                named[last + name.removeprefix(first)] = _random(name, entry.shape, entry.dtype)
        named["text_projection"] = _random("text_projection", (width, width), named["ln_final.bias"].dtype)
    named["logit_scale"] = _Entry("F32", (), lambda: np.array(4.6, np.float32))
    return named


def _joined(parts: list[_Entry]) -> _Entry:
    import numpy as np

    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return _Entry(parts[0].dtype, shape, lambda: np.concatenate([part.value() for part in parts]))


def _changed(entry: _Entry, shape: tuple[int, ...], change: Callable[[Array], Array]) -> _Entry:
    return _Entry(entry.dtype, shape, lambda: change(entry.value()))


def _random(name: str, shape: tuple[int, ...], dtype: Dtype) -> _Entry:
    return _Entry(dtype, shape, lambda: random_parameter(name, shape, _SEED_OF_UNUSED, "unused"))


def _empty() -> Array:
    import numpy as np

    return np.zeros(0, np.float32)


def _pickle(path: Path, entries: dict[str, _Entry]) -> None:
    """Write what training programs save: tensors under `state_dict`, counters and a dict of callbacks beside them."""
    import torch

    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
    tensors = {
        name: torch.from_numpy(entry.value().copy(order="C")).to(dtypes[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
    }
    torch.save({"epoch": 1, "global_step": 470000, "callbacks": {}, "state_dict": tensors}, path)


_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_OUTER = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_OPEN_CLIP_OUTER = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_OPEN_CLIP_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_TEXT_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


def original_unet(name: str, config: Json) -> str:
    """Return a UNet parameter's name in the LDM code."""
    for own, original in _UNET_OUTER.items():
        if name.startswith(f"{own}."):
            return original + name[len(own) :]
    if name.startswith("mid_block."):
        _, kind, position, rest = name.split(".", 3)
        if kind == "attentions":
            return f"middle_block.1.{rest}"
        return f"middle_block.{2 * int(position)}.{_renamed(rest, _RESNET)}"
    way, block, kind, index, rest = _split_block(name)
    layers = config["layers_per_block"]
    if way == "down":
        first = block * (layers + 1) + 1
        if kind == "downsamplers":
            return f"input_blocks.{first + layers}.0.op.{rest}"
        home = f"input_blocks.{first + index}"
    else:
        first = block * (layers + 1)
        if kind == "upsamplers":
            slot = 2 if config["up_block_types"][block].startswith("CrossAttn") else 1
            return f"output_blocks.{first + layers}.{slot}.conv.{rest}"
        home = f"output_blocks.{first + index}"
    return f"{home}.0.{_renamed(rest, _RESNET)}" if kind == "resnets" else f"{home}.1.{rest}"


def original_vae(name: str, config: Json) -> str:
    """Return a VAE parameter's name in the LDM code."""
    side, _, inner = name.partition(".")
    if side not in ("encoder", "decoder"):
        return name
    inner = inner.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
    if inner.startswith("mid_block.resnets."):
        _, _, position, rest = inner.split(".", 3)
        return f"{side}.mid.block_{int(position) + 1}.{rest}"
    if inner.startswith("mid_block.attentions.0."):
        return f"{side}.mid.attn_1.{_renamed(inner.split('.', 3)[3], _VAE_ATTENTION)}"
    if not inner.startswith(("down_blocks.", "up_blocks.")):
        return f"{side}.{inner}"
    way, block, kind, index, rest = _split_block(inner)
    level = block if way == "down" else len(config["up_block_types"]) - 1 - block
    if kind == "resnets":
        return f"{side}.{way}.{level}.block.{index}.{rest}"
    return f"{side}.{way}.{level}.{way}sample.conv.{rest}"


def is_vae_attention_matrix(name: str) -> bool:
    """Tell whether the LDM code has a convolution of one pixel where diffusers has a matrix."""
    return ".mid.attn_1." in name and name.endswith(".weight") and ".norm." not in name


def original_open_clip(name: str) -> str | None:
    """Return a text encoder parameter's name in open_clip; `None` for q, k and v, which it stores as one."""
    if name in _OPEN_CLIP_OUTER:
        return _OPEN_CLIP_OUTER[name]
    _, _, index, rest = name.split(".", 3)
    if re.match(r"self_attn\.[qkv]_proj\.", rest):
        return None
    return f"transformer.resblocks.{index}.{_renamed(rest, _OPEN_CLIP_LAYER)}"


def _split_block(name: str) -> tuple[str, int, str, int, str]:
    match = _BLOCK.match(name)
    assert match is not None, f"{name} is of no known block"
    way, block, kind, index, rest = match.groups()
    if kind.endswith("samplers"):
        rest = rest.removeprefix("conv.")
    return way, int(block), kind, int(index), rest


def _renamed(rest: str, names: dict[str, str]) -> str:
    for own, original in names.items():
        if rest.startswith(f"{own}."):
            return original + rest[len(own) :]
    return rest


def diffusers_old_name(component: str, layer: str) -> str | None:
    """Return the name before `_lora.down.weight`; `None` for what is no attention projection."""
    owner, _, leaf = layer.rpartition(".")
    if component == "unet":
        found = re.fullmatch(r"(.+\.attn[12])\.(to_q|to_k|to_v|to_out)(?:\.0)?", layer)
        return f"unet.{found[1]}.processor.{found[2]}" if found else None
    if owner.endswith("self_attn"):
        return f"{component}.text_model.{owner}.{_TEXT_ATTENTION[leaf]}"
    return None


def dotted_name(component: str, layer: str) -> str:
    """Return the name that diffusers gives a layer: component and path."""
    return f"{component}.{path_in(component, layer)}"


def path_in(component: str, layer: str) -> str:
    """Return a layer's path, with the level that text encoders had when most files were written."""
    return layer if component == "unet" or layer == "text_projection" else f"text_model.{layer}"


def kohya_name(component: str, layer: str, components: frozenset[str]) -> str:
    """Return kohya's name of a layer; two text encoders are numbered, one is not."""
    prefix = {"unet": "unet", "text_encoder": "te", "text_encoder_2": "te2"}[component]
    if prefix == "te" and "text_encoder_2" in components:
        prefix = "te1"
    return f"lora_{prefix}_{path_in(component, layer).replace('.', '_')}"


def ldm_name(layer: str, layers: frozenset[str]) -> str:
    """Return the LDM name of a UNet's layer, which kohya uses for XL.

    Args:
        layer: path in diffusers.
        layers: all layers of the UNet: they say how many of them a block has.
    """
    levels = {int(match[1]) for name in layers if (match := re.match(r"up_blocks\.(\d+)\.", name))}
    resnets = {int(match[1]) for name in layers if (match := re.match(r"down_blocks\.0\.resnets\.(\d+)\.", name))}
    attends = {level for level in levels if any(name.startswith(f"up_blocks.{level}.attentions.") for name in layers)}
    config = {
        "layers_per_block": len(resnets),
        "up_block_types": ["CrossAttnUpBlock2D" if level in attends else "UpBlock2D" for level in sorted(levels)],
    }
    return original_unet(f"{layer}.weight", config).removesuffix(".weight")
