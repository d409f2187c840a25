"""Distributions that olivelike needs: by the modules that it imports, and the words for one that is not installed.

An environment may lack some: what draws needs few of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from olivelike.errors import MissingError

_ALIKE: Final = (
    "accelerate", "aiohttp", "anyio", "cryptography", "diffusers", "diskcache", "distributed", "fastapi", "filelock",
    "fsspec", "gguf", "h11", "huggingface_hub", "jinja2", "ml_dtypes", "msgpack", "numpy", "onnx", "onnxruntime",
    "onnxscript", "openvino", "packaging", "peft", "platformdirs", "psutil", "pydantic", "rich", "safetensors", "scipy",
    "securesystemslib", "sigstore", "starlette", "tokenizers", "torch", "tornado", "transformers", "typer", "uvicorn",
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
