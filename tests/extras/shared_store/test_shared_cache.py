"""`olivelike cache` on a shared store, and `--cache-dir` with a URL, as people use them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from olivelike.cli.app import run_command_line
from tests.cli import conftest as commands

(cli, project, warm_project) = (commands.cli, commands.project, commands.warm_project)
_jobs_in_this_process = commands._jobs_in_this_process
_no_store_of_the_user = commands._no_store_of_the_user

LITTLE = "workflows/little.yaml"


@pytest.fixture
def url(bucket):
    return f"s3://{bucket.name}/team"


@pytest.fixture(scope="module")
def contents(warm_project, bucket_server, tmp_path_factory):
    """What a bucket holds after the project's store was pushed into it."""
    bucket_server.renew()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in bucket_server.environment().items():
            patched.setenv(name, value)
        patched.chdir(shutil.copytree(warm_project, tmp_path_factory.mktemp("pushed") / "project"))
        assert run_command_line(["cache", "push", f"s3://{bucket_server.name}/team"]) == 0
    return {name: bucket_server.read(name) for name in bucket_server.names()}


@pytest.fixture
def pushed(contents, bucket):
    """Let the newest bucket hold that."""
    for name, data in contents.items():
        bucket.write(name, data)


def test_push_then_pull_on_another_machine(project, cli, url, bucket):
    pushed = json.loads(cli("cache", "push", url, "--json").out)
    results = len(json.loads(cli("cache", "ls", "--json").out))
    assert pushed["given"]["results"] == results
    again = cli("cache", "push", url).out
    assert f"{url}: 0 results given ({results} there already), 0 B" in again
    shutil.rmtree("cache")
    pulled = cli("cache", "pull", url).out
    assert f"{results} results fetched" in pulled
    assert cli("cache", "verify").status == 0
    assert len(json.loads(cli("cache", "ls", "--json").out)) == results


def test_pull_of_one_workflow_fetches_no_more(project, cli, url, bucket, pushed):
    results = len(bucket.names("team/actions"))
    shutil.rmtree("cache")
    pulled = json.loads(cli("cache", "pull", url, "--workflow", LITTLE, "--json").out)
    assert 0 < pulled["fetched"]["results"] <= results
    again = json.loads(cli("cache", "pull", url, "--workflow", LITTLE, "--json").out)
    assert (again["fetched"]["results"], again["fetched"]["there"]) == (0, pulled["fetched"]["results"])


def test_sync_makes_both_the_same(project, cli, url, bucket, pushed):
    names = bucket.names("team/actions")
    bucket.client.delete_object(Bucket=bucket.name, Key=names[0])
    Path("cache/actions", *Path(names[1]).parts[-2:]).unlink()
    done = json.loads(cli("cache", "sync", url, "--json").out)
    assert (done["given"]["results"], done["fetched"]["results"]) == (1, 1)
    assert bucket.names("team/actions") == names


def test_size_verify_and_gc_of_a_shared_store(project, cli, url, bucket, pushed):
    found = json.loads(cli("cache", "size", "--cache-dir", url, "--json").out)
    assert found["results"] == len(bucket.names("team/actions"))
    assert cli("cache", "verify", "--cache-dir", url).out.endswith(": all is well\n")
    name = bucket.names("team/objects")[0]
    bucket.flip(name)
    wrong = cli("cache", "verify", "--cache-dir", url)
    assert wrong.status == 3
    assert f"{name.removeprefix('team/')} does not match its hash" in wrong.out
    assert cli("cache", "verify", "--repair", "--cache-dir", url).status == 0
    assert cli("cache", "verify", "--cache-dir", url).status == 0
    left = json.loads(cli("cache", "gc", "--cache-dir", url, "--older-than", "1w", "--json").out)
    assert left["results_removed"] == 0
    told = cli("cache", "gc", "--cache-dir", url, "--max-size", "0B", "--grace", "0").out
    assert told.startswith(f"{url}: removed ")


def test_a_damaged_result_is_left_and_told(project, cli, url, bucket, pushed):
    bucket.flip(bucket.names("team/objects")[0])
    shutil.rmtree("cache")
    pulled = cli("cache", "pull", url)
    assert pulled.status == 0
    assert "damaged or not whole" in pulled.err
    assert cli("cache", "verify").status == 0


