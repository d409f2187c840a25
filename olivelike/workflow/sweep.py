"""`sweep`: variants of a workflow's chains, each entry laid over `components` as `extends` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.workflow.extends import merge
from olivelike.workflow.steps import resolve_components
from olivelike.workflow.yaml_tree import Mapping, Scalar, Sequence

if TYPE_CHECKING:
    from olivelike.workflow.findings import Findings
    from olivelike.workflow.passes import Registry
    from olivelike.workflow.schema import Step


def resolve_sweep(
    root: Mapping, registry: Registry, findings: Findings
) -> dict[str, dict[str, tuple[Step, ...]]]:
    """Return the chains of each variant, by its name; mistakes go to `findings`.

    What is wrong with the shape of an entry is a finding of the schema.
    """
    entries, base = root.entries.get("sweep"), root.entries.get("components")
    if not isinstance(entries, Sequence):
        return {}
    outputs = root.entries.get("outputs")
    if outputs is not None:
        findings.add(
            root.keys["sweep"],
            "`sweep` writes each variant to a folder in `output`; use that in place of `outputs`",
        )
    variants: dict[str, dict[str, tuple[Step, ...]]] = {}
    folders: dict[str, str] = {}
    for entry in entries.items:
        if not isinstance(entry, Mapping):
            continue
        name, components = entry.entries.get("name"), entry.entries.get("components")
        if not isinstance(name, Scalar) or not isinstance(name.value, str) or not isinstance(base, Mapping):
            continue
        # Some disks do not tell upper from lower case.
        if other := folders.get(name.value.lower()):
            message = (
                f"two variants are {name.value!r}"
                if other == name.value
                else f"{name.value!r} differs from {other!r} in case alone"
            )
            findings.add(name.position, f"{message}; give each a name of its own")
            continue
        folders[name.value.lower()] = name.value
        if components is None or (isinstance(components, Scalar) and components.value is None):
            components = Mapping({}, {}, entry.position)
        laid_over = merge(base, components) if isinstance(components, Mapping) else components
        variants[name.value] = resolve_components(laid_over, registry, findings)
    return variants
