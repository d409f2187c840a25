"""The networks of the little pipeline with their graphs, exported once per session."""

from __future__ import annotations

from functools import partial

import pytest

from tests.fixtures.little_pipeline import little_model


@pytest.fixture(scope="session")
def little(one_torch_thread):
    """Return a network of the little pipeline, with its graph: `little("vae_decoder")`."""
    return partial(little_model, "sd")


@pytest.fixture
def cli_help(capsys):
    """Return the help of a command."""
    from olivelike.cli.app import run_command_line

    def cli_help(command: str) -> str:
        capsys.readouterr()
        run_command_line([command, "--help"])
        return capsys.readouterr().out

    return cli_help
