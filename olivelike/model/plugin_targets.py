"""Targets of plugins: values that installed distributions offer by entry points, checked as ours are by tests.

An entry point of the group `olivelike.targets` has the name of the target and says where its `PluginTarget` is. So all
names are known without a plugin being imported, and one that is broken stops nobody who does not ask for its target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, get_args

from olivelike._installed import entry_points, metadata_of, owner_of
from olivelike._text import did_you_mean
from olivelike.errors import PluginError
from olivelike.model.targets import ALIASES, TARGETS, Kernel, Precision, Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "olivelike.targets"
"""Group of the entry points by which installed distributions offer targets."""


@dataclass(frozen=True)
class PluginTarget:
    """A target as a distribution offers it: the table, and where each of its claims comes from."""

    target: Target
    sources: Mapping[str, str]
    """Source of each claim, by the names of `claims`: a library or document with its release, or the test that ran."""
    package: str
    """What to install to have the provider, for messages."""
    origin: str = field(default="", init=False)
    """The distribution and its version; filled in as it is found."""


def target_names() -> list[str]:
    """Return the names of all targets, ours first.

    Raises `PluginError` if a plugin takes a name of ours or of another plugin.
    """
    return [*TARGETS, *_points()]


def all_targets() -> list[Target]:
    """Return all targets, ours first. Raises `PluginError` if a plugin can't be loaded, or claims what it must not."""
    return [*TARGETS.values(), *(_load(name).target for name in _points())]


def find_plugin_target(name: str) -> PluginTarget | None:
    """Return the target that a plugin offers under a name; `None` if none does.

    Raises `PluginError` if that plugin can't be loaded, or claims what it must not; the message names its distribution.
    """
    return _load(name) if name in _points() else None


def claims(target: Target) -> dict[str, str]:
    """Return what a table claims of its provider, in words, by what it claims it of."""
    found = {"opset": str(target.opset), "IR version": str(target.ir_version)}
    for one in fields(Target):
        value = getattr(target, one.name)
        if one.name not in _NO_CLAIM and value != one.default:
            words = " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)
            found[one.name] = "yes" if value is True else words
    found |= {operator: _words(kernel) for operator, kernel in target.kernels.items()}
    return found | {f"avoided: {operator}": reason for operator, reason in target.avoided.items()}


_NO_CLAIM: Final = frozenset(
    {"name", "provider", "precision", "opset", "ir_version", "kernels", "avoided", "plugin"}
    | {"device_id", "options", "session_options", "run_options"}
)
"""Fields that are choices, or have rows of their own."""


def _words(kernel: Kernel) -> str:
    parts = [" ".join(letter for letter in _LETTERS if letter in kernel.dtypes), *sorted(kernel.layouts)]
    if kernel.channels is not None:
        parts.append("widths " + " ".join(map(str, sorted(kernel.channels))))
    parts += ["packed"] * kernel.packed
    if kernel.float32_inputs:
        parts.append("float32 inputs " + " ".join(map(str, kernel.float32_inputs)))
    return ", ".join(parts)


_LETTERS: Final = "fhbd"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def _points() -> dict[str, EntryPoint]:
    """Return the entry points by the names of their targets. Raises `PluginError` for a name that is taken."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(GROUP):
        if point.name in TARGETS or point.name in ALIASES:
            raise PluginError(
                f"{owner_of(point)} offers a target {point.name!r}, which is a name of olivelike's own; rename its "
                "target, or uninstall it"
            )
        if (taken := found.setdefault(point.name, point)).value != point.value:
            raise PluginError(
                f"two plugins offer a target {point.name!r}: {owner_of(taken)} and {owner_of(point)}; uninstall one"
            )
    return found


def _load(name: str) -> PluginTarget:
    point = _points()[name]
    owner = owner_of(point)
    remedy = f"fix or uninstall {owner}"
    try:
        offered = point.load()
    except Exception as error:  # Whatever a stranger's module does as it is imported.
        raise PluginError(f"target {name!r} of {owner} can't be loaded ({point.value}: {error!r}); {remedy}") from error
    if type(offered) is not PluginTarget or type(offered.target) is not Target:
        raise PluginError(
            f"target {name!r} of {owner}: {point.value} is {type(offered).__name__}, no PluginTarget around a Target; "
            f"{remedy}"
        )
    if mistakes := [*_mistakes(name, offered)]:
        raise PluginError("\n".join(f"target {name!r} of {owner} ({point.value}): {one}" for one in mistakes))
    known = metadata_of(point.dist) if point.dist else None
    origin = f"{known['Name']} {known['Version']}" if known and known["Name"] else point.value
    found = replace(offered, target=replace(offered.target, plugin=origin))
    object.__setattr__(found, "origin", origin)
    return found


def _mistakes(name: str, offered: PluginTarget) -> Iterator[str]:
    """Yield what a stranger's table has that ours can't have, and claims that have no source."""
    target = offered.target
    if target.name != name or not _NAME.fullmatch(name):
        yield (
            f"it is called {target.name!r}; the target's name is that of the entry point, in lower-case letters, "
            "digits and `_`"
        )
    if target.precision not in get_args(Precision):
        yield f"precision {target.precision!r}; {did_you_mean(target.precision, get_args(Precision), 'precisions')}"
    if target.precision == "bf16" and not target.bfloat16:
        yield "its precision is bf16, and `bfloat16` is not set"
    if not target.provider:
        yield "`provider` is empty; name the execution provider as ONNX Runtime spells it"
    if not offered.package:
        yield "`package` is empty; say what to install to have the provider"
    newest = max(one.opset for one in TARGETS.values()), max(one.ir_version for one in TARGETS.values())
    for what, value, most in zip(("opset", "ir_version"), (target.opset, target.ir_version), newest, strict=True):
        if not isinstance(value, int) or not 1 <= value <= most:
            yield f"`{what}` is {value!r}; olivelike writes up to {most}"
    for operator, kernel in target.kernels.items():
        if type(kernel) is not Kernel or not kernel.dtypes or not kernel.dtypes <= frozenset(_LETTERS):
            yield f"kernels[{operator!r}] is {kernel!r}; make it a Kernel of letters among {_LETTERS}"
            return
        if not kernel.layouts <= {"NHWC", "NCHW"}:
            yield f"kernels[{operator!r}] has layouts {sorted(kernel.layouts)}; they are NHWC and NCHW"
    claimed = claims(target)
    for claim in sorted(claimed.keys() - {one for one, source in offered.sources.items() if source.strip()}):
        yield f"its claim of {claim!r} ({claimed[claim]}) has no source; say in `sources` how it is known"
    for claim in sorted(offered.sources.keys() - claimed.keys()):
        yield f"`sources` has {claim!r}, which it does not claim; {did_you_mean(claim, list(claimed), 'claims')}"
