"""Data that is shipped: two trained demo pipelines, published configs and tokenizers, and the shelf."""

from __future__ import annotations

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder of the trained demo pipeline: a diffusers folder in float16, to be read only."""
    return Path(__file__).parent / "demo"


def demo_transformer() -> Path:
    """Return the folder of the trained pipeline with a transformer: Z-Image's classes in float16, to be read only."""
    return Path(__file__).parent / "demo_transformer"


def demo_few_steps_lora() -> Path:
    """Return the LoRA with which the demo draws in 4 steps of the LCM scheduler, without guidance."""
    return Path(__file__).parent / "demo_lcm.safetensors"


def demo_edges() -> Path:
    """Return the folder of what leads the demo by edges: diffusers' class in float16, to be read only."""
    return Path(__file__).parent / "demo_edges"
