"""A class of networks in a component's place: what it takes and gives, how torch runs it, how files hold it.

Names of inputs and outputs follow the folders that diffusers, optimum and the DirectML clients load; see
`docs/clients.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError

if TYPE_CHECKING:
    import torch

    from olivelike._untrusted import Json
    from olivelike.model.architecture import Config
    from olivelike.model.few_steps import FewSteps

Tensors = dict[str, "torch.Tensor"]
"""Name → tensor."""
Shapes = Mapping[str, tuple[int, ...]]
"""Name of a tensor → its shape."""
MOST_PATCHES: Final = 1024
"""Patches along a picture's side: the number of positions is its square."""
_LARGEST_BASE: Final = 1e12
_SHOWN: Final = 32
_LONGEST_NUMBER: Final = 3


@dataclass(frozen=True)
class Input:
    """One input: its dtype, and per dimension a name if it is dynamic, and the size to trace with."""

    name: str
    dtype: str
    """As torch names it: `float32`, `int32`."""
    dims: tuple[str | None, ...]
    """Name of each dynamic dimension; `None` where the network fixes the size."""
    example: tuple[int, ...]
    """Shape to trace with; a named dimension traced at 1 is fixed in the trace and broadcast by the graph."""
    share: bool = False
    """Whether it is a share, from 0 to 1."""
    unit: int = 1
    """Common divisor of the heights and widths that it takes."""


@dataclass(frozen=True)
class Interface:
    """Inputs in order, and output names in order."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    sized_like: Mapping[str, str] = field(default_factory=dict)
    """Output → input whose batch, height and width it has; the trace knows them as formulas only."""


def packing_interface(patch: int, channels: int, tokens: int, width: int) -> Interface:
    """Return what a denoiser takes and gives that packs latents itself: latents, the share of noise, and one text.

    Args:
        patch: Latents along a side of the squares that are one token to it.
        channels: Of latents.
        tokens: Of the text that it is traced with.
        width: Of each token of the text.
    """
    dims = ("transformer_batch", None, "transformer_height", "transformer_width")
    text = ("transformer_batch", "transformer_sequence", None)
    return Interface(
        (
            # Neither square nor a common size.
            Input("sample", "float32", dims, (2, channels, patch * 4, patch * 6)),
            Input("timestep", "float32", ("transformer_time_batch",), (1,), share=True),
            Input("encoder_hidden_states", "float32", text, (2, tokens, width)),
        ),
        ("out_sample",),
        sized_like={"out_sample": "sample"},
    )


@dataclass(frozen=True)
class Told:
    """Findings about a denoiser from names and shapes of its tensors."""

    family: str | None
    reason: str
    """Evidence for the family; what it is in its place, if that is `None`."""
    network: str = ""
    """Network that it is in place of one of a family, in words."""
    takes_mask: bool = False
    few_steps: FewSteps | None = None
    notes: tuple[str, ...] = ()
    """More of what was found, for a person."""


@dataclass(frozen=True)
class Rows:
    """Rows of a layer's weight, or all of them, counted in as many as it has columns."""

    layer: str
    """Name of the layer in its library, with `#` for each number of a block."""
    first: int = 0
    end: int | None = None
    of: int | None = None
    """Number of all its rows, counted so, if others of the name are held otherwise."""


@dataclass(frozen=True)
class Held:
    """A layer under a name that is not its library's, and the rows of the library's layers that it holds, in order."""

    name: str
    """Name with `#` for each number of a block."""
    rows: tuple[Rows, ...]


def held(name: str, *layers: str | Rows) -> Held:
    """Return a layer of another name that holds whole layers of the library, or rows of them."""
    return Held(name, tuple(Rows(layer) if isinstance(layer, str) else layer for layer in layers))


def swapped(layer: str) -> tuple[Rows, Rows]:
    """Return the halves of a layer in the order in which they are not: scale and shift of a norm."""
    return Rows(layer, 1, 2, of=2), Rows(layer, 0, 1, of=2)


