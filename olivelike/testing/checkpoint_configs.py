"""Configs in the folders of `make_checkpoint`: as published, and at small widths.

The `full` values are those of the published pipelines (`olivelike.sources.identify.published`), with what only SD 1.5's
own folder says in `olivelike/data/published/sd15_folder.json`. The `tiny` ones keep every structural choice of SD 1.5
(block types, layers per level, heads, factor 8 of the VAE). The `small` ones obey each family's rules (widths in
multiples of 32 in the UNet and the VAE, of 64 where heads have 64 channels; CLIP's whole vocabulary), so that the same
weights in one file are told to be the very same networks. Those of transformers have VAEs of two levels, and draw
pictures of 64 by 64 pixels where no size is asked for.

Tokenizers are a byte-level BPE vocabulary for the real `CLIPTokenizer`, of any size, made without training data.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from olivelike._untrusted import Json, JsonView
from olivelike.families import FAMILIES
from olivelike.families.networks.unet import COMPONENT
from olivelike.model.components import Prediction
from olivelike.sources.identify.published import (
    byte_symbols,
    network_class,
    read_extra,
    scheduler_file,
    tokenizer_classes,
    tokenizer_files,
)

Size = Literal["tiny", "small", "full"]
Family = Literal[
    "sd15", "sd15_inpainting", "sd21", "sd21_base", "sdxl", "sdxl_refiner",
    "sd35_medium", "flux1_schnell", "flux1_dev", "flux2_klein", "z_image_turbo",
]  # fmt: skip
Config = Json
"""Content of one JSON file."""

_PUBLISHED = Path(__file__).parents[1] / "data" / "published"
_SD15_FOLDER: Final[dict[str, Config]] = json.loads((_PUBLISHED / "sd15_folder.json").read_bytes())


@dataclass(frozen=True)
class Kind:
    """A pipeline that can be written; which one it is like, and where it differs from its family's own."""

    family: str
    small: Mapping[str, Config]
    """Folder → what differs at small size."""
    prediction: Prediction = "epsilon"
    denoiser: JsonView = field(default_factory=dict)
    """Settings of the denoiser."""
    is_inpainting: bool = False

    @property
    def tokenizers(self) -> Mapping[str, str]:
        """Folder of each tokenizer → folder of its published settings."""
        return FAMILIES[self.family].published.tokenizers


# What is small in every family: one layer per level, two layers of text.
_SMALL_CLIP: Config = {
    "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1, "num_hidden_layers": 2,
}  # fmt: skip
_SMALL_CLIP_2: Config = {**_SMALL_CLIP, "projection_dim": 64}
_SMALL_VAE: Config = {"block_out_channels": [32, 64, 64, 64], "layers_per_block": 1}
_SMALL_UNET: Config = {
    "block_out_channels": [32, 64, 64, 64], "cross_attention_dim": 64, "layers_per_block": 1,
}  # fmt: skip
_SMALL_UNET_SD2: Config = {**_SMALL_UNET, "attention_head_dim": [1, 1, 2, 1], "block_out_channels": [64, 64, 128, 64]}
_SMALL_UNET_XL: Config = {
    "attention_head_dim": [1, 1, 1],
    "block_out_channels": [32, 64, 64],
    "cross_attention_dim": 128,
    "layers_per_block": 1,
    "projection_class_embeddings_input_dim": 64 + 6 * 256,
    "transformer_layers_per_block": [1, 1, 2],
}
_SMALL_UNET_REFINER: Config = {
    **_SMALL_UNET_SD2,
    "block_out_channels": [32, 64, 128, 64],
    "projection_class_embeddings_input_dim": 64 + 5 * 256,
    "transformer_layers_per_block": 2,
}
_SMALL_SD1 = {COMPONENT: _SMALL_UNET, "vae": _SMALL_VAE, "text_encoder": _SMALL_CLIP}
_SMALL_SD2 = {**_SMALL_SD1, COMPONENT: _SMALL_UNET_SD2}
_SMALL_XL = {**_SMALL_SD1, COMPONENT: _SMALL_UNET_XL, "text_encoder_2": _SMALL_CLIP_2}
_SMALL_REFINER = {COMPONENT: _SMALL_UNET_REFINER, "vae": _SMALL_VAE, "text_encoder_2": _SMALL_CLIP_2}

