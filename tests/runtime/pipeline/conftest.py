"""Little transformers, converted once in a session."""

from __future__ import annotations

from functools import cache, partial

import pytest


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Return what gives a `Drawn` by family and variant."""
    from drawn_transformers import Drawn

    known = cache(partial(Drawn, tmp_path_factory.mktemp("transformers")))
    # With or without a default named, it is one value.
    return lambda family, variant="": known(family, variant)
