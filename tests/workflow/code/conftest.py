"""Plugins on disk, as the tests of the registry write them."""

from tests.workflow.passes.conftest import install, write, write_pass

__all__ = ["install", "write", "write_pass"]