# Heads are as wide as the published ones, which no shape of theirs tells.
_SMALL_T5: Config = {"d_ff": 96, "d_kv": 8, "d_model": 64, "num_heads": 4, "num_layers": 2}
_SMALL_QWEN: Config = {
    "head_dim": 16, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 4,
    "num_key_value_heads": 1,
}  # fmt: skip
_SMALL_FLOW_VAE: Config = {
    "block_out_channels": [32, 32], "down_block_types": ["DownEncoderBlock2D"] * 2, "layers_per_block": 1,
    "sample_size": 64, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
_SMALL_SD3: Mapping[str, Config] = {
    # As wide as it is without a projection, which files of its makers lack; the text is as wide as both CLIPs'.
    "text_encoder": {**_SMALL_CLIP, "projection_dim": 64},
    "text_encoder_2": {**_SMALL_CLIP, "projection_dim": 48},
    "text_encoder_3": {**_SMALL_T5, "d_model": 128},
    "transformer": {
        "caption_projection_dim": 64, "dual_attention_layers": [0], "joint_attention_dim": 128,
        "num_attention_heads": 1, "num_layers": 2, "pooled_projection_dim": 112, "pos_embed_max_size": 32,
        "sample_size": 32,
    },
    "vae": _SMALL_FLOW_VAE,
}  # fmt: skip
_SMALL_FLUX: Mapping[str, Config] = {
    "text_encoder": _SMALL_CLIP,
    "text_encoder_2": _SMALL_T5,
    "transformer": {
        "joint_attention_dim": 64, "num_attention_heads": 1, "num_layers": 1, "num_single_layers": 1,
        "pooled_projection_dim": 64,
    },
    "vae": _SMALL_FLOW_VAE,
}  # fmt: skip
_SMALL_FLUX2: Mapping[str, Config] = {
    "text_encoder": _SMALL_QWEN,
    "transformer": {
        "in_channels": 16, "joint_attention_dim": 96, "num_attention_heads": 1, "num_layers": 1,
        "num_single_layers": 1, "timestep_guidance_channels": 32,
    },
    "vae": {**_SMALL_FLOW_VAE, "latent_channels": 4},
}  # fmt: skip
_SMALL_Z_IMAGE: Mapping[str, Config] = {
    "text_encoder": _SMALL_QWEN,
    "transformer": {
        "cap_feat_dim": 32, "dim": 128, "n_heads": 1, "n_kv_heads": 1, "n_layers": 1, "n_refiner_layers": 1,
    },
    "vae": _SMALL_FLOW_VAE,
}  # fmt: skip

KINDS: Final[Mapping[Family, Kind]] = {
    "sd15": Kind("sd1", _SMALL_SD1),
    "sd15_inpainting": Kind("sd1", _SMALL_SD1, denoiser={"in_channels": 9}, is_inpainting=True),
    "sd21": Kind("sd2", _SMALL_SD2, "v_prediction", FAMILIES["sd2"].published.changes["v_prediction"]),
    "sd21_base": Kind("sd2", _SMALL_SD2, denoiser={"upcast_attention": False}),
    "sdxl": Kind("sdxl", _SMALL_XL),
    "sdxl_refiner": Kind("sdxl_refiner", _SMALL_REFINER),
    "sd35_medium": Kind("sd3", _SMALL_SD3),
    "flux1_schnell": Kind("flux", _SMALL_FLUX),
    "flux1_dev": Kind("flux", _SMALL_FLUX, denoiser={"guidance_embeds": True}),
    "flux2_klein": Kind("flux2", _SMALL_FLUX2),
    "z_image_turbo": Kind("z_image", _SMALL_Z_IMAGE),
}

# Heads stay at 8 in the UNet; group counts shrink with the widths so that each group keeps several channels.
_TINY_UNET: Config = {
    "block_out_channels": [16, 32, 64, 64],
    "cross_attention_dim": 32,
    "norm_num_groups": 8,
    "sample_size": 8,
}
_TINY_VAE: Config = {"block_out_channels": [8, 16, 32, 32], "norm_num_groups": 4, "sample_size": 64}
_TINY_CLIP: Config = {
    "hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3,
}  # fmt: skip
_TINY_VOCABULARY = 1000
_TINY_IMAGE = 56


def component_configs(size: Size, family: Family = "sd15") -> dict[str, Config]:
    """Return the published `config.json` of each network folder, by folder name.

    SD 1.5 has its safety checker, in the sizes in which `make_checkpoint` writes one.
    """
    kind = KINDS[family]
    facts = FAMILIES[kind.family]
    beside = _SD15_FOLDER if facts.denoiser == COMPONENT else {}
    configs = {
        folder: {**config, **beside.get("text_encoder" if "text" in folder else folder, {})}
        for folder, config in facts.published.configs.items()
    }
    configs[facts.denoiser] |= kind.denoiser
    if size == "small":
        for folder, changes in kind.small.items():
            configs[folder] |= changes
    elif family == "sd15":
        configs["safety_checker"] = dict(_SD15_FOLDER["safety_checker"])
    configs = {folder: copy.deepcopy(dict(sorted(config.items()))) for folder, config in configs.items()}
    if size == "tiny":
        configs[COMPONENT] |= _TINY_UNET
        configs["vae"] |= _TINY_VAE
        configs["text_encoder"] |= {**_TINY_CLIP, "projection_dim": 32, "vocab_size": _TINY_VOCABULARY}
        safety = configs["safety_checker"]
        safety["projection_dim"] = 64
        for tower in ("text_config", "text_config_dict", "vision_config", "vision_config_dict"):
            safety[tower] |= _TINY_CLIP
        for tower in ("vision_config", "vision_config_dict"):
            safety[tower] |= {"image_size": _TINY_IMAGE}
    return configs


def hub_configs(size: Size) -> dict[str, Config]:
    """Return SD 1.5's configs as its hub repository holds them, with keys that training code left behind."""
    leftovers = _SD15_FOLDER["hub"]
    return {folder: config | leftovers.get(folder, {}) for folder, config in component_configs(size).items()}


def feature_extractor_config(size: Size) -> Config:
    """Return the published `preprocessor_config.json`, scaled to what the safety checker takes."""
    config = copy.deepcopy(_SD15_FOLDER["feature_extractor"])
    if size == "tiny":
        config["crop_size"] = {"height": _TINY_IMAGE, "width": _TINY_IMAGE}
        config["size"] = {"shortest_edge": _TINY_IMAGE}
    return config


def scheduler_config(family: Family) -> Config:
    """Return the published `scheduler_config.json`; that of SD 1.5 does not state what the UNet predicts."""
    kind = KINDS[family]
    facts = FAMILIES[kind.family]
    _, path = scheduler_file(facts, kind.prediction, zero_snr=False, denoiser=kind.denoiser)
    published: Config = json.loads(path.read_bytes())
    if facts.published.flow is not None:
        return published
    stated = {key: published.pop(key) for key in sorted({*published} - _SD15_SCHEDULER)}
    if kind.family == "sd1":
        del stated["prediction_type"]
    return {"_class_name": published.pop("_class_name"), "_diffusers_version": "0.6.0", **published, **stated}


_SD15_SCHEDULER = {
    "_class_name", "beta_end", "beta_schedule", "beta_start", "clip_sample", "num_train_timesteps",
    "set_alpha_to_one", "skip_prk_steps", "steps_offset", "trained_betas",
}  # fmt: skip


def pipeline_index(family: Family) -> Config:
    """Return the published `model_index.json`, without a safety checker."""
    kind = KINDS[family]
    facts = FAMILIES[kind.family]
    scheduler, _ = scheduler_file(facts, kind.prediction, zero_snr=False)
    entries = {
        **{folder: list(network_class(facts, folder)) for folder in facts.published.configs},
        **tokenizer_classes(facts),
        **facts.published.index,
        "scheduler": ["diffusers", scheduler],
    }
    entries.pop("requires_safety_checker", None)
    return {
        "_class_name": facts.pipelines[kind.is_inpainting],
        "_diffusers_version": "0.6.0" if kind.family in ("sd1", "sd2") else "0.19.0.dev0",
        **dict(sorted(entries.items())),
    }


SCHEDULER: Final = scheduler_config("sd15")
INDEX: Final = pipeline_index("sd15") | {
    "feature_extractor": ["transformers", "CLIPImageProcessor"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
}
"""The whole index of SD 1.5."""


_TOKENIZERS = Path(__file__).parents[1] / "data" / "published" / "tokenizer"

START, END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"

# Words of everyday prompts: their prefixes become tokens, so that prompts are about as long as with CLIP.
_WORDS = """
a an the of in on at with and by to for from photo photograph picture image painting drawing sketch
portrait landscape illustration watercolor oil pencil digital art artwork render style color colour
black white red green blue yellow orange purple pink gold silver dark light bright night day sunset
sunrise morning evening sky cloud sun moon star stars sea ocean river lake mountain mountains forest
tree trees flower flowers garden field city street house castle tower bridge room window door car train
ship boat plane astronaut riding horse cat dog bird fish dragon robot knight wizard king queen man woman
boy girl child face eyes hair hand hat dress suit beautiful highly detailed sharp focus cinematic
lighting soft studio background trending realistic fantasy anime low quality blurry bad ugly worst best
masterpiece high resolution 4k 8k circle square triangle small large big
"""


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write `vocab.json`, `merges.txt` and the two config files as the hub holds them.

    Args:
        folder: the `tokenizer` folder; made if absent.
        vocab_size: number of tokens; the last two are the start and the end of a text, as in CLIP.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = make_vocabulary(vocab_size)
    _write_json(folder / "vocab.json", vocabulary, indent=None)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    _write_settings(folder, "pad_end")


def write_clip_tokenizer(folder: Path, settings: str) -> None:
    """Write CLIP's own tokenizer of 49,408 tokens, whose merges are part of the package.

    Args:
        folder: the tokenizer's folder; made if absent.
        settings: folder of the published settings: `pad_end`, or `pad_exclamation` as in SD 2 and in SDXL's second
            tokenizer, after what fills short prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merges = (_TOKENIZERS / "merges.txt").read_bytes()
    (folder / "merges.txt").write_bytes(merges)
    letters = byte_symbols()
    joined = [line.replace(" ", "") for line in merges.decode().splitlines()[1:]]
    tokens = [*letters, *(letter + _WORD_END for letter in letters), *joined, START, END]
    _write_json(folder / "vocab.json", {token: index for index, token in enumerate(tokens)}, indent=None)
    _write_settings(folder, settings)


def write_published_tokenizer(root: Path, family: str, folder: str) -> None:
    """Write one of a family's tokenizers that is no CLIP's, with its own tokens, into a pipeline's folder."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for relative, path in tokenizer_files(FAMILIES[family]).items():
        if relative.startswith(f"{folder}/"):
            (root / relative).write_bytes(read_extra(path))
    text = next(text for text in FAMILIES[family].texts if text.tokenizer == folder)
    if text.template[0]:
        path = root / folder / "tokenizer_config.json"
        _write_json(path, {**json.loads(path.read_bytes()), "chat_template": text.chat_template})


def _write_settings(folder: Path, settings: str) -> None:
    """Write the published settings, with what only folders of a library have in them."""
    special = json.loads((_TOKENIZERS / settings / "special_tokens_map.json").read_bytes())
    config = json.loads((_TOKENIZERS / settings / "tokenizer_config.json").read_bytes())
    config |= {"name_or_path": "openai/clip-vit-large-patch14", "special_tokens_map_file": "./special_tokens_map.json"}
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", dict(sorted(config.items())))


def make_vocabulary(size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token ids and merges of a BPE vocabulary with `size` tokens.

    Raises `ValueError` if `size` has no room for the 512 byte tokens and the two special ones.
    """
    letters = byte_symbols()
    tokens = [*letters, *(letter + _WORD_END for letter in letters)]
    if size < len(tokens) + 2:
        raise ValueError(f"a vocabulary needs at least {len(tokens) + 2} tokens, not {size}")
    known, merges = set(tokens), []
    for left, right in _candidate_merges(letters):
        if len(tokens) == size - 2:
            break
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append((left, right))
    tokens += [START, END]
    return {token: index for index, token in enumerate(tokens)}, merges


def _candidate_merges(letters: list[str]) -> Iterator[tuple[str, str]]:
    for word in _WORDS.split():
        pieces = [*word[:-1], word[-1] + _WORD_END]
        joined = pieces[0]
        for piece in pieces[1:]:
            yield joined, piece
            joined += piece
    # A vocabulary as large as CLIP's is filled with pairs of letters that no prompt holds.
    yield from product(reversed(letters), letters)


def _write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
