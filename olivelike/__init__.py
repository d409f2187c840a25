"""olivelike: a declarative, cached workflow engine that optimises Stable Diffusion pipelines for ONNX Runtime."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    # Reading the installed version takes 25 ms, which a run with nothing to do would feel.
    if name == "__version__":
        from importlib.metadata import version

        return version("olivelike")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
