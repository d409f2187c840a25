"""A trained text-to-picture pipeline of a few megabytes, what it draws, and how it was trained."""

from __future__ import annotations

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder of the trained demo pipeline: a diffusers folder in float16, to be read only."""
    return Path(__file__).parent / "pipeline"
