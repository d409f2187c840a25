"""Checkpoints with the real classes and random weights, for tests, demos and benchmarks.

Weights are seeded, random, of a sane scale, and streamed to safetensors files one tensor at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from olivelike._files import write_whole
from olivelike._light_diffusers import light_diffusers
from olivelike.families import DENOISERS, FAMILIES
from olivelike.model.components import INDEX_FILE, SAFETY_CHECKER
from olivelike.sources.identify.published import network_class
from olivelike.testing.checkpoint_configs import (
    INDEX,
    KINDS,
    Config,
    Family,
    Size,
    component_configs,
    feature_extractor_config,
    hub_configs,
    pipeline_index,
    scheduler_config,
    write_clip_tokenizer,
    write_published_tokenizer,
    write_tokenizer,
)

if TYPE_CHECKING:
    import numpy as np

    from olivelike._untrusted import Json

Layout = Literal["saved", "hub"]
_CHECKER = ("stable_diffusion", "StableDiffusionSafetyChecker")
_UNET_SHARDS = 2
_COUNT = "num_batches_tracked"
"""End of the name of a norm's count of what it has seen, a whole number that nothing computes with."""
_OLD_VAE_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def make_checkpoint(
    folder: str | Path,
    family: Family = "sd15",
    *,
    size: Size | None = None,
    seed: int = 0,
    layout: Layout = "saved",
    variant: Literal["fp16"] | None = None,
    dtype: Literal["F32", "F16"] = "F32",
    hollow: bool = False,
) -> Path:
    """Write a diffusers folder with seeded random weights.

    The same `seed` gives the same weights in both layouts. `model_index.json` comes last: a folder that has it is
    whole. Raises `ValueError` for an unknown family, size, layout, variant or dtype, or ones that do not go together.

    Args:
        folder: where to write; made if absent.
        family: the pipeline: Stable Diffusion 1.5, the same for inpainting, 2.1 (v prediction), 2.1 base, XL base, XL
            refiner or 3.5 medium, FLUX.1, FLUX.2-klein or Z-Image. Only `sd15` comes with a safety checker, in its
            sizes `tiny` and `full`.
        size: `tiny` (`sd15` alone, its default) has the structure at small widths (11 MB, pictures of 64 by 64 px);
            `small` (the default of the others) the smallest widths that obey the family's rules, with the whole
            vocabulary (27 to 45 MB), so that `make_single_file` can put it into one file; `full` the published
            sizes (SD 1.5: 859.5 M parameters in the UNet, 5.5 GB in all; XL base: 3.5 G, 6.9 GB in half precision).
        seed: of the random weights.
        layout: `saved` as today's libraries write; `hub` (`sd15` in its own sizes) as hubs hold it: older tensor
            names, stored `position_ids`, a sharded UNet with tensors in an order of its own, stray config keys.
        variant: `fp16` writes half-precision files beside the float32 ones.
        dtype: of the weight files that are no variant.
        hollow: leave holes in place of the weights: files of the whole size, written at once, all zeros.

    Returns:
        The folder.
    """
    size = size or ("tiny" if family == "sd15" else "small")
    own = family == "sd15" and size != "small"
    for value, known in (
        (family, tuple(KINDS)),
        (size, ("tiny", "small", "full") if family == "sd15" else ("small", "full")),
        (layout, ("saved", "hub") if own else ("saved",)),
        (dtype, ("F32", "F16")),
    ):
        if value not in known:
            raise ValueError(f"expected one of {', '.join(known)}, found {value!r}")
    if variant not in (None, "fp16"):
        raise ValueError(f"expected fp16 or no variant, found {variant!r}")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    (root / INDEX_FILE).unlink(missing_ok=True)
    published = hub_configs(size) if layout == "hub" else component_configs(size, family)
    if own:
        _write_extras(root, size, layout, published["text_encoder"]["vocab_size"])
    else:
        for name, settings in KINDS[family].tokenizers.items():
            if settings.startswith("pad"):
                write_clip_tokenizer(root / name, settings)
            else:
                write_published_tokenizer(root, KINDS[family].family, name)
        _write_json(root / "scheduler/scheduler_config.json", scheduler_config(family))
    for component, config in published.items():
        target = root / component
        target.mkdir(exist_ok=True)
        home = _CHECKER if component == SAFETY_CHECKER else network_class(FAMILIES[KINDS[family].family], component)
        shapes = _write_config(target, home, config, layout)
        weights = _Weights(component, config, shapes, seed, layout, hollow)
        weights.write(target, None, dtype)
        if variant:
            weights.write(target, variant, "F16")
    index = _index(layout) if own else pipeline_index(family)
    write_whole(root / INDEX_FILE, _json_text(index).encode(), durable=False)
    return root


