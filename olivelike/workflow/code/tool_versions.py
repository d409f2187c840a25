"""Versions of installed distributions: those that a pass's code imports, and those that it declares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from olivelike.errors import MissingError

NOT_INSTALLED = "not installed"
"""Stands for the version of a distribution that code would import if it were there."""

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "PIL": "pillow",
    "accelerate": "accelerate",
    "diffusers": "diffusers",
    "diskcache": "diskcache",
    "filelock": "filelock",
    "google": "protobuf",
    "huggingface_hub": "huggingface_hub",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "onnx": "onnx",
    "onnx_ir": "onnx-ir",
    "onnxruntime": "onnxruntime",
    "onnxruntime_extensions": "onnxruntime-extensions",
    "onnxscript": "onnxscript",
    "openvino": "openvino",
    "packaging": "packaging",
    "peft": "peft",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "torchsde": "torchsde",
    "transformers": "transformers",
    "typer": "typer",
    "yaml": "pyyaml",
}
"""The distribution of each module that olivelike itself imports, by which `pyproject.toml` declares it; asking the
environment takes 90 ms."""

IDLE: Final = frozenset(
    {"diskcache", "filelock", "huggingface_hub", "platformdirs", "psutil", "pydantic", "pydantic_core"}
)
"""Modules on which no result of olivelike's own code depends: they fetch, lock and keep, or check options."""

_SAME = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")}
"""Distributions that bring the same module; only one of them is installed."""


def tool_versions(names: Iterable[str], imported: Iterable[str] = ()) -> dict[str, str]:
    """Return each distribution's version, by the name given; nothing is imported.

    Args:
        names: Distributions that must be there.
        imported: Distributions of modules that code imports, and may do without.

    Raises:
        MissingError: if some of `names` are not installed; the message has the command that installs them."""
    from importlib.metadata import PackageNotFoundError

    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            versions[name] = _version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise MissingError(f"not installed: {', '.join(missing)}; run `pip install {' '.join(missing)}`")
    for name in imported:
        try:
            versions.setdefault(name, _version(name))
        except PackageNotFoundError:
            versions[name] = NOT_INSTALLED
    return dict(sorted(versions.items()))


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the installed distributions that bring a top-level module; none if no distribution did."""
    if module in DISTRIBUTIONS:
        return (DISTRIBUTIONS[module],)
    return _installed().get(module, ())


@cache
def _installed() -> dict[str, tuple[str, ...]]:
    from importlib.metadata import packages_distributions

    return {name: tuple(sorted(set(owners))) for name, owners in packages_distributions().items()}


@cache
def _version(name: str) -> str:
    """Return a distribution's version; several passes ask for the same ones."""
    from importlib.metadata import PackageNotFoundError, version

    for other in _SAME.get(name, ()):
        with contextlib.suppress(PackageNotFoundError):
            return version(other)
    return version(name)
