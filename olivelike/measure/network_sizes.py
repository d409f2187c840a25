"""Sizes of a network's dynamic dimensions, given or as its pipeline's pictures have; seeded random inputs of such."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from olivelike._untrusted import Json, read_settings
from olivelike.errors import UsageError
from olivelike.families import DENOISERS, family_of_folder
from olivelike.families.denoiser_forms import FORMS
from olivelike.families.network import Input
from olivelike.graphs.editing.values import evaluate
from olivelike.model.adapter_features import downscale_factor
from olivelike.model.architecture import Config
from olivelike.model.components import INDEX_FILE, pixels_per_latent
from olivelike.model.guides import CONTROL_KINDS

GUIDED: Final = (*DENOISERS, *(name for kind in CONTROL_KINDS if kind.in_each_step for name in kind.components))
"""Components that run on negative prompts and prompts."""
Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Case:
    """The sizes of dynamic dimensions, in what a network takes: latent cells, or pixels."""

    batch: int
    height: int
    width: int
    sequence: int = 77

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.height}x{self.width}, sequence {self.sequence}"

    def size(self, value: str, dim: str) -> int | None:
        """Return the size of a dimension whose name says what it is; `None` if it does not.

        Args:
            value: The input; one timestep serves the whole batch.
            dim: Name of its dimension.
        """
        if value == "timestep":
            return 1
        if "cells" in dim:
            return self.height * self.width
        if "squares" in dim:
            return self.height // 2 * (self.width // 2)
        return next((size for word, size in vars(self).items() if word in dim.lower()), None)


CASES = (Case(1, 16, 40, 50), Case(3, 24, 8, 9))
"""None is square, and none has height and width, or sequence, that `convert` traces with."""


def random_inputs(inputs: Sequence[Input], case: Case, config: Config, seed: int) -> dict[str, Array]:
    """Return seeded inputs of a component.

    Args:
        config: The network's, for the number of its tokens.
        seed: Equal seeds give equal inputs.

    Returns:
        Arrays by name: int32 for token ids, else float32.
    """
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for value in inputs:
        pairs = zip(value.dims, value.example, strict=True)
        sizes = [size if dim is None else case.size(value.name, dim) for dim, size in pairs]
        kind = next((kind for kind in CONTROL_KINDS if kind.picture == value.name), None)
        if kind is not None:
            # In pixels, of which there are as many per latent as in the trace.
            each = value.example[-1] // inputs[0].example[-1] if kind.in_each_step else downscale_factor(config)
            sizes[-2:] = [size and size * each for size in sizes[-2:]]
        if value.unit > 1:
            sizes[-2:] = [size and -(-size // value.unit) * value.unit for size in sizes[-2:]]
        shapes[value.name] = value.dtype, tuple(size for size in sizes if size is not None)
    values = random_values(shapes, config.get("vocab_size", 0), seed)
    return values | {value.name: values[value.name] / np.float32(_MOST_TIMESTEPS) for value in inputs if value.share}


def random_residuals(shapes: Mapping[str, Sequence[int | str]], case: Case, seed: int) -> dict[str, Array]:
    """Return seeded float32 noise for inputs of a UNet that take what guides give.

    Args:
        shapes: By name; sizes are numbers, or formulas over names such as `unet_sample_height/2`.
    """

    def size(name: str) -> int:
        return case.size("", name) or 0

    sizes = {
        name: tuple(dim if isinstance(dim, int) else evaluate(dim, size) for dim in shape)
        for name, shape in shapes.items()
    }
    return random_values({name: ("float32", shape) for name, shape in sizes.items()}, 0, seed)


def random_values(inputs: Mapping[str, tuple[str, tuple[int, ...]]], tokens: int, seed: int = 0) -> dict[str, Array]:
    """Return seeded values of the kinds that networks are used to: noise, token ids, a whole timestep.

    Args:
        inputs: NumPy dtype and shape of each, by name.
        tokens: Ids are below this number.
    """
    random = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for name, (text, shape) in inputs.items():
        dtype = np.dtype(text)
        if name == "timestep":
            values[name] = random.integers(1, _MOST_TIMESTEPS, shape).astype(dtype)
        elif name == "attention_mask":
            # A text, and a third of its row that fills it up.
            values[name] = np.broadcast_to(np.arange(shape[-1]) * 3 < 2 * shape[-1], shape).astype(dtype)
        elif dtype.kind in "iu":
            values[name] = random.integers(0, tokens or _PLACES_OF_IDS, shape, dtype=dtype.type)
        elif dtype.kind == "b":
            values[name] = random.integers(0, 2, shape).astype(dtype)
        else:
            values[name] = random.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
    return values


_MOST_TIMESTEPS: Final = 1000
_PLACES_OF_IDS: Final = 64
"""Places that ids tell, where a network has no vocabulary of tokens."""
_COLOURS: Final = 3
_PIXELS_PER_LATENT: Final = 8
_SIDE: Final = 64
"""Latents that a UNet was trained on, if nothing says so."""
_PLACES: Final = {
    1: ("batch",),
    2: ("batch", "sequence"),
    3: ("batch", "sequence"),
    4: ("batch", "channels", "height", "width"),
}
"""Usual axes of a tensor, by its rank."""


@dataclass(frozen=True)
class PictureSizes:
    """Sizes that pictures give to dynamic dimensions."""

    batch_size: int = 1
    """Pictures at once."""
    height: int = _SIDE * _PIXELS_PER_LATENT
    width: int = _SIDE * _PIXELS_PER_LATENT
    """In pixels."""
    pixels_per_latent: int = _PIXELS_PER_LATENT
    guided: Collection[str] = GUIDED
    """Components that take each picture twice, with and without the prompt."""

    def shape(
        self,
        component: str,
        name: str,
        dims: Sequence[int | str | None],
        given: Mapping[str, int] | None = None,
        *,
        by_place: bool = False,
    ) -> tuple[int, ...]:
        """Return the shape of an input or output. Raises `UsageError` for a dimension whose size is not known.

        Args:
            dims: Sizes, and of dynamic dimensions names, which say what they are, or formulas over names.
            by_place: Tell dimensions whose names say nothing by their places; those that are left are 1.
        """
        sizes = given or {}
        last = len(dims) == 4 and dims[-1] == _COLOURS
        scale = 1 if last or (len(dims) == 4 and dims[1] == _COLOURS) else self.pixels_per_latent
        batch = self.batch_size * (2 if component in self.guided else 1)
        case = Case(batch, self.height // scale, self.width // scale)
        places = ("batch", "height", "width") if last else _PLACES.get(len(dims), ())

        def named(text: str) -> int:
            size = sizes.get(text, case.size(name, text))
            if size is None:
                raise ValueError(text)
            return size

        def dynamic(axis: int, dim: str | None) -> int:
            if dim is not None and dim in sizes:
                return sizes[dim]
            for text in (dim, *(places[axis : axis + 1] if by_place else ())):
                with contextlib.suppress(ValueError):
                    return evaluate(text or "", named)
            if by_place:
                return 1
            raise UsageError(f"{component}: nothing says how large its dimension {dim!r} is; give its size")

        return tuple(dim if isinstance(dim, int) else dynamic(axis, dim) for axis, dim in enumerate(dims))


def sizes_of(
    network: Path,
    *,
    batch_size: int = 1,
    height: int | None = None,
    width: int | None = None,
    guided: Collection[str] = GUIDED,
) -> PictureSizes:
    """Return the sizes for a network: what the UNet of its pipeline was trained on, if nothing else is asked for.

    Raises `SourceError` if a config can't be read.

    Args:
        network: Folder of the network, in that of its pipeline; absent configs say nothing.
        guided: Components that take each picture twice.
    """
    own = read_config(network)
    denoisers = filter(None, (read_config(network.parent / name) for name in DENOISERS))
    unet = own if "cross_attention_dim" in own and "sample_size" in own else next(denoisers, {})
    vae = own if "vae" in network.name else read_config(network.parent / "vae_decoder")
    factor = pixels_per_latent(vae)
    side = unet.get("sample_size")
    sides = side if isinstance(side, list) and len(side) == 2 else [side, side]
    trained = [(size if isinstance(size, int) else _SIDE) * factor for size in sides]
    index = read_settings(network.parent / INDEX_FILE, "make the folder again", absent={})
    family = family_of_folder(index, (), unet)
    if FORMS[family.name].guidance_input(unet) is not None or not family.takes_negatives:
        guided = [name for name in guided if name not in GUIDED]
    return PictureSizes(batch_size, height or trained[0], width or trained[1], factor, guided)


def read_config(folder: Path) -> Json:
    """Return the `config.json` of a network; empty if there is none. Raises `SourceError` if it can't be read."""
    return read_settings(folder / "config.json", "make the folder again", absent={})
