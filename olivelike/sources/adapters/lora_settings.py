"""Rank and alpha as PEFT's configs state them: `adapter_config.json`, or diffusers' JSON in a header.

diffusers writes one flat object under the metadata key `lora_adapter_metadata`. A pipeline prefixes each key with
its component (`unet.r`, `unet.lora_alpha`, `unet.rank_pattern`, …); a network saved on its own does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import parse_json, read_bytes
from olivelike.errors import SourceError
from olivelike.sources.adapters.patterns import Patterns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

METADATA_KEY = "lora_adapter_metadata"
CONFIG_NAME = "adapter_config.json"

_TYPES = ("LORA", "LOHA", "LOKR")
# These take their share out of the base weights too, so base plus difference is not what was trained.
_REBASED = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class Settings:
    """What a config says about the adapter of one component."""

    rank: int | None = None
    alpha: float | None = None
    ranks: Patterns[int] = field(default_factory=Patterns)
    """For modules that differ."""
    alphas: Patterns[float] = field(default_factory=Patterns)
    """For modules that differ."""
    rslora: bool = False
    base_class: str | None = None
    """Class of the network that it was trained on."""

    def rank_of(self, path: str) -> int | None:
        """Return the rank of a module, by PEFT's matching of patterns."""
        own = self.ranks.find(path)
        return self.rank if own is None else own

    def alpha_of(self, path: str) -> float | None:
        """Return the alpha of a module, by PEFT's matching of patterns."""
        own = self.alphas.find(path)
        return self.alpha if own is None else own


def settings_from_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Settings]:
    """Return the settings that diffusers left in a header, by component; the empty name is that of a lone network.

    Raises:
        SourceError: if they are damaged, or of a kind that can't be merged.
    """
    if METADATA_KEY not in metadata:
        return {}
    where = f"{path}: {METADATA_KEY} in its header"
    by_component: dict[str, dict[str, Any]] = {}
    for key, value in _json_object(where, metadata[METADATA_KEY]).items():
        component, name = key.split(".", 1) if "." in key else ("", key)
        by_component.setdefault(component, {})[name] = value
    return {component: _settings(where, values) for component, values in by_component.items()}


def settings_from_file(config_path: Path) -> Settings:
    """Return the settings of an `adapter_config.json`.

    Raises:
        SourceError: if it can't be read, or is of a kind that can't be merged.
    """
    try:
        text = read_bytes(config_path)
    except OSError as error:
        raise SourceError(f"{config_path}: can't be read: {error}; get the file again") from error
    return _settings(str(config_path), _json_object(str(config_path), text))


def _json_object(where: str, text: str | bytes) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise SourceError(f"{where} can't be read as JSON: {error}; get the file again") from error
    if not isinstance(value, dict):
        raise SourceError(
            f"{where}: expected a JSON object, found {type(value).__name__}; get the file again"
        )
    return value


def _settings(where: str, values: Mapping[str, Any]) -> Settings:
    kind = values.get("peft_type") or "LORA"
    if kind not in _TYPES:
        named = kind if isinstance(kind, str) else "that is no name"
        raise SourceError(f"{where}: an adapter of type {named} can't be merged; use {', '.join(_TYPES)}")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_REBASED):
        raise SourceError(
            f"{where}: init_lora_weights is {start}, which changes the base weights too; "
            "convert it to a plain LoRA with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)",
        )
    mapping = values.get("auto_mapping")
    base_class = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    try:
        alpha = values.get("lora_alpha", values.get("alpha"))
        return Settings(
            rank=None if values.get("r") is None else int(values["r"]),
            alpha=None if alpha is None else float(alpha),
            ranks=Patterns(where, {key: int(n) for key, n in (values.get("rank_pattern") or {}).items()}),
            alphas=Patterns(where, {key: float(n) for key, n in (values.get("alpha_pattern") or {}).items()}),
            rslora=bool(values.get("use_rslora", False)),
            base_class=base_class if isinstance(base_class, str) else None,
        )
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{where}: a rank or alpha is no number; get the file again") from error
