"""The worked example of a plugin: installed, found and tested as its README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder that the example is installed into, from a copy, for the build leaves files behind."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "docs" / "plugin-example", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", folder / "site", folder / "source"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def run(site, *command, cwd):
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False, cwd=cwd, capture_output=True, text=True,
    )  # fmt: skip


def test_the_installed_pass_is_found_by_its_entry_point(site, tmp_path):
    code = """
from olivelike.workflow.passes import Registry
entry = Registry.load().get("shorten_names")
print(entry.origin, "|", entry.plugin, "|", entry.cls().prefix)
print(Registry.load_pass(entry.name, entry.plugin).cls.__name__)
"""
    done = run(site, "-c", code, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "entry point of distribution olivelike-pass-shorten-names | olivelike_shorten.shorten_names:ShortenNames | v",
        "ShortenNames",
    ], done.stderr


def test_the_tests_of_the_example_pass(site, tmp_path):
    tests = site.parent / "source" / "tests"
    done = run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests, tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
