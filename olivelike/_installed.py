"""Distributions that olivelike needs: by the modules that it imports, and the words for one that is not installed.

An environment may lack some: what draws needs few of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from olivelike.errors import MissingError

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "accelerate": "accelerate",
    "aiohttp": "aiohttp",
    "annotated_types": "annotated-types",
    "anyio": "anyio",
    "c2pa": "c2pa-python",
    "cryptography": "cryptography",
    "cyclonedx": "cyclonedx-python-lib",
    "cv2": "opencv-python-headless",
    "diffusers": "diffusers",
    "diskcache": "diskcache",
    "distributed": "distributed",
    "fastapi": "fastapi",
    "filelock": "filelock",
    "fsspec": "fsspec",
    "gguf": "gguf",
    "google": "protobuf",
    "h11": "h11",
    "huggingface_hub": "huggingface_hub",
    "jinja2": "jinja2",
    "ml_dtypes": "ml_dtypes",
    "model_signing": "model-signing",
    "msgpack": "msgpack",
    "numpy": "numpy",
    "onnx": "onnx",
    "onnx_ir": "onnx-ir",
    "onnxruntime": "onnxruntime",
    "onnxruntime_extensions": "onnxruntime-extensions",
    "onnxscript": "onnxscript",
    "openvino": "openvino",
    "packageurl": "packageurl-python",
    "packaging": "packaging",
    "peft": "peft",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "securesystemslib": "securesystemslib",
    "sigstore": "sigstore",
    "starlette": "starlette",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "tornado": "tornado",
    "transformers": "transformers",
    "typer": "typer",
    "uvicorn": "uvicorn",
    "yaml": "pyyaml",
}
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