def test_a_run_says_what_came_and_what_went(project, cli, url, bucket, pushed):
    shutil.rmtree("cache")
    shutil.rmtree("models")
    told = cli("run", LITTLE, "--cache-dir", url).out
    assert f"{url}: fetched " in told
    path = forget_label(cli)
    bucket.client.delete_object(Bucket=bucket.name, Key=f"team/actions/{path.parent.name}/{path.name}")
    out = cli("run", LITTLE, "--cache-dir", url, "--json").out
    (shared,) = [line for line in map(json.loads, out.splitlines()) if line["event"] == "shared_store"]
    assert shared["address"] == url
    assert shared["given"]["results"] == 1


def forget_label(cli) -> Path:
    """Remove the result of a node that is made in no time, and return where it was."""
    results = json.loads(cli("cache", "ls", "--json").out)
    key = next(result["key"] for result in results if result["inputs"]["pass"] == "label")
    path = Path("cache/actions", key[:2], f"{key}.json")
    path.unlink()
    return path


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("cache", "push"), 2, "name the shared store, such as s3://BUCKET/FOLDER"),
        (("cache", "push", "s4://x"), 2, "URL: there is no kind of store 's4'"),
        (("cache", "push", "s3://x?read-only"), 2, "may only be read"),
        (("cache", "pull", "s3://nobody-has-this"), 3, "holds no shared store"),
        (("cache", "push", "s3://nobody-has-this"), 3, "make the bucket or folder first"),
        (("cache", "ls", "--cache-dir", "s3://x"), 2, "is about the store of this machine"),
        (("cache", "clear", "--cache-dir", "s3://x"), 2, "is about the store of this machine"),
        (("cache", "gc", "--older-than", "30d"), 2, "--older-than is for a shared store"),
        (("cache", "gc", "--cache-dir", "http://127.0.0.1:9/x"), 3, "could not read"),
        (("run", LITTLE, "--cache-dir", "s3://"), 2, "lacks the name"),
        (("doctor", "--cache-dir", "s3://x"), 2, "is about the store of this machine"),
    ],
)
def test_mistakes_are_told(project, cli, bucket, monkeypatch, words, status, said):
    monkeypatch.setattr("olivelike.extras.shared_store.requests._PAUSES", ())
    result = cli(*words)
    assert (result.status, said in result.err) == (status, True), result.err


def test_what_is_no_age_is_refused(project, cli, url, bucket, pushed):
    for age in ("", "d", "30", "-1d", "30x", "infd", "nand"):
        result = cli("cache", "gc", "--cache-dir", url, "--older-than", age)
        assert result.status == 2
        assert "is no age" in result.err


def test_no_password_is_shown(project, cli, monkeypatch):
    monkeypatch.setattr("olivelike.extras.shared_store.requests._PAUSES", ())
    forget_label(cli)
    result = cli("run", LITTLE, "--cache-dir", "http://user:hidden@127.0.0.1:9/x?timeout=1")
    assert result.status == 0
    assert "http://127.0.0.1:9/x" in result.err
    assert "hidden" not in result.out + result.err


def test_a_pin_in_a_shared_store_keeps_results_there(project, cli, url, bucket, contents):
    nothing = cli("cache", "pin", LITTLE, "--cache-dir", url)
    assert nothing.status == 3
    assert f"{url} holds no shared store" in nothing.err
    assert "else make that first, or correct the address" in nothing.err
    for name, data in contents.items():
        bucket.write(name, data)
    pinned = cli("cache", "pin", LITTLE, "--cache-dir", url)
    assert (pinned.status, pinned.err) == (0, "")
    assert pinned.out.endswith(f" as little in {url}\n")
    kept = json.loads(cli("cache", "pin", LITTLE, "--cache-dir", url, "--json").out)[0]["keys"]
    cli("cache", "gc", "--cache-dir", url, "--max-size", "0B", "--grace", "0")
    assert len(bucket.names("team/actions")) == len(kept)
    assert "did you mean 'little'?" in cli("cache", "unpin", "litle", "--cache-dir", url).err
    assert cli("cache", "unpin", "little", "--cache-dir", url).out == "unpinned little\n"
    cli("cache", "gc", "--cache-dir", url, "--max-size", "0B", "--grace", "0")
    assert bucket.names("team/actions") == []
    none = cli("cache", "pin", LITTLE, "--cache-dir", url)
    assert none.status == 3
    assert "has no result of little, so there is nothing to pin; give it with `olivelike cache push`" in none.err
    refused = cli("cache", "pin", LITTLE, "--cache-dir", f"{url}?read-only")
    assert refused.status == 2
    assert "may only be read, so nothing can be pinned there" in refused.err
