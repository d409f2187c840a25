"""Inputs and outputs of a class of networks in a component's place, as clients expect them, and how torch runs it.

Names follow the folders that diffusers, optimum and the DirectML clients load; see `docs/clients.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from olivelike.model.architecture import Config

_SHOWN: Final = 32


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


@dataclass(frozen=True)
class Interface:
    """Inputs in order, and output names in order."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    sized_like: Mapping[str, str] = field(default_factory=dict)
    """Output → input whose batch, height and width it has; the trace knows them as formulas only."""


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


def shown(value: Any) -> str:
    """Return a config's value as JSON writes it, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
