"""Checkpoints in one file, as model sites hold them: the weights of a folder in the names of the original code.

Names and prefixes are those by which such files are read: `families` has them.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from olivelike._untrusted import Json
from olivelike.errors import SourceError, UsageError
from olivelike.families import DENOISERS, FAMILIES, TEXT_ENCODERS
from olivelike.families.family import TextPart
from olivelike.families.networks import stored_as
from olivelike.families.networks.clip import OPEN_CLIP
from olivelike.families.networks.unet import COMPONENT
from olivelike.model.components import INDEX_FILE
from olivelike.testing.checkpoints import Array, Dtype, random_parameter, write_safetensors

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
    `ValueError` if the folder holds a network whose original names are not known, such as a transformer.

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
    if whole := [name for name in DENOISERS if name != COMPONENT and name in index]:
        raise ValueError(f"{root}: files of pipelines with a {whole[0]} hold one network each; none is written here")
    entries: dict[str, _Entry] = {}
    for component, entry in sorted(index.items()):
        wanted = component != "safety_checker" if components is None else component in components
        exists = isinstance(entry, list) and entry[0] and (root / component / "config.json").is_file()
        if wanted and exists:
            prefix, found = _named(root, component, index)
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


def _named(root: Path, component: str, index: Json) -> tuple[str, dict[str, _Entry]]:
    """Return what stands before the names of a network in such a file, and its tensors by the rest of their names.

    Raises `ValueError` if no original names are known for it.
    """
    config = _config(root, component)
    file = next(root / component / name for name in _FILES if (root / component / name).is_file())
    tensors = _stored(file)
    if component in TEXT_ENCODERS:
        text = _text_part(root, component, index)
        if text.stored == "clip":
            return text.prefix, _clip(tensors, config)
        return text.prefix, _open_clip(tensors, config, skipped_layer=text.class_name == "CLIPTextModel")
    way = next((one for one in stored_as("vae_decoder" if component == "vae" else component) if one.expected), None)
    if way is None:
        raise ValueError(f"no original names are known for {component}")
    original = way.original(tensors)
    named = {str(original(name)): entry for name, entry in tensors.items()}
    return way.expected, {name: _as_convolution(name, entry) for name, entry in named.items()}


def _config(root: Path, component: str) -> Json:
    config: Json = json.loads((root / component / "config.json").read_text(encoding="utf-8"))
    return config


def _text_part(root: Path, component: str, index: Json) -> TextPart:
    """Return the text of the first family with these text encoders; small ones differ in widths, not in activations."""
    there = [name for name in TEXT_ENCODERS if index.get(name, [None])[0] is not None]
    activations = {name: _config(root, name)["hidden_act"] for name in there}
    for family in FAMILIES.values():
        configs = family.published.configs
        published = {text.component: configs.get(text.component, {}).get("hidden_act") for text in family.texts}
        if published == activations:
            return next(text for text in family.texts if text.component == component)
    raise ValueError(f"no original names are known for {component} with activations {activations}")


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


def _as_convolution(name: str, entry: _Entry) -> _Entry:
    """Return a matrix of a VAE's attention as the convolution of one pixel that the LDM code has."""
    if len(entry.shape) != 2 or ".mid.attn_1." not in name:
        return entry
    return _changed(entry, (*entry.shape, 1, 1), lambda a: a[:, :, None, None])


def _clip(tensors: dict[str, _Entry], config: Json) -> dict[str, _Entry]:
    import numpy as np

    length = config["max_position_embeddings"]
    named = {f"text_model.{name.removeprefix('text_model.')}": entry for name, entry in tensors.items()}
    positions = _Entry("I64", (1, length), lambda: np.arange(length)[None])
    return {**named, "text_model.embeddings.position_ids": positions}


def _open_clip(tensors: dict[str, _Entry], config: Json, *, skipped_layer: bool) -> dict[str, _Entry]:
    import numpy as np

    tensors = {name.removeprefix("text_model."): entry for name, entry in tensors.items()}
    projection = tensors.pop("text_projection.weight", None)
    original = OPEN_CLIP.original(tensors)
    named: dict[str, _Entry] = {new: entry for name, entry in tensors.items() if (new := original(name)) is not None}
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
