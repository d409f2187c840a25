"""Whether the installed packages are those that olivelike needs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do."""

    severity: Literal["broken", "warning"]
    message: str


def check_packages() -> Iterator[Finding]:
    """Yield required packages that are absent, or of an untested version."""
    for requirement in _requirements():
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            # Another wheel of ONNX Runtime may do: that is for the providers to show.
            if not (requirement.name.startswith("onnxruntime") and onnxruntime_wheels()):
                wanted = _plain(requirement)
                yield Finding("broken", f"{requirement.name} is not installed; run: pip install '{wanted}'")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wanted = f"tested are {requirement.specifier}; run: pip install '{_plain(requirement)}'"
            yield Finding("warning", f"{requirement.name} {found} is untested, {wanted}")


def check_wheels(wheels: list[str]) -> Iterator[Finding]:
    """Yield a warning if several wheels of ONNX Runtime are installed, which overwrite each other's files."""
    if len(wheels) < 2:
        return
    wanted = [_plain(r) for r in _requirements() if r.name.startswith("onnxruntime")] or wheels[:1]
    yield Finding(
        "warning",
        f"{' and '.join(wheels)} are installed together and overwrite each other's files; "
        f"run: pip uninstall -y {' '.join(wheels)}; pip install --force-reinstall --no-deps '{wanted[0]}'",
    )


def onnxruntime_wheels() -> list[str]:
    """Return the names of the installed distributions that bring a module `onnxruntime`."""
    return sorted(set(packages_distributions().get("onnxruntime", ())))


def _requirements() -> Iterator[Requirement]:
    """Yield what olivelike requires on this platform, extras left out."""
    from packaging.requirements import Requirement

    for text in requires("olivelike") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _plain(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"
