"""Make the shelf that ships: what `load` and `convert` make of every published network, from configs alone.

    python tools/make_shelf.py                       # into olivelike/data/shelf; graphs that are there stay
    python tools/make_shelf.py --fresh               # trace them all again: half an hour
    python tools/make_shelf.py --only sd15,demo
    python tools/make_shelf.py --check               # make it again and compare, byte for byte

No weights are needed: folders and single files with holes in place of them are written as hubs and model sites hold
them, and read as any source is. Entries of what no longer exists are removed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.data import demo_edges, demo_folder, demo_transformer
from olivelike.families import FAMILIES, family_of_folder
from olivelike.families.networks import classes_of
from olivelike.families.networks.clip import PROJECTION
from olivelike.graphs.shelf import BUILT_IN, Damage, ShelfFolder
from olivelike.graphs.shelf.filling import add_network
from olivelike.graphs.shelf.network_forms import DEFAULTS_FILE, complete, graph_question
from olivelike.graphs.shelf.shelf_folder import file_name
from olivelike.model import Architecture
from olivelike.model.components import VAES, torch_folder
from olivelike.model.guides import CONTROLNET
from olivelike.sources import Checkpoint, PipelineSource, SourceSpec, available_components, open_source
from olivelike.sources.beside import Host, open_beside
from olivelike.sources.files.weight_header import RawTensor
from olivelike.sources.vae_override import open_vae
from olivelike.testing import make_checkpoint, make_single_file
from olivelike.testing.checkpoints import write_safetensors
from tests.fixtures.tiny_vae_files import make_tiny_vae

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
TEXT = "text_model."
LATER_END = 49407
"""`eos_token_id` of text encoders since transformers 4.31; hubs' own configs have 2, with which CLIP pools otherwise.

https://github.com/huggingface/transformers/pull/24773, https://github.com/huggingface/transformers/pull/24777."""
TIED = {
    "Qwen3ForCausalLM": ("", "lm_head.weight", "model.embed_tokens.weight"),
    # Z-Image's is stored with its head, of which the class knows nothing.
    "Qwen3Model": ("model.", "lm_head.weight", "model.embed_tokens.weight"),
    "T5EncoderModel": ("", "encoder.embed_tokens.weight", "shared.weight"),
}
"""Class → what its names may begin with besides, a name that may be stored, and that of the same weights."""
OLD_VAE_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

_THREE_LEVELS = {
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["CrossAttnDownBlock2D"] * 3,
    "up_block_types": ["CrossAttnUpBlock2D"] * 3,
}
# segmind/SSD-1B and segmind/Segmind-Vega: depths on the way out of their own, a middle without attention.
_SSD1B = {
    "mid_block_type": "UNetMidBlock2D",
    "transformer_layers_per_block": [1, 2, 4],
    "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
}
_GUIDANCE = {"time_cond_proj_dim": 256}


@dataclass(frozen=True)
class Pipeline:
    """A published pipeline: a family of `make_checkpoint`, and what its UNet has otherwise."""

    about: str
    family: str
    unet: Mapping[str, Any] = field(default_factory=dict)
    single: bool = True
    """Whether it is published in one file, too."""
    whole: bool = False
    """With all other components; they are the same for all pipelines of a family."""


PIPELINES: Mapping[str, Pipeline] = {
    "sd15": Pipeline("Stable Diffusion 1.4 and 1.5", "sd15", whole=True),
    "sd15_inpainting": Pipeline("Stable Diffusion 1.5 inpainting", "sd15_inpainting"),
    "sd21": Pipeline("Stable Diffusion 2.1 (v prediction)", "sd21", whole=True),
    "sd21_base": Pipeline("Stable Diffusion 2.0 and 2.1 base, SD-Turbo", "sd21_base"),
    "sd2_inpainting": Pipeline("Stable Diffusion 2 inpainting", "sd21_base", {"in_channels": 9}),
    "sdxl": Pipeline("Stable Diffusion XL base, SDXL-Turbo", "sdxl", whole=True),
    "sdxl_inpainting": Pipeline("Stable Diffusion XL inpainting", "sdxl", {"in_channels": 9}),
    "sdxl_refiner": Pipeline("Stable Diffusion XL refiner", "sdxl_refiner"),
    "ssd1b": Pipeline("SSD-1B", "sdxl", _SSD1B),
    "vega": Pipeline(
        "Segmind Vega",
        "sdxl",
        {
            "mid_block_type": "UNetMidBlock2D",
            "transformer_layers_per_block": [1, 1, 2],
            "reverse_transformer_layers_per_block": [[2, 2, 2], [1, 1, 1], 1],
        },
    ),
    # segmind/small-sd and segmind/tiny-sd, distilled as in https://arxiv.org/abs/2305.15798.
    "small_sd": Pipeline("small-sd", "sd15", {"layers_per_block": 1}),
    "tiny_sd": Pipeline("tiny-sd", "sd15", {**_THREE_LEVELS, "layers_per_block": 1, "mid_block_type": None}),
    # SimianLuo/LCM_Dreamshaper_v7, latent-consistency/lcm-sdxl and lcm-ssd-1b: UNets that take the guidance.
    "lcm": Pipeline("LCM of Stable Diffusion 1.5", "sd15", _GUIDANCE, single=False),
    "lcm_sdxl": Pipeline("LCM of Stable Diffusion XL", "sdxl", _GUIDANCE, single=False),
    "lcm_ssd1b": Pipeline("LCM of SSD-1B", "sdxl", {**_SSD1B, **_GUIDANCE}, single=False),
}


