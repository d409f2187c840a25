"""Checkpoints as torch's libraries save them, which are no ONNX pipelines."""

from tests.sources.conftest import saved_checkpoint, saved_copy

__all__ = ["saved_checkpoint", "saved_copy"]
