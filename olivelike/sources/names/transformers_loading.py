"""How transformers reads a stored network: `from_pretrained`, which renames names from older versions."""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.model.supported import REFUSALS, refused_config
from olivelike.sources.names.loading_result import Loading, identify, make_probes, quiet

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOKKEEPING = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version", "name_or_path"})


def load_transformers(
    component: str,
    network_class: Any,
    config: dict[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    from_one_file: bool = False,
) -> Loading:
    """Return what transformers makes of a config and stored names.

    Raises:
        SourceError: if the class refuses the config.
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
        told = refused_config(component, network_class.__name__, error, from_one_file=from_one_file)
        raise SourceError(told) from error
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    normalised = _normalise(parsed)

    stored = list(shapes)
    with quiet(logging):
        network, info = network_class.from_pretrained(
            None,
            config=parsed,
            state_dict=make_probes(shapes),
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    mismatched = {name: (tuple(own), tuple(found)) for name, found, own in info["mismatched_keys"]}
    loaded = network.state_dict()
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in expected.items():
        raw = identify(loaded[name], stored)
        if raw is not None and name not in info["missing_keys"] and name not in mismatched:
            names[name] = (raw, shape)
    missing = expected.keys() - names.keys() - mismatched.keys()
    return Loading(normalised, names, frozenset(missing), mismatched)


def _parse(config_class: Any, config: dict[str, Any]) -> Any:
    """Read a raw config from a file: the library repairs old spellings there and nowhere else."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return config_class.from_pretrained(folder)


def _normalise(config: Any) -> dict[str, Any]:
    """Return the fields of a config's class as JSON values, and of the base class what is not the default."""
    from transformers import PretrainedConfig

    base = PretrainedConfig()
    own = inspect.signature(type(config).__init__).parameters.keys()
    inherited = inspect.signature(PretrainedConfig.__init__).parameters.keys()
    values: dict[str, Any] = {"model_type": config.model_type}
    for name in sorted((own | inherited) - _BOOKKEEPING):
        if not hasattr(config, name) or name in ("self", "kwargs"):
            continue
        value = getattr(config, name)
        if isinstance(value, PretrainedConfig):
            values[name] = _normalise(value)
        elif name not in inherited or value != getattr(base, name, None):
            values[name] = value
    normalised: dict[str, Any] = json.loads(json.dumps(values))
    return normalised
