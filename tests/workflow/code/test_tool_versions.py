"""Versions of distributions that passes declare."""

from __future__ import annotations

import pydantic
import pytest

from olivelike.errors import MissingError
from olivelike.workflow.code.imports import tool_versions


def test_versions_come_under_the_names_that_were_asked_for():
    assert tool_versions(["Pydantic"]) == {"Pydantic": pydantic.VERSION}


def test_missing_distributions_are_named_with_the_command_that_installs_them():
    with pytest.raises(
        MissingError, match="not installed: no-such-a, no-such-b; run `pip install no-such-a no-such-b`"
    ):
        tool_versions(["pydantic", "no-such-a", "no-such-b"])
