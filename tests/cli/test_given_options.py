"""Options that reach settings by the names of their fields."""

from __future__ import annotations

import inspect
from dataclasses import fields

from olivelike.cli import options
from olivelike.cli.commands.serve import ServerOptions
from olivelike.cli.commands.verify import ComparisonOptions
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.serve import ServeSettings


def test_each_option_of_serve_and_verify_is_a_setting_of_that_name():
    groups = (ServerOptions, options.ProviderOptions)
    named = {field.name for group in groups for field in fields(group)}
    settings = {field.name for field in fields(ServeSettings)}
    assert named - settings == {"api_key_file"}
    assert settings - named == {"folders"}
    assert {field.name for field in fields(ComparisonOptions)} < inspect.signature(verify_folder).parameters.keys()


def test_what_is_not_given_leaves_the_settings_their_own_defaults():
    given = options.given(options.NodeOptions(only=["unet"]), output=None, keep_going=False)
    assert given == {"only": ("unet",), "keep_going": False}
