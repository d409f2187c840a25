"""`matrix`: one workflow for each combination of checkpoints, LoRAs, targets and whatever else varies.

An axis is a map of names, each with keys that are laid over the workflow as `extends` does, or, under the path of a key
(`target`, `target.precision`, `loras`), a list of values.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.components import WEIGHT_FILE_SUFFIXES
from olivelike.model.records.output import is_plain
from olivelike.workflow.extends import apply_overrides, merge, read_with_bases, set_value
from olivelike.workflow.findings import Findings
from olivelike.workflow.long_form import expand_short_forms
from olivelike.workflow.places import Place
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence, kind_of

EXCLUDE: Final = "exclude"
_MOST: Final = 10_000
"""Combinations of one matrix."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_FIXED: Final = ("extends", "plugins", "matrix", "name")
"""Keys that are the same for all combinations."""


class UnnamedCombinationError(UsageError):
    """A workflow has a matrix, and nothing says which combination is meant."""


@dataclass(frozen=True)
class Axis:
    """One axis of a matrix: its name, and its values."""

    name: str
    values: dict[str, Mapping]
    """Keys that each value lays over the workflow, by its name."""


@dataclass(frozen=True)
class Combination:
    """One value of each axis."""

    name: str
    """Names of its values with `-` between: the folder in `output`."""
    values: dict[str, str]
    """Name of the value, by axis."""
    root: Mapping
    """The workflow without its matrix."""
    overlays: tuple[Mapping, ...]

    def tree(self, project_folder: Path) -> Mapping:
        """Return the workflow of this combination, in long form."""
        found = copy.deepcopy(self.root)
        for overlay in copy.deepcopy(self.overlays):
            expand_short_forms(overlay, project_folder)
            found = merge(found, overlay)
        return found


def read_combinations(place: Place, overrides: Iterable[str] = ()) -> tuple[Combination, ...]:
    """Return the combinations of a workflow's matrix; none if it has no matrix.

    Raises `WorkflowError` for what is wrong with the matrix, or with the file as a whole.

    Args:
        place: The workflow file.
        overrides: `key.path=value`, of which those of the matrix itself count.
    """
    findings = Findings()
    _, found = read_matrix(place, overrides, findings)
    findings.raise_if_any()
    return found


def is_of_matrix(override: str) -> bool:
    """Whether a `key.path=value` changes the matrix, and so which combinations there are."""
    return override.partition("=")[0].strip().split(".")[0] == "matrix"


def read_matrix(place: Place, overrides: Iterable[str], findings: Findings) -> tuple[Mapping, tuple[Combination, ...]]:
    """Return a workflow without its matrix, and the combinations of that; mistakes go to `findings`.

    Of the overrides those of the matrix are applied; the others are for each combination.
    """
    root = read_with_bases(place, findings)
    apply_overrides(root, filter(is_of_matrix, overrides), place.project_folder, findings)
    return root, _take_combinations(root, findings)


def _take_combinations(root: Mapping, findings: Findings) -> tuple[Combination, ...]:
    matrix = root.entries.pop("matrix", None)
    position = root.keys.pop("matrix", root.position)
    if matrix is None or (isinstance(matrix, Scalar) and matrix.value is None):
        return ()
    if not isinstance(matrix, Mapping):
        findings.add(position, f"`matrix` is a map of axes, such as {{target: [cpu, cuda]}}, found {kind_of(matrix)}")
        return ()
    axes = [
        Axis(name, _values(name, node, matrix, findings)) for name, node in matrix.entries.items() if name != EXCLUDE
    ]
    if not axes:
        findings.add(position, "`matrix` has no axis; write one, such as `target: [cpu, cuda]`")
    count = math.prod(len(axis.values) for axis in axes)
    if count > _MOST:
        findings.add(position, f"`matrix` has {count} combinations, more than {_MOST}; split the workflow")
        return ()
    excluded = list(_excluded(matrix.entries.get(EXCLUDE), axes, findings))
    found = tuple(
        one for one in _product(root, axes) if not any(rule.items() <= one.values.items() for rule in excluded)
    )
    if axes and all(axis.values for axis in axes) and not found:
        findings.add(matrix.keys[EXCLUDE], "`exclude` leaves no combination; remove a rule")
    names: dict[str, Combination] = {}
    for one in found:
        if not is_plain(one.name):
            findings.add(position, f"{one.name!r} can't be a folder's name on Windows; rename its values")
    for one in found:  # Some disks do not tell upper from lower case.
        if other := names.get(one.name.lower()):
            findings.add(
                position, f"two combinations are called {one.name!r}; rename a value of {_differing(one, other)}"
            )
            break
        names[one.name.lower()] = one
    return found


