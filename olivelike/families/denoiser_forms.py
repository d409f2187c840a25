"""Between the loop and a family's denoiser: what it takes and gives, as functions on arrays.

They stand beside the families, whose facts steps without torch read, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    import numpy as np

    from olivelike._untrusted import JsonView
    from olivelike.families.family import Family

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class EncodedText:
    """Output of a text encoder for texts or for rows of ids; a row for each."""

    hidden: Array
    """Hidden states, of shape (rows, tokens, width)."""
    pooled: Array | None = None
    """One vector for each, of shape (rows, width), of an encoder with a projection."""
    tokens: Array | None = None
    """Number of tokens of each row, of shape (rows,), where they differ: zeros follow them."""


Inputs = Mapping[str, "Array"]
"""Input of the denoiser → its value."""
TOKENS: Final = "tokens"
"""Numbers of tokens of rows beside their `encoder_hidden_states`: no input, but what these are cut to for a denoiser
that takes rows of one length."""


@dataclass(frozen=True)
class GuidanceInput:
    """An input by which a distilled denoiser takes the guidance scale, so that it needs no negative prompt."""

    name: str
    row: Callable[[float], Array]
    """Makes the value for a row of a scale: of shape (1, …)."""


def join_widths(texts: Mapping[str, EncodedText], _: JsonView) -> Inputs:
    """Return the hidden states of all encoders beside each other, as `encoder_hidden_states`."""
    import numpy as np

    return {"encoder_hidden_states": np.concatenate([text.hidden for text in texts.values()], axis=-1)}


@dataclass(frozen=True)
class DenoiserForm:
    """Form in which a denoiser takes texts, latents and guidance, and gives its prediction."""

    encode: Callable[[Mapping[str, EncodedText], JsonView], Inputs] = join_widths
    """Makes the denoiser's inputs of encoded texts, a row for each, and of its config; given by component, those that a
    folder has."""
    grid_inputs: Callable[[int, int, Inputs], Inputs] = lambda *_: {}
    """Height and width of the latents, and what was encoded → inputs that all rows and steps share, as positions."""
    guidance_input: Callable[[JsonView], GuidanceInput | None] = lambda _: None
    """Input for the guidance, if a denoiser with this config has one."""
    pack: Callable[[Array], Array] = lambda latents: latents
    """Brings latents of shape (rows, channels, height, width) into the form that the denoiser takes."""
    output: Callable[[Array, int, int], Array] = lambda raw, *_: raw
    """Brings what the denoiser gives for latents of a height and width into their form, with the schedule's sign."""
    guided: Callable[[Array, Array], Array] = lambda guided, _: guided
    """Combined predictions, and those on the prompts, of shape (rows, channels, height, width) → what steps take."""
    shown: Callable[[Sequence[Array]], tuple[Array, Inputs]] | None = None
    """Latents of pictures that it is shown, each of shape (1, channels, height, width) → tokens that follow those of
    each row, of shape (tokens, channels), and what follows the inputs of `grid_inputs`."""


_TIMESTEPS: Final = 1000
"""Number of timesteps that networks are trained on."""


def taken_moment(family: Family, timestep: Array) -> Array:
    """Return what the denoiser of a family takes for a timestep of the schedule."""
    if family.timestep == "steps":
        return timestep
    sigma = timestep.astype("float32") / _TIMESTEPS
    return sigma if family.timestep == "sigma" else 1 - sigma


def _lcm_guidance(denoiser: JsonView) -> GuidanceInput | None:
    """Return the input for the guidance's embedding, which LCM's UNets have."""
    width = denoiser.get("time_cond_proj_dim")
    return GuidanceInput("timestep_cond", partial(embed_guidance, width=width)) if isinstance(width, int) else None


def embed_guidance(scale: float, width: int) -> Array:
    """Return the embedding of a guidance scale that LCM's UNets take, of shape (1, width), float32.

    Sines and cosines of 1000 · (scale - 1), as of a timestep: https://arxiv.org/abs/2310.04378, section 4.3, with the
    frequencies of `LatentConsistencyModelPipeline.get_guidance_scale_embedding`.
    """
    import numpy as np

    half = width // 2
    exponents = np.arange(half, dtype=np.float32) * -(math.log(10000.0) / (half - 1))
    frequencies = np.exp(exponents, dtype=np.float64).astype(np.float32)  # Angles are thousands of times as large.
    angles = (scale - 1) * 1000.0 * frequencies[None]
    return np.pad(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), ((0, 0), (0, width % 2)))


