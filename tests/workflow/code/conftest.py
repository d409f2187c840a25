"""Plugins on disk, as the tests of the registry write them."""

import pytest

from olivelike.workflow.code import code_digest
from tests.workflow.passes.conftest import install, write, write_pass

__all__ = ["install", "write", "write_pass"]


@pytest.fixture(autouse=True)
def _digested_anew(monkeypatch):
    monkeypatch.setattr(code_digest, "_digested", code_digest._digested.__wrapped__)
