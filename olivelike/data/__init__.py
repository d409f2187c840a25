"""Data that is shipped: a trained demo pipeline, and published configs and tokenizers."""

from __future__ import annotations

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder of the trained demo pipeline: a diffusers folder in float16, to be read only."""
    return Path(__file__).parent / "demo"
