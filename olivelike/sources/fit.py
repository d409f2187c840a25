"""Whether the parts of a pipeline fit each other, and which it lacks, from configs alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.families import TEXT_ENCODERS, TOKENIZER_OF, denoiser_among, family_of_folder
from olivelike.model.components import TAKEN_STATES, VAES, latent_channels, torch_folder, wrong_statistics
from olivelike.sources.files.weight_header import read_numbers

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config
    from olivelike.sources.checkpoint import Checkpoint
    from olivelike.sources.opened_source import PipelineSource

_CROSS_ATTENTION_DIM = 1280
_LATENT_CHANNELS = 4
_HIDDEN_SIZE = 512
_PROJECTION_DIM = 512
"""Width that diffusers and transformers take where a config says nothing."""
_PLACE_NUMBERS = (5, 6)
"""Numbers beside the pooled text: sizes and crops of XL's base, those and a score of its refiner."""


def check_fit(source: PipelineSource) -> None:
    """Check that what one part makes is what the next one takes.

    A part that the workflow leaves out on purpose is not missed: text encoders are compared if it has all that the
    source has. Raises `SourceError` naming both parts, what they have and what to do.
    """
    denoiser = source.checkpoints.get(denoiser_among(source.checkpoints) or "")
    if denoiser is None or denoiser.graph is not None:
        return
    family = family_of_folder(source.index, source.checkpoints, denoiser.config)
    texts = _texts(source, denoiser.config, family.text_key) if family.text_key else _rows(source, denoiser, family)
    for problem in (*texts, *_latents(source, denoiser.config, family)):
        raise SourceError(f"{source.origin.place}: {problem}")


def lacking(source: PipelineSource) -> tuple[str, ...]:
    """Return the parts that drawing a picture takes and the source does not have."""
    if source.origin.exported:
        return ()
    needed = [name for name in TEXT_ENCODERS if _has(source, TOKENIZER_OF[name])]
    denoiser = family_of_folder(source.index, source.checkpoints, {}).denoiser
    needed += [denoiser, *(() if source.origin.vae is not None else ("vae",))]
    return tuple(name for name in needed if not _has(source, torch_folder(name)))


def _has(source: PipelineSource, folder: str) -> bool:
    entry = source.index.get(folder)
    return isinstance(entry, list) and all(isinstance(part, str) for part in entry)


def _size(config: Config, key: str, default: int) -> int | float:
    value = config.get(key)
    return value if isinstance(value, int | float) else default


def _texts(source: PipelineSource, unet: Config, key: str) -> Iterator[str]:
    there = [name for name in TEXT_ENCODERS if _has(source, name)]
    encoders = {name: source.checkpoints[name] for name in there if name in source.checkpoints}
    if not encoders or len(encoders) < len(there) or any(one.graph is not None for one in encoders.values()):
        return
    width = _size(unet, key, _CROSS_ATTENTION_DIM)
    widths = {
        name: _size(one.config.get("text_config") or one.config, "hidden_size", _HIDDEN_SIZE)
        * len(one.config.get(TAKEN_STATES, (0,)))
        for name, one in encoders.items()
    }
    if sum(widths.values()) != width:
        named = "UNet" if key == "cross_attention_dim" else "denoiser"
        made = " and ".join(f"{name} makes {number}" for name, number in widths.items())
        absent = [name for name in lacking(source) if name in TEXT_ENCODERS]
        lost = f", and it has no {' and no '.join(absent)}" if absent else ""
        yield (
            f"the {named} takes {width} numbers for each word, {made}{lost}; get all parts from the same pipeline, or "
            "leave the text encoders out of `components:`"
        )
    pooled = encoders.get("text_encoder_2")
    if pooled is None or unet.get("addition_embed_type") != "text_time":
        return
    # `check_network` has seen that these are there.
    each, whole = unet["addition_time_embed_dim"], unet["projection_class_embeddings_input_dim"]
    size = _size(pooled.config, "projection_dim", _PROJECTION_DIM)
    if whole not in {size + count * each for count in _PLACE_NUMBERS}:
        yield (
            f"the UNet takes a pooled text of {whole - 6 * each} numbers, and text_encoder_2 makes {size}; get both "
            "from the same pipeline, or leave the text encoders out of `components:`"
        )


def _rows(source: PipelineSource, denoiser: Checkpoint, family: Family) -> Iterator[str]:
    """Yield what is wrong with texts whose vectors follow each other, and with what is pooled of them."""
    advice = "get all parts from the same pipeline, or leave the text encoders out of `components:`"
    there = {text: source.checkpoints.get(text.component) for text in family.texts}
    takes, pools = (_size(denoiser.config, key, 0) for key in ("joint_attention_dim", "pooled_projection_dim"))
    pooled: dict[str, int | float] = {}
    for text, encoder in there.items():
        if encoder is None or encoder.graph is not None:
            continue
        if text.kind == "clip":
            key, usual = (
                ("projection_dim", _PROJECTION_DIM) if text.pooled == "text_embeds" else ("hidden_size", _HIDDEN_SIZE)
            )
            pooled[text.component] = _size(encoder.config, key, usual)
        elif (made := _size(encoder.config, "d_model", _HIDDEN_SIZE)) != takes:
            said = f"the {family.denoiser} takes {takes} numbers for each word, and {text.component} makes {made}"
            yield f"{said}; {advice}"
    if len(pooled) == sum(text.kind == "clip" for text in there) and sum(pooled.values()) != pools:
        sums = " and ".join(f"{name} makes {number}" for name, number in pooled.items())
        yield f"the {family.denoiser} takes a pooled text of {pools} numbers, and {sums}; {advice}"


def _norms(vae: Checkpoint) -> Iterator[str]:
    """Yield what is wrong with statistics of latents that are weights; `SourceError` if one is no number."""
    for name, (tensor, path) in vae.tensors.items():
        if name.endswith(_STATISTICS):
            with open_file(path) as file:
                numbers = read_numbers(file, path, name, tensor, math.prod(tensor.shape))
            if name.endswith(_VARIANCE) and min(numbers, default=0) < 0:
                yield f"{path.name} has {name} of {min(numbers):g}, and no variance is below 0; get the file again"


_VARIANCE: Final = "bn.running_var"
_STATISTICS: Final = ("bn.running_mean", _VARIANCE)
"""Ends of names in VAEs of FLUX.2."""


def _latents(source: PipelineSource, unet: Config, family: Family) -> Iterator[str]:
    # Denoisers that take no masks make what they take; some count that before it is packed.
    key = "out_channels" if family.takes_masks else "in_channels"
    channels = _size(unet, key, _LATENT_CHANNELS) / family.latents.packing**2
    for name in VAES:
        vae = source.checkpoints.get(name)
        if vae is None or vae.graph is not None:
            continue
        if wrong := wrong_statistics(vae.config):
            yield f"the VAE's config has {wrong}; get its config.json again"
        yield from _norms(vae)
        latents = latent_channels(vae.config) or _LATENT_CHANNELS
        if channels not in (latents, 2 * latents):
            named = "UNet" if family.text_key == "cross_attention_dim" else family.denoiser
            yield (
                f"the {named} makes latents of {channels:g} channels, and the VAE's have {latents}; name a VAE for "
                f"this {named} as `vae:`"
            )
            return
