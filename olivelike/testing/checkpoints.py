"""Checkpoints with the real classes and random weights, for tests, demos and benchmarks."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from olivelike._files import write_whole
from olivelike.model.components import INDEX_FILE
from olivelike.testing.checkpoint_configs import (
    INDEX,
    SCHEDULER,
    Size,
    component_configs,
    feature_extractor_config,
)
from olivelike.testing.checkpoint_families import FAMILY_CONFIGS
from olivelike.testing.checkpoint_hub_layout import extra_tensors, hub_name, stray_keys
from olivelike.testing.checkpoint_tokenizer import write_clip_tokenizer, write_tokenizer
from olivelike.testing.checkpoint_weights import random_parameter, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.testing.checkpoint_weights import Array, Dtype

Family = Literal["sd15", "sd15_inpainting", "sd21", "sd21_base", "sdxl", "sdxl_refiner"]
Layout = Literal["saved", "hub"]
_UNET_SHARDS = 2


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
    whole.

    Args:
        folder: where to write; made if absent.
        family: the pipeline: Stable Diffusion 1.5, the same for inpainting, 2.1 (v prediction), 2.1 base, XL base or
            XL refiner. Only `sd15` comes with a safety checker, in its sizes `tiny` and `full`.
        size: `tiny` (`sd15` alone, its default) has the structure at small widths (11 MB, pictures of 64 by 64 px);
            `small` (the default of the others) the smallest widths that obey the family's rules, with CLIP's whole
            vocabulary (27 to 41 MB), so that `make_single_file` can put it into one file; `full` the published
            sizes (SD 1.5: 859.5 M parameters in the UNet, 5.5 GB in all; XL base: 3.5 G, 6.9 GB in half precision).
        seed: of the random weights.
        layout: `saved` as today's libraries write; `hub` (`sd15` in its own sizes) as hubs hold it: older tensor
            names, stored `position_ids`, a sharded UNet with tensors in an order of its own, stray config keys.
        variant: `fp16` writes half-precision files beside the float32 ones.
        dtype: of the weight files that are no variant.
        hollow: leave holes in place of the weights: files of the whole size, written at once, all zeros.

    Returns:
        The folder.

    Raises:
        ValueError: for an unknown family, size, layout, variant or dtype, or ones that do not go together.
    """
    size = size or ("tiny" if family == "sd15" else "small")
    own = family == "sd15" and size != "small"
    for value, known in (
        (family, tuple(FAMILY_CONFIGS)),
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
    published = component_configs(size) if own else FAMILY_CONFIGS[family].configs(size)
    if own:
        _write_extras(root, size, layout, published["text_encoder"]["vocab_size"])
    else:
        _write_family_extras(root, family)
    for component, config in published.items():
        target = root / component
        target.mkdir(exist_ok=True)
        shapes = _write_config(target, component, config, layout)
        for name in (None, variant) if variant else (None,):
            stored: Dtype = "F16" if name else dtype
            _write_weights(
                target,
                component,
                config,
                shapes,
                seed=seed,
                layout=layout,
                variant=name,
                dtype=stored,
                hollow=hollow,
            )
    index = _index(layout) if own else dict(FAMILY_CONFIGS[family].index)
    write_whole(root / INDEX_FILE, _json_text(index).encode(), durable=False)
    return root


def _write_family_extras(root: Path, family: Family) -> None:
    """Write tokenizers and scheduler of any family."""
    configs = FAMILY_CONFIGS[family]
    for folder, pad in configs.tokenizers.items():
        write_clip_tokenizer(root / folder, pad)
    (root / "scheduler").mkdir(exist_ok=True)
    _write_json(root / "scheduler/scheduler_config.json", configs.scheduler)


def _write_extras(root: Path, size: Size, layout: Layout, vocab_size: int) -> None:
    """Write what is no network: tokenizer, scheduler and feature extractor."""
    write_tokenizer(root / "tokenizer", vocab_size)
    scheduler, extractor = dict(SCHEDULER), feature_extractor_config(size)
    if layout == "saved":
        import diffusers

        scheduler |= {
            "_diffusers_version": diffusers.__version__,
            "prediction_type": "epsilon",
            "timestep_spacing": "leading",
        }
        del extractor["feature_extractor_type"]
        extractor["image_processor_type"] = "CLIPImageProcessor"
    for name, value in (
        ("scheduler/scheduler_config", scheduler),
        ("feature_extractor/preprocessor_config", extractor),
    ):
        (root / name).parent.mkdir(exist_ok=True)
        _write_json(root / f"{name}.json", value)


def _index(layout: Layout) -> dict[str, Any]:
    index = dict(INDEX)
    if layout == "saved":
        import diffusers

        return index | {
            "_diffusers_version": diffusers.__version__,
            "image_encoder": [None, None],
            "requires_safety_checker": True,
        }
    return index | {"feature_extractor": ["transformers", "CLIPFeatureExtractor"]}


def _write_config(
    folder: Path, component: str, published: dict[str, Any], layout: Layout
) -> dict[str, tuple[int, ...]]:
    """Write `config.json`; return the parameters of the class that it describes, by today's names."""
    import torch

    with torch.device("meta"), _quiet():
        network = _build(component, published)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    if layout == "hub":
        _write_json(folder / "config.json", {**published, **stray_keys(component)})
    elif component in ("unet", "vae"):
        network.save_config(folder)
    else:
        network.config.architectures = [type(network).__name__]
        network.config.save_pretrained(folder)
    return shapes


def _build(component: str, config: dict[str, Any]) -> Any:
    import diffusers
    import transformers
    from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

    match component:
        case "unet":
            return diffusers.UNet2DConditionModel.from_config(config)
        case "vae":
            return diffusers.AutoencoderKL.from_config(config)
        case "text_encoder":
            return transformers.CLIPTextModel(transformers.CLIPTextConfig.from_dict(config))
        case "text_encoder_2":
            return transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig.from_dict(config))
    return StableDiffusionSafetyChecker(transformers.CLIPConfig.from_dict(config))


def _write_weights(
    folder: Path,
    component: str,
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    *,
    seed: int,
    layout: Layout,
    variant: str | None,
    dtype: Dtype,
    hollow: bool,
) -> None:
    stem = "diffusion_pytorch_model" if component in ("unet", "vae") else "model"
    name_of = {name: name for name in sorted(shapes)}
    extra: dict[str, int] = {}
    if layout == "hub":
        # The order of the modules, not the alphabet: tensors of one module lie together.
        name_of = {hub_name(component, name): name for name in shapes}
        extra = extra_tensors(component, config)
    tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {
        name: ("I64", (1, length)) for name, length in extra.items()
    }
    tensors |= {stored: (dtype, shapes[name]) for stored, name in name_of.items()}

    def value(stored: str) -> Array:
        if stored in extra:
            import numpy as np

            return np.arange(extra[stored])[None]
        return random_parameter(name_of[stored], shapes[name_of[stored]], seed, component)

    infix = f".{variant}" if variant else ""
    if layout == "hub" and component == "unet":
        parts = _split(list(tensors), _UNET_SHARDS)
        files = [f"{stem}{infix}-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
        where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        _write_json(folder / f"{stem}.safetensors.index{infix}.json", {"metadata": {}, "weight_map": where})
    else:
        parts, files = [list(tensors)], [f"{stem}{infix}.safetensors"]
    for file, part in zip(files, parts, strict=True):
        write_safetensors(folder / file, {name: tensors[name] for name in part}, None if hollow else value)


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
    path.write_text(_json_text(value), encoding="utf-8", newline="\n")


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
