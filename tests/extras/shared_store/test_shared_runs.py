"""Runs on several machines that share a store: what one has made another fetches, whatever the bucket does."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import MissingError, UsageError
from olivelike.graphs.shelf import Shelf
from tests.engine.conftest import WORKFLOW, Project
from tests.fixtures.certificates import write_key
from tests.fixtures.faulty_bucket import FaultyBucket

COMPONENTS = ("text_encoder", "vae_decoder")
STEPS = [f"{component}.{step}" for component in COMPONENTS for step in ("load", "convert", "fuse", "float16")]
KEPT = {*STEPS, "pipeline.assets"}
WRITTEN = {"text_encoder.materialize", "vae_decoder.materialize"}


@pytest.fixture(scope="module")
def anywhere(checkpoints: Path):
    """Returns a project on a machine that has run nothing yet, with its own store, in a folder."""

    def new(folder: Path) -> Project:
        (folder / "workflows").mkdir(parents=True)
        shutil.copytree(checkpoints / "one", folder / "checkpoint")
        project = Project(folder)
        text = WORKFLOW.replace("convert, float16", "convert, fuse, float16")
        project.workflow.write_text(text, encoding="utf-8")
        return project

    return new


@pytest.fixture
def machine(anywhere, tmp_path: Path):
    """Returns the same by the name of the machine."""
    return lambda name: anywhere(tmp_path / name)


@pytest.fixture(scope="module")
def given(anywhere, template: Project, bucket_server: FaultyBucket, tmp_path_factory: pytest.TempPathFactory):
    """A machine that has given what it made to a bucket, what that bucket holds, and the requests that took.

    The template has run before it, so that all is imported: here, server and client have one interpreter to share.
    """
    bucket_server.renew()
    project = anywhere(tmp_path_factory.mktemp("first") / "project")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket_server.environment().items():
            patch.setenv(name, value)
        project.run(shared_cache=url(bucket_server))
    assert project.executed() == KEPT | WRITTEN
    assert warnings(project) == []
    requests = list(bucket_server.requests)
    return project, {name: bucket_server.read(name) for name in bucket_server.names()}, requests


@pytest.fixture
def first(given, bucket: FaultyBucket) -> Project:
    """That machine, not to be changed; the newest bucket holds what it gave."""
    project, contents, requests = given
    for name, data in contents.items():
        bucket.write(name, data)
    bucket.requests[:] = requests
    return project


def url(bucket: FaultyBucket, more: str = "") -> str:
    return f"s3://{bucket.name}/team{more}"


def warnings(project: Project) -> list[str]:
    return [event.data["message"] for event in project.events if event.name == "warning"]


def told(project: Project) -> dict[str, dict[str, float]]:
    (event,) = [event for event in project.events if event.name == "shared_store"]
    return event.data


def test_a_second_machine_makes_nothing_and_writes_the_same_bytes(first, machine, bucket):
    given = told(first)["given"]
    assert given["results"] == len(KEPT)
    second = machine("second")
    result = second.run(shared_cache=url(bucket))
    assert second.executed() == WRITTEN
    assert second.files(skip=()).keys() == first.files(skip=()).keys()
    assert second.files() == first.files()
    assert result.hits == len(KEPT)
    hits = {e.data["node"]: e.data["reason"] for e in second.events if e.name == "node_hit"}
    assert all(reason.startswith(f"fetched from {url(bucket)}, ") for reason in hits.values())
    assert told(second)["fetched"]["results"] == len(KEPT)
    assert told(second)["given"]["results"] == 0
    # From here on it needs nobody.
    bucket.mode = "403"
    bucket.requests.clear()
    second.run(shared_cache=url(bucket))
    assert bucket.requests == []


def test_requests_are_as_many_as_results_and_objects(first, machine, bucket):
    objects = len(bucket.names("team/objects"))
    assert bucket.count("PUT") <= len(KEPT) + objects + 3  # and a mark, and a lease twice
    assert bucket.count("GET") + bucket.count("HEAD") <= 3 * (len(KEPT) + objects) + 5
    bucket.requests.clear()
    machine("second").run(shared_cache=url(bucket))
    assert bucket.count("GET") <= len(KEPT) + objects + 2
    assert bucket.count("PUT") == 2


def test_another_checkpoint_of_the_same_form_converts_nothing(first, machine, bucket, checkpoints):
    second = machine("second")
    shutil.rmtree(second.folder / "checkpoint")
    shutil.copytree(checkpoints / "two", second.folder / "checkpoint")
    second.run(shared_cache=url(bucket))
    assert second.executed() == WRITTEN


def test_a_plan_tells_what_would_be_fetched_and_changes_nothing(first, machine, bucket, monkeypatch):
    second = machine("second")
    bucket.requests.clear()
    monkeypatch.setattr("olivelike.engine.preparation.open_shelf", lambda: Shelf([]))
    _, found = plan(str(second.workflow), Options(shared_cache=url(bucket)))
    planned = {node.node.id: (node.status, node.reason) for node in found.nodes}
    for name in STEPS:
        assert planned[name][0] == "hit"
        assert f"stored in {url(bucket)}, " in planned[name][1]
    assert not (second.folder / "cache").exists()
    assert {method for method, _ in bucket.requests} == {"GET"}
    bucket.mode = "403"
    _, found = plan(str(second.workflow), Options(shared_cache=url(bucket)))
    (warning,) = found.warnings
    assert "refuses these credentials" in warning


@pytest.mark.parametrize(
    ("mode", "only"),
    [
        pytest.param("503", "", marks=pytest.mark.slow),
        ("403", ""),
        pytest.param("half", "", marks=pytest.mark.slow),
        ("silent", ""),
        ("503", "/objects/"),
        pytest.param("403", "/objects/", marks=pytest.mark.slow),
        pytest.param("half", "/objects/", marks=pytest.mark.slow),
        pytest.param("silent", "/objects/", marks=pytest.mark.slow),
    ],
)
def test_a_bucket_that_fails_costs_one_warning_and_no_result(first, machine, bucket, mode, only, monkeypatch):
    monkeypatch.setattr("olivelike.extras.shared_store.requests._PAUSES", (0.05,))
    second = machine("second")
    bucket.mode, bucket.only = mode, only
    second.run(shared_cache=url(bucket, "?timeout=0.5"))
    assert second.files() == first.files()
    told_of = warnings(second)
    assert all(url(bucket) in warning for warning in told_of)
    # Objects that break off again and again are given up when they take longer than making them.
    assert len(told_of) == 1 or (mode, only) == ("half", "/objects/")
    assert second.leftovers() == []


def test_a_server_that_is_not_there_costs_one_warning(first, machine, bucket, monkeypatch):
    monkeypatch.setattr("olivelike.extras.shared_store.requests._PAUSES", ())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    second = machine("second")
    second.run(shared_cache=url(bucket, "?timeout=0.5"))
    assert second.files() == first.files()
    assert len(warnings(second)) == 1


def test_damage_in_the_bucket_is_made_anew_and_mended(first, machine, bucket):
    names = [*bucket.names("team/objects"), *bucket.names("team/actions")]
    for number, name in enumerate(names):
        if number % 3 == 0:
            bucket.flip(name, number * 37)
    second = machine("second")
    second.run(shared_cache=url(bucket))
    assert second.executed() & KEPT
    assert second.files() == first.files()
    third = machine("third")
    third.run(shared_cache=url(bucket))
    assert third.executed() == WRITTEN
    assert third.files() == first.files()


def test_what_is_lost_here_after_it_came_is_fetched_again(first, machine, bucket, monkeypatch):
    from olivelike.engine.execute.driver import Driver
    from olivelike.store import Store

    second = machine("second")
    hit, lost = Driver._hit, []

    def lose_then_hit(driver, node, resolution, reason):
        if not lost and node.id == "text_encoder.fuse":
            lost.append(next(iter(resolution.action.outputs.values())))
            path = Store.open(second.folder / "cache").object_path(lost[0])
            path.write_bytes(b"?" * path.stat().st_size)
        hit(driver, node, resolution, reason)

    monkeypatch.setattr(Driver, "_hit", lose_then_hit)
    second.run(shared_cache=url(bucket))
    assert lost
    assert second.files() == first.files()
    assert not second.executed() & set(STEPS)


def test_who_may_only_read_fetches_and_gives_nothing(first, machine, bucket):
    second = machine("second")
    bucket.requests.clear()
    second.run(shared_cache=url(bucket, "?read-only"))
    assert second.executed() == WRITTEN
    assert {method for method, _ in bucket.requests} == {"GET"}
    second.run("components.text_encoder=[convert]", shared_cache=url(bucket, "?read-only"))
    assert {method for method, _ in bucket.requests} == {"GET"}


def test_who_is_not_allowed_to_write_still_reads(first, machine, bucket, monkeypatch):
    from olivelike.extras.shared_store.remote_folder import RemoteFolder

    def refuse(folder, path, call):
        from olivelike.errors import UnreachableError

        raise UnreachableError("could not put: it refuses these credentials")

    monkeypatch.setattr(RemoteFolder, "_put", refuse)
    second = machine("second")
    second.run(shared_cache=url(bucket))
    assert second.executed() == WRITTEN
    (warning,) = warnings(second)
    assert warning.endswith("what is made is kept here alone")


@pytest.mark.slow
def test_what_takes_longer_to_fetch_than_to_make_is_made(first, machine, bucket, monkeypatch):
    monkeypatch.setattr("olivelike.extras.shared_store.run_sharing._PATIENCE_SECONDS", 2.0)
    second = machine("second")
    bucket.mode, bucket.only, bucket.slow_seconds = "slow", "/objects/", 2.0
    second.run(shared_cache=url(bucket), only=("text_encoder",))
    assert any("takes longer than making it" in reason for reason in second.reasons().values())
    assert warnings(second) == []
    assert all(second.files()[name] == data for name, data in first.files().items() if name.startswith("text_encoder/"))


def test_a_known_speed_decides_before_anything_is_fetched(first, machine, bucket, monkeypatch):
    from olivelike.store import Store

    second = machine("second")
    monkeypatch.setattr("olivelike.extras.shared_store.run_sharing._NEGLIGIBLE_SECONDS", 1.0)
    Store.open(second.folder / "cache").remember_json("shared-speed/1", url(bucket), 10.0)
    bucket.requests.clear()
    second.run(shared_cache=url(bucket))
    assert any(" would take " in reason for reason in second.reasons().values())
    assert not any(method == "GET" and "/objects/" in path for method, path in bucket.requests)


@pytest.mark.slow
def test_clean_cache_makes_anew_and_replaces_what_is_shared(first, machine, bucket):
    second = machine("second")
    second.run(shared_cache=url(bucket))
    name = next(name for name in bucket.names("team/actions"))
    before = bucket.client.head_object(Bucket=bucket.name, Key=name)["LastModified"]
    time.sleep(1.01)
    second.run(shared_cache=url(bucket), clean_cache=True)
    assert second.executed() == KEPT | WRITTEN
    assert bucket.client.head_object(Bucket=bucket.name, Key=name)["LastModified"] > before


def test_the_environment_names_a_shared_store(first, machine, bucket, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_SHARED_CACHE", url(bucket))
    second = machine("second")
    second.run()
    assert second.executed() == WRITTEN
    monkeypatch.setenv("OLIVELIKE_SHARED_CACHE", "s4://bucket")
    with pytest.raises(UsageError, match=r"\$OLIVELIKE_SHARED_CACHE: there is no kind of store 's4'"):
        second.run()
    monkeypatch.setenv("OLIVELIKE_SHARED_CACHE", "gs://bucket/x")
    with pytest.raises(MissingError, match=r"pip install 'olivelike\[gs\]'"):
        second.run()
    monkeypatch.setenv("OLIVELIKE_SHARED_CACHE", "")
    monkeypatch.setenv("OLIVELIKE_CACHE_DIR", url(bucket))
    with pytest.raises(UsageError, match=r"\$OLIVELIKE_CACHE_DIR names a folder"):
        second.run()


def test_what_nobody_signed_is_made_anew_signed_and_fetched(first, machine, bucket, monkeypatch, tmp_path):
    pytest.importorskip("olivelike.extras.signing.signed_payloads", exc_type=ImportError)
    private, public, _ = write_key(tmp_path, "team")
    monkeypatch.setenv("OLIVELIKE_SHARED_SIGNERS", str(public))
    _, found = plan(str(machine("planner").workflow), Options(shared_cache=url(bucket)))
    (warning,) = found.warnings
    assert warning.endswith("not taken ($OLIVELIKE_SHARED_SIGNERS): nobody signed it; such results are made anew")
    monkeypatch.setenv("OLIVELIKE_SHARED_KEY", str(private))
    second = machine("second")
    second.run(shared_cache=url(bucket))
    assert second.executed() == KEPT | WRITTEN
    assert len(warnings(second)) == 1
    monkeypatch.delenv("OLIVELIKE_SHARED_KEY")
    third = machine("third")
    third.run(shared_cache=url(bucket))
    assert third.executed() == WRITTEN
    assert warnings(third) == []
    assert third.files() == first.files()


@pytest.mark.parametrize("refused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_runs_of_a_fleet_share_one_connection_and_one_warning(first, machine, bucket, refused):
    from olivelike.engine.fleet import plan_fleet, run_fleet
    from tests.fixtures.inline_executor import InlineExecutor

    second = machine("second")
    text = second.workflow.read_text(encoding="utf-8").replace("target: cuda", "matrix: {target: [cuda, cpu]}")
    second.workflow.write_text(text, encoding="utf-8")
    options = Options(shared_cache=url(bucket))
    statuses = Counter(
        node.status for _, made in plan_fleet(str(second.workflow), options).plans.values() for node in made.nodes
    )
    assert statuses["hit"] >= len(STEPS)
    events = []
    result = run_fleet(str(second.workflow), options, events.append, InlineExecutor)
    assert not result.failed
    assert sum(event.name == "shared_store" for event in events) == 1
    assert sum("/leases/" in path for method, path in bucket.requests if method == "PUT") <= 4
    if refused:
        bucket.mode = "403"
        events.clear()
        second.workflow.write_text(text.replace("float16", "fuse, float16"), encoding="utf-8")
        result = run_fleet(str(second.workflow), options, events.append, InlineExecutor)
        assert not result.failed
        assert sum(event.name == "warning" for event in events) == 1