def _write_extras(root: Path, size: Size, layout: Layout, vocab_size: int) -> None:
    """Write what is no network of SD 1.5: tokenizer, scheduler and feature extractor."""
    write_tokenizer(root / "tokenizer", vocab_size)
    scheduler, extractor = scheduler_config("sd15"), feature_extractor_config(size)
    if layout == "saved":
        import diffusers

        scheduler |= {
            "_diffusers_version": diffusers.__version__,
            "prediction_type": "epsilon",
            "timestep_spacing": "leading",
        }
        del extractor["feature_extractor_type"]
        extractor["image_processor_type"] = "CLIPImageProcessor"
    _write_json(root / "scheduler/scheduler_config.json", scheduler)
    _write_json(root / "feature_extractor/preprocessor_config.json", extractor)


def _index(layout: Layout) -> Config:
    if layout == "hub":
        return INDEX | {"feature_extractor": ["transformers", "CLIPFeatureExtractor"]}
    import diffusers

    return INDEX | {
        "_diffusers_version": diffusers.__version__,
        "image_encoder": [None, None],
        "requires_safety_checker": True,
    }


def _write_config(folder: Path, home: tuple[str, str], published: Config, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Write `config.json`; return the parameters of the class that it describes, by today's names.

    `home` is the class's library, and its name.
    """
    network = _build(*home, json.dumps(published))
    config = getattr(network, "config", None)
    tied = {*network.all_tied_weights_keys} if getattr(config, "tie_word_embeddings", False) else set()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if name not in tied}
    if layout == "hub":
        _write_json(folder / "config.json", published)
    elif home[0] == "diffusers":
        network.save_config(folder)
    else:
        network.config.architectures = [type(network).__name__]
        network.config.save_pretrained(folder)
    return shapes


@lru_cache(maxsize=32)
def _build(library: str, class_name: str, config_json: str) -> Any:
    """Return a network without values; seeds, dtypes and families share it."""
    import torch

    with torch.device("meta"), _quiet():
        return _instantiate(library, class_name, json.loads(config_json))


def _instantiate(library: str, class_name: str, config: Config) -> Any:
    import transformers

    with light_diffusers():
        import diffusers.pipelines

        if library == "diffusers":
            return getattr(diffusers, class_name).from_config(config)
        home = transformers if library == "transformers" else getattr(diffusers.pipelines, library)
        network: Any = getattr(home, class_name)
    return network(network.config_class.from_dict(config))


@dataclass(frozen=True)
class _Weights:
    """The weights of one network."""

    component: str
    config: Config
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of tensors by today's names."""
    seed: int
    layout: Layout
    hollow: bool

    def write(self, folder: Path, variant: str | None, dtype: Dtype) -> None:
        stem = "diffusion_pytorch_model" if self.component in (*DENOISERS, "vae") else "model"
        name_of = {name: name for name in sorted(self.shapes)}
        positions: dict[str, int] = {}
        if self.layout == "hub":
            # The order of the modules, not the alphabet: tensors of one module lie together.
            name_of = {_hub_name(self.component, name): name for name in self.shapes}
            positions = _stored_positions(self.component, self.config)
        tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {
            name: ("I64", (1, length)) for name, length in positions.items()
        }
        tensors |= {
            stored: ("I64" if name.endswith(_COUNT) else dtype, self.shapes[name]) for stored, name in name_of.items()
        }

        def value(stored: str) -> Array:
            if stored in positions:
                import numpy as np

                return np.arange(positions[stored])[None]
            name = name_of[stored]
            if name.endswith(_COUNT):
                import numpy as np

                return np.zeros(self.shapes[name])
            return random_parameter(name, self.shapes[name], self.seed, self.component)

        infix = f".{variant}" if variant else ""
        if self.layout == "hub" and self.component in DENOISERS:
            parts = _split(list(tensors), _UNET_SHARDS)
            files = [f"{stem}{infix}-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
            where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
            index = folder / f"{stem}.safetensors.index{infix}.json"
            _write_json(index, {"metadata": {}, "weight_map": where})
        else:
            parts, files = [list(tensors)], [f"{stem}{infix}.safetensors"]
        for file, part in zip(files, parts, strict=True):
            written = {name: tensors[name] for name in part}
            write_safetensors(folder / file, written, None if self.hollow else value)


def _hub_name(component: str, name: str) -> str:
    """Return the older name under which hubs store a parameter."""
    match component:
        case "text_encoder":
            return f"text_model.{name}"
        case "safety_checker":
            return re.sub(r"^vision_model\.", "vision_model.vision_model.", name)
        case "vae" if ".attentions." in name:
            for new, old in _OLD_VAE_ATTENTION.items():
                name = name.replace(f".{new}.", f".{old}.")
    return name


def _stored_positions(component: str, config: Config) -> dict[str, int]:
    """Return names and lengths of stored `position_ids`, which are no parameters."""
    match component:
        case "text_encoder":
            return {"text_model.embeddings.position_ids": config["max_position_embeddings"]}
        case "safety_checker":
            vision = config["vision_config"]
            length = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
            return {"vision_model.vision_model.embeddings.position_ids": length}
    return {}


def _split(names: list[str], count: int) -> list[list[str]]:
    length = -(-len(names) // count)
    return [names[start : start + length] for start in range(0, len(names), length)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence diffusers' remarks about the stray keys, which are meant to be there."""
    from diffusers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(_json_text(value), encoding="utf-8", newline="\n")


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Dtype = Literal["F32", "F16", "BF16", "I64"]
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
_EMBEDDINGS = ("_embedding", "_embedding.weight", "_embeds")


def random_parameter(name: str, shape: tuple[int, ...], seed: int, component: str) -> Array:
    """Return the float32 values of a parameter; they depend on nothing but the arguments.

    Matrices and kernels are normal with variance 1 / fan-in, norms lie near 1, biases near 0 but not at 0,
    so a network of any depth has outputs that neither vanish nor explode, in float16 either.
    """
    import numpy as np

    word = hashlib.sha256(f"{seed}/{component}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(word[:16], "little")))
    values: Array = generator.standard_normal(shape, dtype=np.float32)
    mean, deviation = _distribution(name, shape)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


def write_safetensors(
    path: Path,
    tensors: Mapping[str, tuple[Dtype, tuple[int, ...]]],
    value: Callable[[str], Array] | None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file without holding more than two tensors.

    Args:
        path: the file.
        tensors: dtype and shape of each tensor, in the order of their bytes.
        value: returns a tensor by name, in any floating dtype; `None` leaves a hole of the whole size, which reads
            as zeros and takes no room on most disks.
        metadata: further entries of the header's metadata.
    """
    header: Json = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * _ITEM_SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    names: Sequence[str] = list(tensors)
    with path.open("wb") as file, ThreadPoolExecutor(max_workers=1) as ahead:
        file.write(struct.pack("<Q", len(text)) + text)
        if value is None:
            file.truncate(8 + len(text) + offset)
            return
        pending = ahead.submit(value, names[0])
        for name, following in zip(names, [*names[1:], None], strict=True):
            array = pending.result()
            if following is not None:
                pending = ahead.submit(value, following)
            file.write(_bytes_of(array, tensors[name][0]))


def _bytes_of(array: Array, dtype: Dtype) -> memoryview:
    import ml_dtypes
    import numpy as np

    names: dict[Dtype, Any] = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "I64": "<i8"}
    converted = array.astype(names[dtype], order="C", copy=False)
    return converted.reshape(-1).view(np.uint8).data


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of a parameter's values."""
    if name.endswith("_embeds_weights"):
        return 0.5, 0.02  # thresholds on a cosine: far above that of two random directions
    if name.endswith(_EMBEDDINGS):
        return 0.0, 0.5
    if name.endswith("running_var"):
        return 1.0, 0.1
    if len(shape) > 1:
        return 0.0, 1 / math.sqrt(math.prod(shape[1:]))
    return (1.0, 0.1) if name.endswith("weight") else (0.0, 0.05)