@dataclass(frozen=True)
class Folder:
    """A published folder of diffusers with a transformer."""

    about: str
    pipeline: str
    """Class of diffusers."""
    parts: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Folder → class and config of its network; of diffusers what is not the class's own."""


_KL16 = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": 16,
    "layers_per_block": 2,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
# Qwen/Qwen3-4B.
_QWEN3 = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
# google/t5-v1_1-xxl.
_T5 = {
    "classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64, "d_model": 4096, "decoder_start_token_id": 0,
    "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
    "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24, "output_past": True,
    "pad_token_id": 0, "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32128,
}  # fmt: skip
_CLIP_L = FAMILIES["sd1"].published.configs["text_encoder"]
_CLIP_G = FAMILIES["sdxl"].published.configs["text_encoder_2"]


def _sd3(about: str, **transformer: Any) -> Folder:
    """Return a pipeline of Stable Diffusion 3, whose networks are the same but for the transformer."""
    width = 64 * transformer["num_attention_heads"]
    return Folder(
        about,
        "StableDiffusion3Pipeline",
        {
            "transformer": ("SD3Transformer2DModel", {"caption_projection_dim": width, **transformer}),
            "text_encoder": ("CLIPTextModelWithProjection", {**_CLIP_L, "projection_dim": 768}),
            "text_encoder_2": ("CLIPTextModelWithProjection", _CLIP_G),
            "text_encoder_3": ("T5EncoderModel", _T5),
            "vae": ("AutoencoderKL", _KL16),
        },
    )


def _flux(about: str, **transformer: Any) -> Folder:
    """Return a pipeline of FLUX.1."""
    parts: dict[str, tuple[str, Mapping[str, Any]]] = {
        "transformer": ("FluxTransformer2DModel", transformer),
        "text_encoder": ("CLIPTextModel", _CLIP_L),
        "text_encoder_2": ("T5EncoderModel", _T5),
        "vae": ("AutoencoderKL", _KL16),
    }
    return Folder(about, "FluxPipeline", parts)


_RMS = {"qk_norm": "rms_norm"}
TRANSFORMERS: Mapping[str, Folder] = {
    # Tongyi-MAI/Z-Image-Turbo: the class's defaults, and the VAE of FLUX.1.
    "z_image": Folder(
        "Z-Image Turbo and base",
        "ZImagePipeline",
        {
            "transformer": ("ZImageTransformer2DModel", {}),
            "text_encoder": ("Qwen3Model", _QWEN3),
            "vae": ("AutoencoderKL", _KL16),
        },
    ),
    # black-forest-labs/FLUX.2-klein-4B and -base-4B; a key of its VAE's config is none of the class.
    "flux2": Folder(
        "FLUX.2-klein of 4B, distilled and base",
        "Flux2KleinPipeline",
        {
            "transformer": (
                "Flux2Transformer2DModel",
                {
                    "num_layers": 5,
                    "num_single_layers": 20,
                    "num_attention_heads": 24,
                    "joint_attention_dim": 7680,
                    "guidance_embeds": False,
                },
            ),
            "text_encoder": ("Qwen3ForCausalLM", _QWEN3),
            "vae": ("AutoencoderKLFlux2", {"force_upcast": True}),
        },
    ),
    # black-forest-labs/FLUX.1-schnell and -dev: the class's defaults.
    "flux": _flux("FLUX.1 schnell"),
    "flux_dev": _flux("FLUX.1 dev", guidance_embeds=True),
    # stabilityai/stable-diffusion-3-medium-diffusers, -3.5-medium and -3.5-large, and -large-turbo.
    "sd3": _sd3("Stable Diffusion 3 medium", num_layers=24, num_attention_heads=24, pos_embed_max_size=192),
    "sd35_medium": _sd3(
        "Stable Diffusion 3.5 medium",
        num_layers=24, num_attention_heads=24, pos_embed_max_size=384, dual_attention_layers=list(range(13)), **_RMS,
    ),
    "sd35_large": _sd3(
        "Stable Diffusion 3.5 large and large turbo",
        num_layers=38, num_attention_heads=38, pos_embed_max_size=192, **_RMS,
    ),
}  # fmt: skip
TINY_VAE = "taesd"
"""TAESD and TAESDXL, of one architecture: madebyollin/taesd, madebyollin/taesdxl."""
DEMOS: Mapping[str, tuple[str, Path]] = {
    "demo": ("the demo", demo_folder()),
    "demo_transformer": ("the demo with a transformer", demo_transformer()),
}
"""Shipped pipelines: what they are called, and their folders."""