DENOISER_PREFIXES: Final = ("model.diffusion_model.", "diffusion_model.")
"""Beginnings of a denoiser's names in a single file, as the original code and what trains after it write them."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A way in which files of the original code hold a network; readers, LoRAs and writers of files share it."""

    name: str
    """Name of the way, which keys and the shelf's questions hold."""
    to_library: Callable[[Config, Tensors], Tensors]
    """Config, tensors by original name → those tensors, or views of them, by the names of the network's library."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of all its names, in files that hold more than one network; the usual one first."""
    prefix_at: Callable[[str], str | None] = lambda name: None  # noqa: ARG005
    """Tells from the name of a tensor what stands before all of the network's, if that tensor is its first."""
    expected: str = ""
    """Beginning of names that `to_library` takes."""
    marks: tuple[str, ...] = ()
    """Names that tell such a network, without prefix."""
    whole: tuple[str, ...] = ()
    """Names that it has besides, if it is no network that leads it."""
    roots: tuple[str, ...] = ()
    """Beginnings of its names where they have no prefix, so that marks such as `v_pred` may stand beside it."""
    absent: str = ""
    """Beginning of parameters that such a file does not hold, and that nothing reads."""
    config: Callable[[Config, Shapes, int | None], Config] = lambda published, shapes, head: {}  # noqa: ARG005
    """Published config, shapes by original name, channels of the family's heads → settings that the shapes tell.

    Raises `KeyError`, `IndexError` or `ValueError` for a structure that can't be read.
    """
    tell: Callable[[Shapes, str | None], Told] = lambda shapes, of_texts: Told(None, "")  # noqa: ARG005
    """Shapes of a denoiser by original name, family of the text encoders beside it → findings."""
    original: Callable[[Collection[str]], Callable[[str], str | None]] = lambda names: lambda name: None  # noqa: ARG005
    """Names of all parameters, or of all layers → the original name for one of them; `None` where it has none."""

    def prefix_among(self, names: Collection[str]) -> str | None:
        """Return the prefix under which a file holds such a network; `None` if it holds none."""
        found = (prefix for prefix in (*self.prefixes, "") if all(prefix + mark in names for mark in self.marks))
        return next(found, None)

    def prefix_of(self, names: Collection[str]) -> str:
        """Return what all names of a network begin with in its file, before those of the original code."""
        known = (*self.prefixes, *filter(None, map(self.prefix_at, names)))
        return next((prefix for prefix in known if all(name.startswith(prefix) for name in names)), "")


@dataclass(frozen=True)
class Network:
    """A class of networks in the place of some components."""

    class_name: str
    components: tuple[str, ...]
    """Names within a pipeline."""
    interface: Callable[[Config], Interface]
    """Raises `KeyError` for a config that lacks what decides it."""
    forward: Callable[[Any], Any]
    """Torch network → `forward` of a module that holds it as `network`, from inputs to outputs in order."""
    check: Callable[[str, str, Config], None] = lambda component, class_name, config: None  # noqa: ARG005
    """Refuses an option of a config that no client knows, by a `SourceError`; takes component, class and config."""
    uneven: Callable[[Interface], Interface] | None = None
    """Gives an interface sizes to trace with that can't be halved, if that makes the network pass sizes on."""
    prepare: Callable[[Any, Config], Any] = lambda network, config: network  # noqa: ARG005
    """Changes a built network by what its config says beyond its library."""
    as_operators: Callable[[Any], None] = lambda network: None  # noqa: ARG005
    """Lets a network that is about to be traced call single operators for parts that its library writes out."""
    counts: frozenset[str] = frozenset()
    """Keys of its config that say how many layers there are: one number, or a list of them."""
    sizes: frozenset[str] = frozenset()
    """Keys of its config that say how wide things are."""
    inert: frozenset[str] = frozenset()
    """Keys of its config on which no graph depends; a key within another one has both names."""
    spelled: Callable[[Config], Config] = lambda config: config
    """Raw config → that config as its library of today spells it, with what it makes of other keys."""
    one_form: Callable[[Json, Config], Json] = lambda form, config: form  # noqa: ARG005
    """Parts of a completed config that decide the graph, and that config → those parts in one of their spellings.

    Raises `TypeError` or `LookupError` for values that are not known.
    """
    stored: tuple[Stored, ...] = ()
    """Ways in which files of original names hold it."""
    held: tuple[Held, ...] = ()
    """All its layers with weights, by the names that its original code and trainers of LoRAs give them.

    Empty if `Stored.original` says them.
    """


def check_turns(
    component: str,
    class_name: str,
    config: Config,
    axes: tuple[str, tuple[int, ...]],
    head: float,
    base: str | None = None,
) -> None:
    """Refuse heads that can't be turned by places: each axis of a place turns an even part of a head.

    Raises `SourceError` naming the key.

    Args:
        component: For the message, as `class_name`.
        class_name: Of the network.
        config: Its config.
        axes: Key of the parts' widths, and the class's own.
        head: Width of a head.
        base: Key of what the frequencies of the turns are powers of.
    """
    key, usual = axes
    parts = config.get(key, usual)
    whole = isinstance(parts, list | tuple) and len(parts) == len(usual) and all(isinstance(one, int) for one in parts)
    if not whole or sum(parts) != head or any(one % 2 for one in parts):
        raise SourceError(
            f"{component}: the config of {class_name} has `{key}: {shown(parts)}`, where {len(usual)} even numbers "
            f"make sense whose sum is {head:g}, the width of a head; get its config.json again"
        )
    if base is not None:
        check_base(component, class_name, config, base)


def check_base(component: str, class_name: str, config: Config, key: str) -> None:
    """Refuse a base of turns, of which frequencies are powers, that is none. Raises `SourceError` with the key."""
    value = config.get(key, 2)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value <= _LARGEST_BASE:
        raise SourceError(
            f"{component}: the config of {class_name} has `{key}: {shown(value)}`, where a number above 1 makes "
            "sense; get its config.json again"
        )


