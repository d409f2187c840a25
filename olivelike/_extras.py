"""Extras: what the core does without. Each is a folder of `olivelike/extras/`, or another distribution's package.

An extra has a module `extra`, whose constants say what it gives: `KINDS`, `PACKAGES`, `EXECUTORS` and so on, each a
mapping of names to texts `module:attribute`. The core asks for them here and imports one as it is used, so that an
extra whose folder is gone is missed by nobody. Other distributions name their module `extra` in the entry-point group
`olivelike.extras`, as plugins with passes do in theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._installed import entry_points, install_all, owner_of
from olivelike.errors import MissingError, PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint
    from types import ModuleType

GROUP = "olivelike.extras"
"""Entry-point group of other distributions' extras."""


@dataclass(frozen=True)
class Command:
    """A command of the command line that an extra gives, in its `COMMANDS`.

    Its name there has two words if it joins a group of the core, as `cache push` does; it comes last in it.
    """

    place: str
    """`module:attribute` of its function, or of the typer app of a group."""
    example: str
    group: str = ""
    """Title in `olivelike --help` that a name of one word stands under."""
    after: str = ""
    """Command that it follows there, if that is in the group; otherwise it comes last."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Titles over its options, with their longest names; others come last."""


def commands() -> Mapping[str, Command]:
    """Return the commands of our extras by name, sorted by extra.

    Other distributions have scripts of their own: a look at their entry points takes 20 ms of every command's start.
    """
    return {name: one for extra in _ours() for name, one in getattr(extra, "COMMANDS", {}).items()}


def offered(interface: str) -> Mapping[str, str]:
    """Return what fills an interface, such as `KINDS`: `module:attribute` by name, ours first, sorted by extra.

    Raises `ValueError` if two extras give one name.
    """
    found: dict[str, str] = {}
    for extra in _extras():
        for name, place in getattr(extra, interface, {}).items():
            if name in found:
                raise ValueError(f"{extra.__name__} gives {interface}[{name!r}] a second time, after {found[name]}")
            found[name] = place
    return found


def place_of(interface: str, name: str) -> str | None:
    """Return `module:attribute` of what an extra gives under a name; `None` if no extra does.

    Ours come first: only what none of them names is looked for among entry points, which takes 20 ms.
    """
    found = (getattr(extra, interface, {}).get(name) for extras in (_ours, _extras) for extra in extras())
    return next((place for place in found if place is not None), None)


def load(interface: str, name: str) -> Any:
    """Return what an extra gives under a name. Raises `KeyError` if no extra does."""
    place = place_of(interface, name)
    if place is None:
        raise KeyError(name)
    return imported(place)


def imported(place: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def needed(interface: str, name: str, use: str) -> Any:
    """Return what an extra gives to a use that can't do without it.

    Raises `MissingError` naming the use, and what to install, if no extra does.
    """
    if place_of(interface, name) is None:
        if more := install_all():
            raise MissingError(f"{use} takes an extra of olivelike, and {more}")
        raise MissingError(
            f"{use} takes an extra of olivelike that is not here ({interface}[{name!r}]); install it, or all of ours "
            "by `pip install --force-reinstall --no-deps olivelike`"
        )
    return load(interface, name)


@cache
def _extras() -> tuple[ModuleType, ...]:
    others = {point.value: point for point in entry_points(GROUP)}
    return (*_ours(), *(_loaded(point) for _, point in sorted(others.items())))


def _loaded(point: EntryPoint) -> ModuleType:
    try:
        module: ModuleType = point.load()
    except Exception as error:  # Whatever a stranger's module does as it is imported.
        owner = owner_of(point)
        raise PluginError(
            f"extra {point.value!r} of {owner} can't be loaded ({error!r}); fix or uninstall {owner}"
        ) from error
    return module


@cache
def _ours() -> tuple[ModuleType, ...]:
    return tuple(map(_read, sorted(Path(__file__).with_name("extras").glob("*/extra.py"))))


def _read(path: Path) -> ModuleType:
    """Run an `extra.py` of ours by itself: no start imports packages of extras that it does not use."""
    spec = spec_from_file_location(f"olivelike.extras.{path.parent.name}.extra", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