def _join_and_pool(texts: Mapping[str, EncodedText], config: JsonView) -> Inputs:
    """Join the vectors, and add the last encoder's pooled text."""
    *_, last = texts.values()
    joined = join_widths(texts, config)
    return joined if last.pooled is None else {**joined, "text_embeds": last.pooled}


_PAIR: Final = 2
_T5_TOKENS: Final = 256
"""Rows of zeros where Stable Diffusion 3 has no T5."""


def _join_three(texts: Mapping[str, EncodedText], config: JsonView) -> Inputs:
    """Join CLIP's two encoders by width, filled up with zeros to the denoiser's, and T5 behind them, as diffusers does.

    Raises `SourceError` if one of CLIP's is absent, or their widths do not fit.
    """
    import numpy as np

    width = config.get("joint_attention_dim")
    pair = [texts[name] for name in ("text_encoder", "text_encoder_2") if name in texts]
    pooled = [text.pooled for text in pair if text.pooled is not None]
    last = texts.get("text_encoder_3")
    clip = np.concatenate([text.hidden for text in pair], axis=-1) if len(pooled) == _PAIR else None
    if clip is None or not isinstance(width, int) or clip.shape[-1] > width:
        raise SourceError(
            "transformer: it takes texts of text_encoder and text_encoder_2, both with a projection and together no "
            "wider than `joint_attention_dim`; make the folder again of a pipeline whose parts fit"
        )
    t5 = np.zeros((len(clip), _T5_TOKENS, width), clip.dtype) if last is None else last.hidden
    if t5.shape[-1] != width:
        raise SourceError(
            f"transformer: it takes vectors of {width} numbers, and text_encoder_3 makes {t5.shape[-1]}; get both from "
            "the same pipeline"
        )
    filled = np.pad(clip, ((0, 0), (0, 0), (0, width - clip.shape[-1])))
    joined = np.concatenate([filled, t5], axis=1)
    return {"encoder_hidden_states": joined, "pooled_projections": np.concatenate(pooled, axis=-1)}


_SIDE: Final = 2
"""Latents along a side of the squares that are packed."""


