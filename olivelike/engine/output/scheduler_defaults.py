"""The config of a scheduler with the defaults of its class, from a table: diffusers itself need not be imported."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any

from packaging.specifiers import SpecifierSet

from olivelike._untrusted import Json, JsonView
from olivelike.model.architecture import Config
from olivelike.model.scheduler_settings import scheduler_table

_NAMES = frozenset({"_class_name", "_diffusers_version"})
_MOST = 1_000_000


def with_defaults(class_name: str, config: Config) -> Json | None:
    """Return what the installed diffusers saves for a scheduler of this class that is made from `config`.

    A key that is another scheduler's stays, as diffusers keeps it.

    Args:
        class_name: The scheduler's class in diffusers.
        config: Its `scheduler_config.json`, of whatever release.

    Returns:
        The whole config, sorted; `None` where the table does not say what diffusers would do: another release, an
        unknown class or key, or a value that the class might change or refuse.
    """
    installed = version("diffusers")
    row = next((row for row in scheduler_table()["classes"].get(class_name, ()) if _covers(row, installed)), None)
    if row is None or config.keys() - _NAMES - _known_keys() or not _is_kept(row, config):
        return None
    if not isinstance(config.get("_class_name", class_name), str):
        return None
    whole = {**row["defaults"], **config, "_class_name": class_name, "_diffusers_version": installed}
    ordered: Json = json.loads(json.dumps(whole, sort_keys=True))
    return ordered


def _is_kept(row: JsonView, config: Config) -> bool:
    """Say whether the class takes every value as it is, alone and beside the others."""
    defaults, values = row["defaults"], row["values"]
    told = {key: value for key, value in config.items() if key in defaults and not _same(value, defaults[key])}
    for key, value in told.items():
        if key in values:
            if not any(_same(value, accepted) for accepted in values[key]):
                return False
        elif not _is_like(key, value, defaults[key]):
            return False
    return not any(all(told.get(key) == value for key, value in pair) for pair in row["conflicts"])


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _is_like(key: str, value: Any, default: Any) -> bool:
    """Say whether a value is a number of the default's kind that every class takes."""
    if isinstance(value, bool) or isinstance(default, bool) or not isinstance(default, int | float):
        return False
    least = 2 if key == "num_train_timesteps" else 0
    return isinstance(value, int if isinstance(default, int) else int | float) and least <= value <= _MOST


@cache
def _known_keys() -> frozenset[str]:
    """Return what a class keeps although it is not its own: settings of the other classes, and of 2022."""
    rows = (row for rows in scheduler_table()["classes"].values() for row in rows)
    return frozenset(scheduler_table()["strays"]).union(*(row["defaults"] for row in rows))


def _covers(row: JsonView, installed: str) -> bool:
    return installed in SpecifierSet(row["diffusers"])
