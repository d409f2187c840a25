"""Little transformers, converted once in a session."""

from __future__ import annotations

from functools import cache

import pytest


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Return what gives a `Drawn` by family and variant."""
    from drawn_transformers import Drawn

    root = tmp_path_factory.mktemp("transformers")

    @cache
    def of(family, variant=""):
        return Drawn(root, family, variant)

    return of
