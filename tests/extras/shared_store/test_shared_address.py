"""URLs of shared stores: what they may say, and what of them is shown."""

from __future__ import annotations

import pytest

from olivelike.errors import MissingError, UsageError
from olivelike.extras.shared_store.address import parse_address
from olivelike.extras.shared_store.shared_store import SharedStore


@pytest.mark.parametrize(
    ("text", "url", "read_only", "timeout"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b", False, 30),
        ("S3://bucket", "s3://bucket", False, 30),
        ("gs://bucket/x?read-only", "gs://bucket/x", True, 30),
        ("az://box/x?timeout=5&read-only=true", "az://box/x", True, 5),
        ("https://host/x", "https://host/x", True, 30),
        ("file:///mnt/share/x", "file:///mnt/share/x", False, 30),
    ],
)
def test_urls_are_read(text, url, read_only, timeout):
    found = parse_address(text, "here")
    assert (found.url, found.read_only, found.timeout_seconds) == (url, read_only, timeout)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s4://bucket", "no kind of store 's4'"),
        ("gcs://bucket", "did you mean 'gs'"),
        ("://bucket", "no kind of store ''"),
        ("s3:///folder", "lacks the name behind"),
        ("s3://bucket/../other", "no `..`"),
        ("s3://bucket/x#y", "no `#`"),
        ("s3://bucket/a\nb", "control characters"),
        ("s3://bucket?timeout=never", "takes 0.1 to 3600"),
        ("s3://bucket?timeout=0", "takes 0.1 to 3600"),
        ("s3://bucket?timeout=nan", "takes 0.1 to 3600"),
        ("s3://bucket?read-only=no", "unknown `read-only=no`"),
        ("s3://bucket?color=red", "there are `read-only` and `timeout=SECONDS`"),
        ("file://host/share", "three slashes"),
        ("file:///", "three slashes"),
        ("https://[", "no URL"),
        ("https://user:secret@host/x?color=red", "unknown"),
    ],
)
def test_what_is_no_such_url_is_refused(text, said):
    with pytest.raises(UsageError, match=said) as refused:
        parse_address(text, "--cache-dir")
    assert str(refused.value).startswith("--cache-dir: ")
    assert "secret" not in str(refused.value)


def test_passwords_are_not_shown():
    found = parse_address("https://user:p%40ss@host/x", "here")
    assert str(found) == "https://host/x"
    assert found.without_secrets("url='https://user:p%40ss@host/x', or p@ss") == "url='https://***@host/x', or ***"


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b", "s3"), ("gs://b", "gs"), ("az://b", "az"), ("http://b/c", "http")]
)
def test_packages_that_are_missing_are_named(monkeypatch, url, extra):
    def refuse(*_, **__):
        raise ImportError("Install it")

    monkeypatch.setattr("fsspec.url_to_fs", refuse)
    with pytest.raises(MissingError, match=rf"pip install 'olivelike\[{extra}\]'"):
        SharedStore(parse_address(url, "here"))