def networks(name: str, scratch: Path) -> Iterator[Checkpoint]:
    """Yield each network of a pipeline in every form that it is stored in."""
    if name == TINY_VAE:
        for path in make_tiny_vae(scratch / name, hollow=True):
            yield from open_vae(SourceSpec(path=path), VAES, None, None)[0].values()
        return
    if name in DEMOS:
        source = _opened(DEMOS[name][1], None)
        for checkpoint in source.checkpoints.values():
            yield checkpoint
            yield from _older_names(checkpoint)
        if name == "demo":
            unet = source.checkpoints["unet"].config
            edges = SourceSpec(path=demo_edges())
            yield open_beside(edges, CONTROLNET, CONTROLNET.components[0], Host(unet=unet), None).network
        return
    if name in TRANSFORMERS:
        folder = _opened(hollow_folder(TRANSFORMERS[name], scratch / name), None)
        yield from _in_files(folder, scratch / f"{name} in files")
        for checkpoint in folder.checkpoints.values():
            yield checkpoint
            yield from _older_names(checkpoint)
            if checkpoint.class_name.startswith("CLIPTextModel"):
                yield replace(checkpoint, config={**checkpoint.config, "eos_token_id": LATER_END})
        return
    pipeline = PIPELINES[name]
    folder = make_checkpoint(scratch / name, pipeline.family, size="full", hollow=True)
    if pipeline.unet:
        _change_unet(folder / "unet", pipeline.unet)
    only = None if pipeline.whole else ["unet"]
    for checkpoint in _opened(folder, only).checkpoints.values():
        yield checkpoint
        yield from _older_names(checkpoint)
        if checkpoint.class_name.startswith("CLIPTextModel"):
            yield replace(checkpoint, config={**checkpoint.config, "eos_token_id": LATER_END})
    if not pipeline.single:
        return
    file = make_single_file(folder, scratch / f"{name}.safetensors", hollow=True)
    for checkpoint in _opened(file, only).checkpoints.values():
        yield checkpoint
        if checkpoint.original == "open_clip" and checkpoint.component == "text_encoder":
            yield _without(checkpoint, "text_projection")