def pack_squares(latents: Array) -> Array:
    """Lay squares of 2 by 2 latents row by row: (rows, squares, 4 · channels), of which four are one channel's."""
    rows, channels, height, width = latents.shape
    parts = latents.reshape(rows, channels, height // _SIDE, _SIDE, width // _SIDE, _SIDE).transpose(0, 2, 4, 1, 3, 5)
    packed: Array = parts.reshape(rows, height // _SIDE * (width // _SIDE), channels * _SIDE * _SIDE)
    return packed


def unpack_squares(packed: Array, height: int, width: int) -> Array:
    """Return the latents that `pack_squares` packed, of a height and width."""
    parts = packed.reshape(len(packed), height // _SIDE, width // _SIDE, -1, _SIDE, _SIDE).transpose(0, 3, 1, 4, 2, 5)
    latents: Array = parts.reshape(len(packed), -1, height, width)
    return latents


def _places(height: int, width: int, encoded: Inputs) -> Inputs:
    """Return the places of squares, (0, row, column), and those of the text's tokens, all at the beginning."""
    import numpy as np

    ids = np.zeros((height // _SIDE, width // _SIDE, 3), np.float32)
    ids[..., 1], ids[..., 2] = np.arange(height // _SIDE)[:, None], np.arange(width // _SIDE)
    tokens = encoded["encoder_hidden_states"].shape[1]
    return {"img_ids": ids.reshape(-1, 3), "txt_ids": np.zeros((tokens, 3), np.float32)}


def _t5_and_pooled_clip(texts: Mapping[str, EncodedText], _: JsonView) -> Inputs:
    """Return T5's states, and CLIP's vector beside them. Raises `SourceError` if one is absent."""
    clip, t5 = texts.get("text_encoder"), texts.get("text_encoder_2")
    if clip is None or clip.pooled is None or t5 is None:
        raise SourceError(
            "transformer: it takes texts of text_encoder, CLIP with a pooled output, and of text_encoder_2, T5; make "
            "the folder again of a pipeline that has both"
        )
    return {"encoder_hidden_states": t5.hidden, "pooled_projections": clip.pooled}


def _flux_guidance(denoiser: JsonView) -> GuidanceInput | None:
    """Return the input for the guidance, which dev was distilled with."""
    import numpy as np

    embedded = denoiser.get("guidance_embeds")
    return GuidanceInput("guidance", lambda scale: np.array([scale], np.float32)) if embedded else None


def _of_own_lengths(texts: Mapping[str, EncodedText], config: JsonView, *, key: str) -> Inputs:
    """Return a text's states with their numbers of tokens. Raises `SourceError` if they do not fit the denoiser."""
    import numpy as np

    (text,) = texts.values()
    width = config.get(key, text.hidden.shape[-1])
    if text.hidden.shape[-1] != width:
        raise SourceError(
            f"transformer: it takes vectors of {width} numbers, and text_encoder makes {text.hidden.shape[-1]}; get "
            "both from the same pipeline"
        )
    whole = np.full(len(text.hidden), text.hidden.shape[1])
    return {"encoder_hidden_states": text.hidden, TOKENS: whole if text.tokens is None else text.tokens}


def pack_cells(latents: Array) -> Array:
    """Lay latents row by row: (rows, height · width, channels)."""
    rows, channels = latents.shape[:2]
    packed: Array = latents.reshape(rows, channels, -1).transpose(0, 2, 1)
    return packed


def unpack_cells(packed: Array, height: int, width: int) -> Array:
    """Return the latents that `pack_cells` packed, of a height and width; tokens behind them are other pictures'."""
    latents: Array = packed[:, : height * width].transpose(0, 2, 1).reshape(len(packed), -1, height, width)
    return latents


def cell_places(height: int, width: int, picture: int = 0) -> Array:
    """Return the places of latents in FLUX.2: (picture, row, column, 0), pictures ten apart."""
    import numpy as np

    places = np.zeros((height, width, 4), np.int64)
    places[..., 0], places[..., 1], places[..., 2] = 10 * picture, np.arange(height)[:, None], np.arange(width)
    return places.reshape(-1, 4)


def _cell_and_word_places(height: int, width: int, encoded: Inputs) -> Inputs:
    """Return the places of latents, and of the text's tokens: (0, 0, 0, token)."""
    import numpy as np

    words = np.zeros((encoded["encoder_hidden_states"].shape[1], 4), np.int64)
    words[:, 3] = np.arange(len(words))
    return {"img_ids": cell_places(height, width), "txt_ids": words}


_SD: Final = DenoiserForm(guidance_input=_lcm_guidance)
_SDXL: Final = replace(_SD, encode=_join_and_pool)
_SD3: Final = DenoiserForm(encode=_join_three)
_FLUX: Final = DenoiserForm(_t5_and_pooled_clip, _places, _flux_guidance, pack_squares, unpack_squares)
_Z_IMAGE: Final = DenoiserForm(partial(_of_own_lengths, key="cap_feat_dim"), output=lambda raw, *_: -raw)


def _cells_of_pictures(pictures: Sequence[Array]) -> tuple[Array, Inputs]:
    """Return the latents of pictures one after the other, and their places."""
    import numpy as np

    places = [cell_places(one.shape[2], one.shape[3], number) for number, one in enumerate(pictures, 1)]
    return np.concatenate([pack_cells(one)[0] for one in pictures]), {"img_ids": np.concatenate(places)}


_FLUX2: Final = DenoiserForm(
    grid_inputs=_cell_and_word_places, pack=pack_cells, shown=_cells_of_pictures, output=unpack_cells
)


def _as_long(guided: Array, positive: Array) -> Array:
    """Bring each square of combined predictions to the length, as a vector, of the one on the prompts."""
    import numpy as np

    packed, lengths = pack_squares(guided), np.linalg.norm(pack_squares(positive), axis=-1, keepdims=True)
    return unpack_squares(packed * (lengths / np.linalg.norm(packed, axis=-1, keepdims=True)), *guided.shape[2:])


_QWEN_IMAGE: Final = DenoiserForm(partial(_of_own_lengths, key="joint_attention_dim"), guided=_as_long)
FORMS: Final[dict[str, DenoiserForm]] = {
    "sd1": _SD, "sd2": _SD, "sdxl": _SDXL, "sdxl_refiner": _SDXL, "sd3": _SD3, "flux": _FLUX,
    "flux2": _FLUX2, "z_image": _Z_IMAGE, "qwen_image": _QWEN_IMAGE,
}  # fmt: skip
"""Family → form of its denoiser."""
