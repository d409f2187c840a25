"""The LoRA among the files of a path, by the names that diffusers and PEFT give, and what their configs state.

Rank and alpha are in `adapter_config.json`, or in diffusers' JSON in a header.

diffusers writes one flat object under the metadata key `lora_adapter_metadata`. A pipeline prefixes each key with
its component (`unet.r`, `unet.lora_alpha`, `unet.rank_pattern`, …); a network saved on its own does not.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from olivelike._text import did_you_mean_path
from olivelike._untrusted import Json, parse_object, read_bytes
from olivelike.errors import SourceError
from olivelike.model.architecture import Config

METADATA_KEY = "lora_adapter_metadata"
CONFIG_NAME = "adapter_config.json"
_DIFFUSERS = "pytorch_lora_weights"
_PEFT = "adapter_model"
SUFFIXES = (".safetensors", ".bin", ".pt", ".ckpt")

_TYPES = ("LORA", "LOHA", "LOKR")
# These take their share out of the base weights too, so base plus difference is not what was trained.
_REBASED = ("pissa", "olora", "corda", "loftq", "lora_ga")
Value = TypeVar("Value")

_PLAIN: Final = re.compile(r"\^?[\w-]+(?:\\?\.[\w-]+)*\$?")
"""A module's name; its dots are taken for dots, though to PEFT they stand for any character."""
_SECONDS: Final = 4.0
"""Until the child is ended; a thousand usual patterns take a tenth of one."""
_REMEDY: Final = "name the modules in full instead"

_CHILD: Final = r"""
import json, re, sys, warnings
warnings.simplefilter("ignore")
patterns, paths = json.load(sys.stdin)
made = [re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns]
json.dump([next((i for i, one in enumerate(made) if one.match(path)), None) for path in paths], sys.stdout)
"""


@dataclass(frozen=True)
class Place:
    """The files of one LoRA."""

    weights: Path
    config: Path | None
    """PEFT's config beside the weights."""
    adapter: str | None
    """The adapter to take from the file; `None` once a folder has chosen it."""


