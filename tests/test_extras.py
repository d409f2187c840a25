"""Extras fill the core's interfaces; an extra that is not there is missed by nobody."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike import _extras
from olivelike.errors import MissingError


@pytest.fixture
def two_extras(monkeypatch: pytest.MonkeyPatch) -> tuple[SimpleNamespace, SimpleNamespace]:
    one = SimpleNamespace(__name__="one", KINDS={"paint": "olivelike.errors:UsageError"})
    other = SimpleNamespace(__name__="other", STORES={"tape": "nowhere:Tape"})
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


def test_two_extras_do_not_give_one_name(two_extras: tuple[SimpleNamespace, SimpleNamespace]) -> None:
    two_extras[1].KINDS = {"paint": "nowhere:Paint"}
    with pytest.raises(ValueError, match="second time"):
        _extras.offered("KINDS")


def test_what_an_extra_would_do_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from olivelike.engine.execute.sharing import shared_backend
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import make_executor

    monkeypatch.setattr(_extras, "_extras", lambda: ())
    with pytest.raises(MissingError, match="--cluster takes an extra of olivelike that is not here"):
        make_executor(Options(cluster="local:1"), None, Path("log"))
    with pytest.raises(MissingError, match="--cache-dir with a URL takes an extra"):
        shared_backend("s3://bucket/folder")


def test_all_that_our_extras_name_is_there() -> None:
    for extra in _extras._extras():
        for interface in filter(str.isupper, vars(extra)):
            offers = getattr(extra, interface)
            for name in offers if isinstance(offers, dict) else ():
                assert _extras.load(interface, name) is not None


@pytest.mark.usefixtures("two_extras")
def test_a_use_of_an_extra_that_is_not_here_says_what_to_install() -> None:
    assert _extras.needed("KINDS", "paint", "painting")
    with pytest.raises(MissingError, match=r"--cluster takes an extra .*pip install"):
        _extras.needed("EXECUTORS", "jobs", "--cluster")