def hollow_folder(published: Folder, folder: Path) -> Path:
    """Write a folder of networks in half precision, with holes in place of weights; return it."""
    import diffusers
    import torch
    import transformers
    from diffusers.models.modeling_utils import no_init_weights

    index: dict[str, Any] = {"_class_name": published.pipeline}
    for place, (class_name, config) in published.parts.items():
        own, of_diffusers = folder / place, hasattr(diffusers, class_name)
        own.mkdir(parents=True)
        library = diffusers if of_diffusers else transformers
        network_class = getattr(library, class_name)
        with torch.device("meta"), no_init_weights():
            if of_diffusers:
                taken = inspect.signature(network_class.__init__).parameters
                network = network_class.from_config({key: value for key, value in config.items() if key in taken})
            else:
                network = network_class(network_class.config_class.from_dict(dict(config)))
        whole = {**network.config, **config} if of_diffusers else config
        (own / "config.json").write_text(json.dumps(whole), encoding="utf-8")
        tied = getattr(network, "_tied_weights_keys", None) or ()
        shapes = {key: tuple(value.shape) for key, value in network.state_dict().items() if key not in tied}
        file = "diffusion_pytorch_model.safetensors" if of_diffusers else "model.safetensors"
        write_safetensors(own / file, {key: ("BF16", shape) for key, shape in shapes.items()}, None)
        index[place] = [library.__name__, class_name]
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def _in_files(folder: PipelineSource, scratch: Path) -> Iterator[Checkpoint]:
    """Yield networks of a pipeline as a file each holds them, in makers' names and in those of their library."""
    import torch

    from tests.fixtures.maker_files import in_makers_names

    family = family_of_folder(folder.index, folder.checkpoints, folder.checkpoints["transformer"].config)
    networks = {torch_folder(name): checkpoint.shapes for name, checkpoint in folder.checkpoints.items()}
    states = {
        name: {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
        for name, shapes in networks.items()
    }
    makers = {name: in_makers_names(family.name, name, state) for name, state in states.items()}
    for spelling, written in {"makers": makers, "library": states}.items():
        own = scratch / spelling
        own.mkdir(parents=True)
        files = {name: own / f"{name}.safetensors" for name in written}
        for name, state in written.items():
            write_safetensors(files[name], {key: ("BF16", tuple(one.shape)) for key, one in state.items()}, None)
        parts = {name: file for name, file in files.items() if name != "transformer"}
        spec = SourceSpec(path=files["transformer"], parts=parts)
        for checkpoint in open_source(spec, list(folder.checkpoints)).checkpoints.values():
            yield checkpoint
            yield from _as_programs_write(checkpoint)


def _opened(path: Path, only: list[str] | None) -> PipelineSource:
    spec = SourceSpec(path=path)
    return open_source(spec, only or [name for name in available_components(spec) if classes_of(name)])


def _change_unet(folder: Path, changes: Mapping[str, Any]) -> None:
    import torch
    from diffusers import UNet2DConditionModel

    config = {**json.loads((folder / "config.json").read_bytes()), **changes}
    with torch.device("meta"):
        network = UNet2DConditionModel.from_config(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {key: ("F32", tuple(value.shape)) for key, value in network.state_dict().items()}
    write_safetensors(folder / "diffusion_pytorch_model.safetensors", shapes, None)


def _older_names(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """Yield a network as older releases of its library stored it."""
    names = list(checkpoint.tensors)
    if checkpoint.class_name == "AutoencoderKL":
        yield _renamed(checkpoint, {name: _old_vae(name) for name in names})
    elif checkpoint.class_name == "CLIPTextModel":
        plain = {name: name.removeprefix(TEXT) for name in names}
        yield _renamed(checkpoint, plain)
        yield _renamed(checkpoint, {name: TEXT + short for name, short in plain.items()})
    elif checkpoint.class_name in TIED:
        yield from _with_head(checkpoint, *TIED[checkpoint.class_name])
    elif checkpoint.class_name == "StableDiffusionSafetyChecker":
        twice, once = "vision_model.vision_model.", "vision_model."
        plain = {name: name.replace(twice, once) for name in names}
        yield _renamed(checkpoint, plain)
        longer = {
            name: twice + short.removeprefix(once) if short.startswith(once) else short for name, short in plain.items()
        }
        yield _renamed(checkpoint, longer)


def _as_programs_write(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """Yield a text encoder with what other files hold besides, and in the names of llama.cpp."""
    from tests.fixtures.maker_files import in_llamas_names

    held = checkpoint.tensors
    if checkpoint.class_name in TIED:
        _, name, tied = TIED[checkpoint.class_name]
        tied = next(one for one in (tied, tied.removeprefix("model.")) if one in held)
        yield replace(checkpoint, tensors={**held, name: held[tied]})
        assert checkpoint.original is not None
        llamas = in_llamas_names(checkpoint.original, held)
        yield replace(checkpoint, tensors=llamas, original=f"{checkpoint.original}_llama")
    elif checkpoint.class_name == "CLIPTextModel":
        width = checkpoint.config["hidden_size"]
        projection = RawTensor("BF16", (width, width), 0), checkpoint.files[0]
        yield replace(checkpoint, tensors={**held, PROJECTION: projection})


def _with_head(checkpoint: Checkpoint, prefix: str, name: str, tied: str) -> Iterator[Checkpoint]:
    """Yield a network with the beginning of its names that another class gives it, and with both of tied weights."""
    named = _renamed(checkpoint, {own: prefix + own for own in checkpoint.tensors})
    if prefix:
        yield named
    yield replace(named, tensors={**named.tensors, name: named.tensors[tied]})


def _old_vae(name: str) -> str:
    if ".attentions." in name:
        for new, old in OLD_VAE_ATTENTION.items():
            name = name.replace(f".{new}.", f".{old}.")
    return name


def _renamed(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    return replace(checkpoint, tensors={names[name]: found for name, found in checkpoint.tensors.items()})


def _without(checkpoint: Checkpoint, end: str) -> Checkpoint:
    return replace(checkpoint, tensors={n: found for n, found in checkpoint.tensors.items() if not n.endswith(end)})


def fill(folder: ShelfFolder, names: list[str], *, fresh: bool) -> set[str]:
    """Put every answer of some pipelines into a folder; return the names of the files."""
    written: set[str] = set()
    logger = logging.getLogger("shelf")
    with tempfile.TemporaryDirectory(prefix="olivelike-shelf-") as scratch:
        for name in names:
            others = {TINY_VAE: "TAESD and TAESDXL"} | {demo: about for demo, (about, _) in DEMOS.items()}
            others |= {pipeline: folder.about for pipeline, folder in TRANSFORMERS.items()}
            about = PIPELINES[name].about if name in PIPELINES else others[name]
            for checkpoint in networks(name, Path(scratch)):
                found = complete(checkpoint.class_name, checkpoint.config)
                assert found is not None, f"{name}: the config of {checkpoint.component} has unknown keys"
                architecture = Architecture(checkpoint.component, found[0], checkpoint.class_name, found[1])
                known = file_name("graph", graph_question(architecture)) in written
                for entry in add_network(folder, checkpoint, about, logger, fresh=fresh and not known):
                    if entry.file_name not in written:
                        print(f"{name}: {entry.component}: {entry.kind} {entry.file_name}", flush=True)
                    written.add(entry.file_name)
    return written


def class_defaults() -> dict[str, Any]:
    """Return what the classes of networks make of an empty config."""
    import diffusers
    from transformers import CLIPConfig, CLIPTextConfig, Qwen3Config, T5Config

    from olivelike.sources.names.loading import normalised_fields

    found: dict[str, Any] = {}
    for name in (
        "UNet2DConditionModel", "ControlNetModel", "AutoencoderKL", "AutoencoderTiny", "AutoencoderKLFlux2",
        "ZImageTransformer2DModel", "Flux2Transformer2DModel", "FluxTransformer2DModel", "SD3Transformer2DModel",
    ):  # fmt: skip
        parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
        config = {key: parameter.default for key, parameter in parameters.items() if key != "self"}
        found[name] = {"library": "diffusers", "config": json.loads(json.dumps(config))}
    for name, config_class in (
        ("CLIPTextModel", CLIPTextConfig),
        ("CLIPTextModelWithProjection", CLIPTextConfig),
        ("StableDiffusionSafetyChecker", CLIPConfig),
        ("Qwen3ForCausalLM", Qwen3Config),
        ("Qwen3Model", Qwen3Config),
        ("T5EncoderModel", T5Config),
    ):
        found[name] = {"library": "transformers", "config": normalised_fields(config_class, {})}
    return found


def differences(one: Path, other: Path) -> list[str]:
    """Return the entries in which two shelves differ; versions of libraries do not count."""

    def answers(path: Path) -> dict[str, str]:
        return {
            file.name: found.digest if not isinstance(found, Damage) else str(found)
            for file, found in ShelfFolder(path).entries()
        }

    here, there = answers(one), answers(other)
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def main() -> int:
    """Make the shelf, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of pipelines, separated by commas")
    parser.add_argument("--fresh", action="store_true", help="trace also what is there")
    parser.add_argument("--check", action="store_true", help="compare in place of writing")
    options = parser.parse_args()
    names = options.only or [*PIPELINES, *TRANSFORMERS, TINY_VAE, *DEMOS]
    defaults = json.dumps(class_defaults(), indent=1, sort_keys=True) + "\n"
    if options.check:
        with tempfile.TemporaryDirectory(prefix="olivelike-shelf-") as fresh:
            written = fill(ShelfFolder(Path(fresh)), names, fresh=False)
            found = [name for name in differences(Path(fresh), BUILT_IN) if name in written or not options.only]
        if defaults != DEFAULTS_FILE.read_text(encoding="utf-8"):
            found.append(DEFAULTS_FILE.name)
        print("\n".join(found) or "the shelf is what the installed libraries make")
        return 1 if found else 0
    DEFAULTS_FILE.write_text(defaults, encoding="utf-8", newline="\n")
    written = fill(ShelfFolder(BUILT_IN), names, fresh=options.fresh)
    if not options.only:
        for path, _ in ShelfFolder(BUILT_IN).entries():
            if path.name not in written:
                path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