def find_files(path: Path, adapter: str | None) -> Place:
    """Return the files of a LoRA. Raises `SourceError` if there is none, or several and none is chosen."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise SourceError(f"{path}: a LoRA file ends in {', '.join(SUFFIXES)}; check the path")
        return Place(path, _config_beside(path), adapter)
    if not path.is_dir():
        remedy = did_you_mean_path(path, "check the path of the LoRA")
        raise SourceError(f"{path}: no such file or folder; {remedy}")
    weights = _weights_in(path)
    if weights is not None:
        return Place(weights, _config_beside(weights), adapter)
    # PEFT saves each adapter but the default one in a folder of its name.
    adapters = {entry.name: entry for entry in sorted(path.iterdir()) if (entry / CONFIG_NAME).is_file()}
    if adapter in adapters or (adapter is None and len(adapters) == 1):
        name = adapter if adapter is not None else next(iter(adapters))
        weights = _weights_in(adapters[name])
        if weights is not None:
            return Place(weights, _config_beside(weights), None)
        raise SourceError(f"{adapters[name]}: it has {CONFIG_NAME} and no weights; get the folder again")
    if not adapters:
        raise SourceError(
            f"{path}: this folder has no LoRA: no {_DIFFUSERS}.safetensors, no {_PEFT}.safetensors, and no other "
            ".safetensors file; name the file itself"
        )
    wanted = "it holds several adapters" if adapter is None else f"there is no adapter {adapter!r}"
    raise SourceError(f"{path}: {wanted}; choose one of {', '.join(adapters)} with `adapter:`")


def _weights_in(folder: Path) -> Path | None:
    for suffix in (".safetensors", ".bin"):
        named = [folder / f"{stem}{suffix}" for stem in (_DIFFUSERS, _PEFT)]
        found = next((path for path in named if path.is_file()), None)
        if found is not None:
            return found
    others = sorted(entry for entry in folder.iterdir() if entry.suffix == ".safetensors" and entry.is_file())
    if len(others) > 1:
        names = ", ".join(entry.name for entry in others)
        raise SourceError(f"{folder}: it has several .safetensors files ({names}); name one of them")
    return others[0] if others else None


def _config_beside(weights: Path) -> Path | None:
    config = weights.with_name(CONFIG_NAME)
    return config if config.is_file() else None


@dataclass(frozen=True)
class Settings:
    """A config's word on the adapter of one component."""

    rank: int | None = None
    alpha: float | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Pattern → rank, for modules that differ."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """Pattern → alpha, for modules that differ."""
    rslora: bool = False
    base_class: str | None = None
    """Class of the network that it was trained on."""
    where: str = ""
    """The file, for messages."""

    def of_modules(self, paths: Collection[str]) -> dict[str, tuple[int | None, float | None]]:
        """Return rank and alpha of each module, by PEFT's matching of patterns.

        Raises `SourceError` if a pattern can't be matched.
        """
        ranks = match_patterns(self.where, self.ranks, paths)
        alphas = match_patterns(self.where, self.alphas, paths)
        return {path: (ranks.get(path, self.rank), alphas.get(path, self.alpha)) for path in paths}


def settings_from_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Settings]:
    """Return the settings that diffusers left in a header, by component; the empty name is that of a lone network.

    Raises `SourceError` if they are damaged, or of a kind that can't be merged.
    """
    if METADATA_KEY not in metadata:
        return {}
    where = f"{path}: {METADATA_KEY} in its header"
    by_component: dict[str, Json] = {}
    for key, value in _json_object(where, metadata[METADATA_KEY]).items():
        component, name = key.split(".", 1) if "." in key else ("", key)
        by_component.setdefault(component, {})[name] = value
    return {component: _settings(where, values) for component, values in by_component.items()}


def settings_from_file(config_path: Path) -> Settings:
    """Return the settings of an `adapter_config.json`.

    Raises `SourceError` if it can't be read, or is of a kind that can't be merged.
    """
    try:
        text = read_bytes(config_path)
    except OSError as error:
        raise SourceError(f"{config_path}: can't be read: {error}; get the file again") from error
    return _settings(str(config_path), _json_object(str(config_path), text))


def _json_object(where: str, text: str | bytes) -> Config:
    try:
        return parse_object(text)
    except ValueError as error:
        raise SourceError(f"{where} can't be read as JSON: {error}; get the file again") from error


def _settings(where: str, values: Config) -> Settings:
    kind = values.get("peft_type") or "LORA"
    if kind not in _TYPES:
        named = kind if isinstance(kind, str) else "that is no name"
        raise SourceError(f"{where}: an adapter of type {named} can't be merged; use {', '.join(_TYPES)}")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_REBASED):
        raise SourceError(
            f"{where}: init_lora_weights is {start}, which changes the base weights too; "
            "convert it to a plain LoRA with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)"
        )
    mapping = values.get("auto_mapping")
    base_class = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    try:
        alpha = values.get("lora_alpha", values.get("alpha"))
        return Settings(
            rank=None if values.get("r") is None else int(values["r"]),
            alpha=None if alpha is None else _finite(alpha),
            ranks={key: int(n) for key, n in (values.get("rank_pattern") or {}).items()},
            alphas={key: _finite(n) for key, n in (values.get("alpha_pattern") or {}).items()},
            rslora=bool(values.get("use_rslora", False)),
            base_class=base_class if isinstance(base_class, str) else None,
            where=where,
        )
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{where}: a rank or alpha is no number; get the file again") from error


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number


def match_patterns(where: str, values: Mapping[str, Value], paths: Collection[str]) -> dict[str, Value]:
    """Return for each path the value of the first pattern that matches it; paths that none matches are left out.

    Raises `SourceError` if a pattern is no regular expression, or matching takes too long. `paths` are those of
    modules, such as `down_blocks.0.attentions.0.to_q`.
    """
    plain: dict[str, int] = {}
    others: dict[str, int] = {}
    for number, pattern in enumerate(values):
        if _PLAIN.fullmatch(pattern):
            plain.setdefault(pattern.rstrip("$").replace("\\.", "."), number)
        else:
            others[pattern] = number
    matched = _match(where, others, list(paths)) if others else {}
    kept = list(values.values())
    found: dict[str, Value] = {}
    for path in paths:
        names = [f"^{path}", path, *(path[match.end() :] for match in re.finditer(r"\.", path))]
        numbers = [plain[name] for name in names if name in plain]
        numbers += [matched[path]] if path in matched else []
        if numbers:
            found[path] = kept[min(numbers)]
    return found


def _match(where: str, patterns: Mapping[str, int], paths: list[str]) -> dict[str, int]:
    """Return the number of the first regular expression that matches, by path."""
    given = json.dumps([list(patterns), paths])
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    first = next(iter(patterns))[:80]
    try:
        child = subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        what = f"its patterns ({first!r} and others) take too long to match"
        raise SourceError(f"{where}: {what}; {_REMEDY}") from error
    if child.returncode:
        reason = "".join(child.stderr.strip().splitlines()[-1:])
        raise SourceError(f"{where}: patterns such as {first!r} are no regular expressions: {reason}; {_REMEDY}")
    numbers = list(patterns.values())
    return {
        path: numbers[index] for path, index in zip(paths, json.loads(child.stdout), strict=True) if index is not None
    }
