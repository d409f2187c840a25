"""How diffusers reads a stored network: `from_config`, then its renaming of names from older versions."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.model.supported import REFUSALS, refused_config
from olivelike.sources.names.loading_result import Loading, identify, make_probes, quiet

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_diffusers(
    component: str,
    network_class: Any,
    config: dict[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    from_one_file: bool = False,
) -> Loading:
    """Return what diffusers makes of a config and stored names.

    Raises:
        SourceError: if the class refuses the config.
    """
    import torch
    from diffusers.utils import logging

    try:
        with torch.device("meta"), quiet(logging):
            network = network_class.from_config(config)
    except REFUSALS as error:
        told = refused_config(component, network_class.__name__, error, from_one_file=from_one_file)
        raise SourceError(told) from error

    stored = list(shapes)
    probes = make_probes(shapes)
    # The step of `from_pretrained` between reading the file and filling the network.
    network._fix_state_dict_keys_on_load(probes)  # noqa: SLF001
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    missing: set[str] = set()
    for name, parameter in network.state_dict().items():
        expected = tuple(parameter.shape)
        raw = identify(probes[name], stored) if name in probes else None
        if raw is None:
            missing.add(name)
        elif shapes[raw] != expected:
            mismatched[name] = (expected, shapes[raw])
        else:
            names[name] = (raw, expected)
    return Loading(_normalise(network), names, frozenset(missing), mismatched)


def _normalise(network: Any) -> dict[str, Any]:
    """Return the arguments of the network's constructor, defaults filled in, as JSON values."""
    parameters = inspect.signature(type(network).__init__).parameters
    own = {name: network.config[name] for name in parameters if name in network.config}
    normalised: dict[str, Any] = json.loads(json.dumps(own))
    return normalised
