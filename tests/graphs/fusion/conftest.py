"""Networks of this session, each exported at most once."""

from __future__ import annotations

from functools import cache

import pytest

from tests.fixtures.fusion_networks import Network

_network = cache(Network)


@pytest.fixture(scope="session")
def network():
    """Return the small network of this name."""
    import torch

    torch.set_num_threads(1)
    return _network
