"""Extras fill the core's interfaces; an extra that is not there is missed by nobody."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike import _extras
from olivelike.errors import MissingError


@pytest.fixture
def two_extras(monkeypatch: pytest.MonkeyPatch) -> tuple[SimpleNamespace, SimpleNamespace]:
    one = SimpleNamespace(__name__="one", KINDS={"paint": "olivelike.errors:UsageError"})
    other = SimpleNamespace(__name__="other", STORES={"tape": "nowhere:Tape"})
    monkeypatch.setattr(_extras, "_ours", lambda: (one,))
    monkeypatch.setattr(_extras, "_extras", lambda: (one, other))
    return one, other


@pytest.mark.usefixtures("two_extras")
def test_what_an_extra_gives_is_imported_as_it_is_used() -> None:
    from olivelike.errors import UsageError

    assert list(_extras.offered("STORES")) == ["tape"]
    assert _extras.load("KINDS", "paint") is UsageError
    assert not _extras.offered("PACKAGES")
    with pytest.raises(KeyError):
        _extras.load("PACKAGES", "box")


def test_entry_points_are_looked_at_for_what_none_of_ours_names(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = SimpleNamespace(__name__="ours", STORES={"tape": "platform:system"})
    theirs = SimpleNamespace(__name__="theirs", KINDS={"paint": "platform:node"})
    looks = []

    def entry_points(group: str) -> list[SimpleNamespace]:
        looks.append(group)
        return [SimpleNamespace(value="theirs.extra", load=lambda: theirs)]

    monkeypatch.setattr(_extras, "_ours", lambda: (ours,))
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    _extras._extras.cache_clear()
    try:
        assert _extras.load("STORES", "tape") is platform.system
        assert not looks
        assert _extras.needed("KINDS", "paint", "painting") is platform.node
        assert looks == [_extras.GROUP]
        assert _extras.offered("KINDS") == {"paint": "platform:node"}
    finally:
        _extras._extras.cache_clear()


def test_two_extras_do_not_give_one_name(two_extras: tuple[SimpleNamespace, SimpleNamespace]) -> None:
    two_extras[1].KINDS = {"paint": "nowhere:Paint"}
    with pytest.raises(ValueError, match="second time"):
        _extras.offered("KINDS")


def test_what_an_extra_would_do_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from olivelike.engine.execute.sharing import shared_backend
    from olivelike.engine.output.packages import package_of
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import make_executor

    monkeypatch.setattr(_extras, "_ours", lambda: ())
    monkeypatch.setattr(_extras, "_extras", lambda: ())
    with pytest.raises(MissingError, match="--cluster takes an extra of olivelike that is not here"):
        make_executor(Options(cluster="local:1"), None, Path("log"))
    with pytest.raises(MissingError, match="layout triton takes an extra"):
        package_of("triton")
    with pytest.raises(MissingError, match="--cache-dir with a URL takes an extra"):
        shared_backend("s3://bucket/folder")


def test_all_that_our_extras_name_is_there() -> None:
    for extra in _extras._extras():
        for interface in filter(str.isupper, vars(extra)):
            for offer in getattr(extra, interface).values():
                module, _, attribute = getattr(offer, "place", offer).partition(":")
                assert hasattr(import_module(module), attribute), offer


@pytest.mark.usefixtures("two_extras")
def test_a_use_of_an_extra_that_is_not_here_says_what_to_install() -> None:
    assert _extras.needed("KINDS", "paint", "painting")
    with pytest.raises(MissingError, match=r"--cluster takes an extra .*pip install"):
        _extras.needed("EXECUTORS", "jobs", "--cluster")


COMMAND = """
from olivelike import _extras
from types import SimpleNamespace

command = _extras.Command("platform:node", "olivelike where", "Look at files", "info", options={"Place": ("--far",)})
_extras._ours = lambda: (SimpleNamespace(__name__="other", COMMANDS={"where": command}),)
from olivelike.cli import app
from olivelike.cli.display import help_pages

assert app.COMMANDS[app.COMMANDS.index("info") + 1] == "where"
assert help_pages.EXAMPLES["where"] == "olivelike where"
assert help_pages.OPTION_GROUPS["where"] == {"Place": ("--far",)}
raise SystemExit(app.run_command_line(["where", "--help"]))
"""


def test_a_command_of_an_extra_stands_in_its_group_and_has_help() -> None:
    told = subprocess.run([sys.executable, "-c", COMMAND], check=True, capture_output=True, text=True).stdout
    assert told.startswith("Usage: olivelike where ")
    assert told.rstrip().endswith("Example:\n  olivelike where")


SUBCOMMAND = """
from olivelike import _extras
from types import SimpleNamespace

mend = _extras.Command("platform:node", "olivelike shelf mend --now")
_extras._ours = lambda: (SimpleNamespace(__name__="other", COMMANDS={"shelf mend": mend}),)
from olivelike.cli import app

assert "shelf mend" not in app.COMMANDS
assert app.run_command_line(["shelf", "--help"]) == 0
assert app.run_command_line(["shelf", "mned"]) == 2
raise SystemExit(app.run_command_line(["shelf", "mend", "--help"]))
"""


def test_a_command_of_an_extra_joins_a_group_of_the_core() -> None:
    done = subprocess.run([sys.executable, "-c", SUBCOMMAND], check=True, capture_output=True, text=True)
    group, usage, rest = done.stdout.partition("Usage: olivelike shelf mend ")
    assert "\n  mend    " in group
    assert usage
    assert rest.rstrip().endswith("Example:\n  olivelike shelf mend --now")
    assert "Did you mean 'mend'?" in done.stderr
