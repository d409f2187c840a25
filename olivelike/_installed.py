"""Installed distributions: which of them olivelike needs, the words for one that is absent, what all of them bring.

An environment may lack some: what draws needs few of them. It also has those of strangers. Where the metadata of one is
damaged, what that one brings is not seen, and nothing else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Final, cast

from olivelike._untrusted import one_line
from olivelike.errors import MissingError

if TYPE_CHECKING:
    from email.message import Message
    from importlib.metadata import Distribution, EntryPoint

_ALIKE: Final = (
    "accelerate", "aiohttp", "anyio", "cryptography", "diffusers", "diskcache", "distributed", "fastapi", "filelock",
    "fsspec", "gguf", "h11", "huggingface_hub", "jinja2", "ml_dtypes", "msgpack", "numpy", "onnx", "onnxruntime",
    "onnxscript", "openvino", "packaging", "peft", "platformdirs", "psutil", "pybase64", "pydantic", "rich",
    "safetensors", "scipy", "securesystemslib", "sigstore", "starlette", "tokenizers", "torch", "tornado",
    "transformers", "typer", "uvicorn",
)  # fmt: skip
"""Distributions that are called like their module."""
DISTRIBUTIONS: Final[Mapping[str, str]] = {
    **dict(zip(_ALIKE, _ALIKE, strict=True)),
    "OpenSSL": "pyopenssl", "PIL": "pillow", "annotated_types": "annotated-types", "c2pa": "c2pa-python",
    "cyclonedx": "cyclonedx-python-lib", "cv2": "opencv-python-headless", "google": "protobuf",
    "model_signing": "model-signing", "onnx_ir": "onnx-ir", "onnxruntime_extensions": "onnxruntime-extensions",
    "packageurl": "packageurl-python", "pydantic_core": "pydantic", "yaml": "pyyaml",
}  # fmt: skip
"""The distribution of each module that olivelike itself imports, by which `pyproject.toml` declares it; asking the
environment takes 90 ms."""


_INSTALL: Final = "olivelike-runtime alone is installed; run `pip install olivelike`"
_MORE: Final = f"this needs all of olivelike, and {_INSTALL}"


def own_version() -> str:
    """Return the version of olivelike, or of olivelike-runtime where that is installed alone."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("olivelike")
    except PackageNotFoundError:
        return version("olivelike-runtime")


def install_all() -> str | None:
    """Return what to do for more than `olivelike-runtime`, where that is installed alone."""
    return None if _declared("olivelike") else _INSTALL


def lacking(error: BaseException) -> MissingError | None:
    """Return what to tell instead of an error, if that is a module which one of our own distributions brings."""
    top = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or top not in {*DISTRIBUTIONS, "olivelike"}:
        return None
    if top == "olivelike":
        return MissingError(_MORE) if install_all() else None
    name = DISTRIBUTIONS[top]
    return MissingError(f"this needs {name}, which is not installed; run `pip install {_wanted(name)}`")


def _wanted(name: str) -> str:
    """Return what `pip install` takes: our extra that brings a distribution, or its tested range."""
    pattern = re.compile(rf"({re.escape(name)}(?![\w.-])[^;]*)(?:.*extra == .(\w[\w-]*))?", re.IGNORECASE)
    for ours in ("olivelike", "olivelike-runtime"):
        for text in _declared(ours):
            if found := pattern.match(text):
                wanted, extra = found.groups()
                return f"'{ours}[{extra}]'" if extra else f"'{wanted.strip()}'"
    return name


def _declared(ours: str) -> list[str]:
    """Return what one of our distributions needs; nothing if it is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(ours) or []
    except PackageNotFoundError:
        return []


_DAMAGED: Final = (OSError, TypeError, ValueError)
"""What reading damaged metadata raises: it is no UTF-8, or a line of it is no pair."""


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted; a distribution whose list of them can't be read has none."""
    try:
        return sorted(metadata.entry_points(group=group))
    except _DAMAGED:
        found: set[EntryPoint] = set()
        for one in metadata.distributions():
            with contextlib.suppress(*_DAMAGED):
                found.update(one.entry_points.select(group=group))
        return sorted(found)


def owner_of(point: EntryPoint) -> str:
    """Return the distribution of an entry point, in words for a message."""
    name = metadata_of(point.dist)["Name"] if point.dist else None
    return f"distribution {one_line(name)}" if name else f"the distribution of {one_line(point.value)}"


def metadata_of(distribution: Distribution) -> Message:
    """Return what a distribution says of itself; nothing where that is gone, or no text."""
    from email.message import Message

    try:
        return cast("Message", distribution.metadata) or Message()
    except _DAMAGED:
        return Message()


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; `None` where it is not installed, or does not say it."""
    try:
        return metadata_of(metadata.distribution(name))["Version"]
    except metadata.PackageNotFoundError:
        return None


def packages_distributions() -> dict[str, list[str]]:
    """Return the distributions that bring each top-level module, as `importlib.metadata` does."""
    import inspect

    found: dict[str, list[str]] = {}
    for one in metadata.distributions():
        with contextlib.suppress(*_DAMAGED):
            declared = (one.read_text("top_level.txt") or "").split()
            files = [file for file in one.files or () if not declared and inspect.getmodulename(file.name)]
            inferred = {file.parts[0].partition(".")[0] for file in files}
            for module in declared or inferred:
                if name := metadata_of(one)["Name"]:
                    found.setdefault(module, []).append(name)
    return found
