"""What all tests share: components of the tiny checkpoint, each exported at most once per session."""

from __future__ import annotations

from functools import partial

import pytest

from olivelike.testing import tiny_model


@pytest.fixture(scope="session")
def one_torch_thread():
    """Leave the other cores to the other processes of the suite."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(one_torch_thread):
    """Return a component of the tiny checkpoint, with its graph: `tiny("vae_decoder")`."""
    return partial(tiny_model, graph=True)
