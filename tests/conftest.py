"""What all tests share: components of the tiny checkpoint, each exported at most once per session."""

from __future__ import annotations

import os
from functools import partial

import pytest

from olivelike.testing import tiny_model


@pytest.fixture(scope="session", autouse=True)
def allowed_plugins(tmp_path_factory):
    """Let workflows that tests write run their plugins, and leave the user's own record alone."""
    from olivelike.workflow.passes.allowed_plugins import AllowedPlugins

    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    AllowedPlugins().allow_folders([tmp_path_factory.getbasetemp().resolve()])
    yield
    os.environ.pop("XDG_STATE_HOME")
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session")
def one_torch_thread():
    """Leave the other cores to the other processes of the suite."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(one_torch_thread):
    """Return a component of the tiny checkpoint, with its graph: `tiny("vae_decoder")`."""
    return partial(tiny_model, graph=True)