def size_of(config: Config, key: str, usual: float) -> float:
    """Return a size of a config; the class's own where it says none."""
    value = config.get(key)
    return value if isinstance(value, int | float) else usual


def with_own_names(stored: Stored, *marks: str, **changes: Any) -> tuple[Stored, Stored]:
    """Return a way to hold a network, and that of files with its library's own names, which some of them tell."""
    own = replace(stored, name=f"{stored.name}_own", to_library=lambda config, tensors: tensors, marks=marks, **changes)  # noqa: ARG005
    return stored, own


def in_llamas_names(stored: Stored, names: Mapping[str, str], first: str) -> Stored:
    """Return how GGUF files of llama.cpp hold a text encoder, by the way in which its library's own names are read.

    Source: https://github.com/ggml-org/llama.cpp (`gguf-py/gguf/constants.py`, `TENSOR_NAMES`).

    Args:
        stored: The way of its library's names.
        names: Layer by llama.cpp's name, with `#` for the number of a block → its library's.
        first: Name of a tensor that no other network has so.
    """

    def name_in_library(name: str) -> str:
        layer, _, kind = name.rpartition(".")
        number = next((part for part in layer.split(".") if part.isdigit()), "")
        known = names.get(re.sub(r"\d+", "#", layer, count=1))
        return name if known is None else f"{known.replace('#', number)}.{kind}"

    return replace(
        stored,
        name=f"{stored.name}_llama",
        to_library=lambda config, tensors: {name_in_library(name): one for name, one in tensors.items()},  # noqa: ARG005
        prefix_at=lambda name: "" if name == first else None,
        config=lambda published, shapes, head: stored.config(
            published, {name_in_library(name): shape for name, shape in shapes.items()}, head
        ),
    )


def norms_as_operators(network: Any) -> None:
    """Let norms by the root of the mean square, of either library, be traced as that.

    A class of another sum, such as Gemma's, whose weights are differences from 1, keeps a forward of its own, which
    `Network.as_operators` gives it.
    """
    import torch

    def norm(module: Any, values: torch.Tensor) -> torch.Tensor:
        epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
        normal = torch.nn.functional.rms_norm(values, (values.shape[-1],), module.weight, epsilon)
        return normal if getattr(module, "bias", None) is None else normal + module.bias

    for module in network.modules():
        known = type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))
        if known and not isinstance(module, torch.nn.RMSNorm) and "forward" not in vars(module):
            module.forward = MethodType(norm, module)


def diffusers_converter(name: str) -> Callable[..., Tensors]:
    """Return one of diffusers' functions that take tensors of a single file to its own names."""
    from diffusers.loaders import single_file_utils

    converter: Callable[..., Tensors] = getattr(single_file_utils, name)
    return converter


def by_diffusers(name: str) -> Callable[[Config, Tensors], Tensors]:
    """Return what converts by one of diffusers' functions, which needs no config."""
    return lambda config, tensors: diffusers_converter(name)(tensors)  # noqa: ARG005


def stored_values(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what files store of a network that decides its results, by name: parameters, and buffers of training.

    Weights that are tied have all their names; whole numbers, such as a count of batches, are none.
    """
    whole = {name for name, buffer in network.named_buffers() if not buffer.is_floating_point()}
    return {name: value for name, value in network.state_dict(keep_vars=True).items() if name not in whole}


def renamed(rest: str, names: Mapping[str, str]) -> str | None:
    """Return a name whose beginning is in a table, with what the table has for it; `None` if none is."""
    found = (new + rest[len(own) :] for own, new in names.items() if rest == own or rest.startswith(f"{own}."))
    return next(found, None)


def first_shape(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    """Return the first shape under a name that matches. Raises `KeyError` if there is none."""
    return shapes[_matches(shapes, pattern)[0].string]


def layer_count(shapes: Shapes, pattern: str) -> int:
    """Return the number of layers whose number is a pattern's group. Raises `KeyError` if there is none."""
    return 1 + max(layer_number(match[1]) for match in _matches(shapes, pattern))


def layer_number(text: str) -> int:
    """Return the number of a layer in a stored name. Raises `ValueError` if no network has so many."""
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a layer of number {text[:20]}")
    return int(text)


def head_count(width: int, head_width: int) -> int:
    """Return the number of heads. Raises `ValueError` if it is no whole one."""
    if width % head_width:
        raise ValueError(f"{width} channels, no multiple of {head_width}, the width of a head")
    return width // head_width


def _matches(shapes: Shapes, pattern: str) -> list[re.Match[str]]:
    found = [match for match in map(re.compile(pattern).search, shapes) if match]
    if not found:
        raise KeyError(pattern)
    return found


def shown(value: Any) -> str:
    """Return a config's value as JSON writes it, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
