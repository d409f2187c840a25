"""How diffusers and transformers read a stored network, with their renaming of names from older versions."""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.families.network import stored_values
from olivelike.families.supported import REFUSALS
from olivelike.model.architecture import Config
from olivelike.sources.names.loading_result import Loading, Shape, identify, make_probes, quiet

_MOST_TIMES, _SLACK = 4, 1 << 24
"""Parameters of a config, some of which are one tensor in a file, for those of its files."""
_BOOKKEEPING = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version", "name_or_path"})


def load_diffusers(
    network_class: Any, config: Config, shapes: Mapping[str, Shape], refuse: Callable[[Exception], SourceError]
) -> Loading:
    """Return what diffusers makes of a config and stored names: `from_config`, then its renaming.

    Raises:
        SourceError: what `refuse` makes of the class's refusal of the config.
    """
    import torch
    from diffusers.models.modeling_utils import no_init_weights
    from diffusers.utils import logging

    try:
        # Random values for tensors that hold none take most of the time that making the network does.
        with torch.device("meta"), no_init_weights(), quiet(logging):
            network = network_class.from_config(dict(config))
    except REFUSALS as error:
        raise refuse(error) from error

    probes = make_probes(shapes)
    # The step of `from_pretrained` between reading the file and filling the network.
    network._fix_state_dict_keys_on_load(probes)  # noqa: SLF001
    expected = {name: tuple(value.shape) for name, value in stored_values(network).items()}
    stored = list(shapes)
    found = {name: identify(probes[name], stored) for name in expected if name in probes}
    names = {name: raw for name, raw in found.items() if raw is not None}
    mismatched = {name: (expected[name], shapes[raw]) for name, raw in names.items() if shapes[raw] != expected[name]}
    # The constructor's arguments, defaults filled in.
    arguments = inspect.signature(network_class.__init__).parameters
    own = {name: network.config[name] for name in arguments if name in network.config}
    return Loading(
        _as_json(own),
        {n: raw for n, raw in names.items() if n not in mismatched},
        frozenset(expected.keys() - names.keys()),
        mismatched,
    )


def load_transformers(
    network_class: Any, config: Config, shapes: Mapping[str, Shape], refuse: Callable[[Exception], SourceError]
) -> Loading:
    """Return what transformers makes of a config and stored names: `from_pretrained`, which renames.

    Raises:
        SourceError: what `refuse` makes of the class's refusal of the config, or for a number of a layer that is none.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers.utils import logging

    try:
        with quiet(logging):
            parsed = _parse(network_class.config_class, config)
            with torch.device("meta"):
                network = network_class(parsed)
    except (*REFUSALS, StrictDataclassError) as error:
        raise refuse(error) from error
    if odd := next((name for name in shapes if any(_is_odd(part) for part in name.split("."))), None):
        raise SourceError(f"{network_class.__name__}: {odd} is of a layer whose number is none; get the file again")
    expected = {name: tuple(value.shape) for name, value in stored_values(network).items()}
    told, held = (sum(map(math.prod, some)) for some in (expected.values(), shapes.values()))
    # What is not there gets memory below.
    if told > _MOST_TIMES * held + _SLACK:
        raise SourceError(
            f"{network_class.__name__}: its config is of {told:,} parameters, and its files have {held:,}; "
            "get both from the same source"
        )
    normalised = normalised_fields(network_class.config_class, config)

    try:
        with quiet(logging):
            network, info = network_class.from_pretrained(
                None,
                config=parsed,
                state_dict=make_probes(shapes),
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except REFUSALS as error:
        raise refuse(error) from error
    mismatched = {name: (tuple(own), tuple(found)) for name, found, own in info["mismatched_keys"]}
    loaded, stored = network.state_dict(), list(shapes)
    names: dict[str, str] = {}
    for name in expected.keys() - mismatched.keys() - set(info["missing_keys"]):
        raw = identify(loaded[name], stored)
        if raw is not None:
            names[name] = raw
    return Loading(normalised, names, frozenset(expected.keys() - names.keys() - mismatched.keys()), mismatched)


def _is_odd(part: str) -> bool:
    """Tell whether a part of a name is digits that transformers, which sorts by them, can't read as a number."""
    return part.isdigit() and not part.isdecimal()


def _parse(config_class: Any, config: Config) -> Any:
    """Read a raw config from a file: the library repairs old spellings there and nowhere else."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return config_class.from_pretrained(folder)


def normalised_fields(config_class: Any, config: Config) -> Config:
    """Return what transformers makes of a raw config, defaults filled in, as JSON values."""
    return _as_json(_fields(_parse(config_class, config)))


def _fields(config: Any) -> Config:
    """Return the fields of a config's class, and of the base class what is not the default."""
    from transformers import PretrainedConfig

    base = PretrainedConfig()
    own = inspect.signature(type(config).__init__).parameters.keys()
    inherited = inspect.signature(PretrainedConfig.__init__).parameters.keys()
    values: Json = {"model_type": config.model_type}
    for name in sorted((own | inherited) - _BOOKKEEPING):
        if not hasattr(config, name) or name in ("self", "kwargs"):
            continue
        value = getattr(config, name)
        if isinstance(value, PretrainedConfig):
            values[name] = _fields(value)
        elif name not in inherited or value != getattr(base, name, None):
            values[name] = value
    return values


def _as_json(values: Config) -> Config:
    normalised: Config = json.loads(json.dumps(values))
    return normalised
