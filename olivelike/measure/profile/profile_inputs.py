"""Random inputs of plausible shapes, for any network of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

SEQUENCE: Final = 77
"""Tokens of a text, as CLIP takes them."""
_TIMESTEP: Final = 500
_CHANNELS: Final = 3
_PIXELS_PER_LATENT: Final = 8
_SIDE: Final = 512
_VOCABULARY: Final = 1000
_DTYPES: Final = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Sizes:
    """What dynamic dimensions become."""

    batch_size: int
    """Pictures at once; the UNet takes twice as many, as with guidance."""
    height: int
    width: int
    """In pixels."""
    pixels_per_latent: int = _PIXELS_PER_LATENT


def sizes_of(folder: Path, batch_size: int, height: int | None, width: int | None) -> Sizes:
    """Return the sizes for the networks of a folder: what its UNet was trained on, if nothing else is asked for."""
    unet, vae = (read_config(folder / name) for name in ("unet", "vae_decoder"))
    levels = vae.get("block_out_channels")
    factor = 2 ** (len(levels) - 1) if isinstance(levels, list) and levels else _PIXELS_PER_LATENT
    side = unet.get("sample_size")
    trained = side * factor if isinstance(side, int) else _SIDE
    return Sizes(batch_size, height or trained, width or trained, factor)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a component; empty if there is none."""
    try:
        content = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def takes_text(inputs: Sequence[Any]) -> bool:
    """Say whether a network reads strings, as tokenizers do.

    Args:
        inputs: `InferenceSession.get_inputs()`.
    """
    return any(value.type == "tensor(string)" for value in inputs)


def random_inputs(
    component: str, inputs: Sequence[Any], sizes: Sizes, config: dict[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs by name: normal values, token ids, a timestep.

    Args:
        component: Name of the network's folder.
        inputs: `InferenceSession.get_inputs()`.
        sizes: For dynamic dimensions.
        config: The network's, for the number of its tokens.
    """
    import numpy as np

    random = np.random.default_rng(0)
    vocabulary = config.get("vocab_size")
    tokens = vocabulary if isinstance(vocabulary, int) else _VOCABULARY
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in inputs:
        named = value.type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype(_DTYPES.get(named, named))
        shape = input_shape(component, value.name, value.shape, sizes)
        if value.name == "timestep":
            feeds[value.name] = np.full(shape, _TIMESTEP, dtype)
        elif dtype.kind in "iu":
            feeds[value.name] = random.integers(0, tokens, shape).astype(dtype)
        elif dtype.kind == "b":
            feeds[value.name] = random.integers(0, 2, shape).astype(dtype)
        else:
            feeds[value.name] = random.standard_normal(shape, np.float32).astype(dtype)
    return feeds


def input_shape(component: str, name: str, dims: Sequence[int | str | None], sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of an input.

    Args:
        component: Name of the network's folder.
        name: Of the input.
        dims: Sizes, and names of dynamic dimensions, which say what they are; those that don't are told by position.
        sizes: For dynamic dimensions.
    """
    rank = len(dims)
    last = rank == 4 and dims[3] == _CHANNELS
    scale = 1 if last or (rank == 4 and dims[1] == _CHANNELS) else sizes.pixels_per_latent
    batch = 1 if name == "timestep" else sizes.batch_size * (2 if component == "unet" else 1)
    known = {
        "batch": batch,
        "height": sizes.height // scale,
        "width": sizes.width // scale,
        "sequence": SEQUENCE,
    }
    by_place = ["batch", "height", "width", ""] if last else ["batch", "", "height", "width"]
    places = by_place if rank == 4 else ["batch", "sequence"][:rank]
    shape = []
    for axis, dim in enumerate(dims):
        if isinstance(dim, int):
            shape.append(dim)
            continue
        said = next((word for word in known if dim and word in dim.lower()), None)
        guessed = places[axis] if axis < len(places) else ""
        shape.append(known.get(said or guessed, 1))
    return tuple(shape)