def _differing(one: Combination, other: Combination) -> str:
    return " or ".join(repr(axis) for axis, name in one.values.items() if other.values[axis] != name)


def _product(root: Mapping, axes: list[Axis]) -> Iterator[Combination]:
    for chosen in itertools.product(*(axis.values.items() for axis in axes)):
        names = [name for name, _ in chosen]
        values = {axis.name: name for axis, name in zip(axes, names, strict=True)}
        yield Combination("-".join(names), values, root, tuple(overlay for _, overlay in chosen))


def _values(name: str, node: Node, matrix: Mapping, findings: Findings) -> dict[str, Mapping]:
    if isinstance(node, Sequence) and node.items:
        return _listed(name, node, matrix, findings)
    if not isinstance(node, Mapping) or not node.entries:
        findings.add(node.position, f"the axis `{name}` is a list of values, or a map of names with keys; fill it")
        return {}
    found: dict[str, Mapping] = {}
    for value, overlay in node.entries.items():
        if isinstance(overlay, Scalar) and overlay.value is None:
            overlay = Mapping({}, {}, overlay.position)  # noqa: PLW2901
        if _NAME.fullmatch(value) is None:
            findings.add(node.keys[value], f"{value!r} can't be part of a folder's name; use letters, digits, `.+-_`")
        elif not isinstance(overlay, Mapping):
            findings.add(
                overlay.position,
                f"`{value}` is a map of keys that it lays over the workflow, found {kind_of(overlay)}; for a list of "
                "values call the axis like the key",
            )
        elif fixed := [key for key in _FIXED if key in overlay.entries]:
            findings.add(overlay.keys[fixed[0]], f"`{fixed[0]}` is the same for all of a matrix; put it outside")
        else:
            found[value] = overlay
    return found


def _listed(name: str, node: Sequence, matrix: Mapping, findings: Findings) -> dict[str, Mapping]:
    """Return what each value of a list lays over the workflow, under the path that is the axis's name."""
    found: dict[str, Mapping] = {}
    keys = name.split(".")
    if not all(keys) or keys[0] in _FIXED:
        findings.add(matrix.keys[name], f"`{name}` is no key that can vary; name one such as `source` or `target`")
        return {}
    for number, item in enumerate(node.items, 1):
        label = _label(item) or str(number)
        if label in found:
            findings.add(item.position, f"two values of `{name}` are called {label!r}; write a map of names instead")
            continue
        overlay = Mapping({}, {}, item.position)
        set_value(overlay, keys, item, item.position)
        found[label] = overlay
    return found


def _label(node: Node) -> str | None:
    """Return a name for a value: of a path its stem, of a hub id its last part, of a list the names of its items."""
    match node:
        case Scalar(value=str(text)):
            stem = PurePosixPath(text.replace("\\", "/")).name
            stem = stem.rpartition(".")[0] if stem.endswith(WEIGHT_FILE_SUFFIXES) else stem
            return "".join(re.findall(r"[\w.+-]+", stem)).strip(".-+_") or None
        case Scalar(value=value) if value is not None:
            return str(value).lower()
        case Sequence(items=[]):
            return "none"
        case Sequence(items=items):
            names = [_label(item) for item in items]
            return "+".join(name for name in names if name) if all(names) else None
        case Mapping(entries=entries):
            for key in ("provider", "path", "hub", "file"):
                if key in entries and (found := _label(entries[key])):
                    return found
    return None


def _excluded(node: Node | None, axes: list[Axis], findings: Findings) -> Iterator[dict[str, str]]:
    known = {axis.name: axis.values for axis in axes}
    if node is None:
        return
    if not isinstance(node, Sequence):
        findings.add(node.position, "`exclude` is a list of maps from an axis to the name of a value")
        return
    for rule in node.items:
        if not isinstance(rule, Mapping) or not rule.entries:
            findings.add(rule.position, "a rule of `exclude` is a map, such as {target: cpu, source: painter}")
            continue
        chosen: dict[str, str] = {}
        for axis, value in rule.entries.items():
            name = str(value.value) if isinstance(value, Scalar) else ""
            if axis not in known:
                findings.add(rule.keys[axis], f"no axis {axis!r}; {did_you_mean(axis, list(known), 'axes')}")
            elif name not in known[axis]:
                hint = did_you_mean(name, list(known[axis]), "values")
                findings.add(value.position, f"{axis!r} has no {name!r}; {hint}")
            chosen[axis] = name
        yield chosen
