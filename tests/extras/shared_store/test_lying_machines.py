"""Runs that are given made-up records, tables and answers: no file but their own, no crash, at most one warning."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import OlivelikeError
from olivelike.graphs.shelf import Shelf
from tests.engine.conftest import WORKFLOW, Project
from tests.fixtures.lying_store import Files, Honest, lies, names_of, with_object

NODES = {
    "pipeline.assets",
    *(
        f"{component}.{step}"
        for component in ("text_encoder", "vae_decoder")
        for step in ("load", "convert", "fuse", "float16", "materialize")
    ),
}
MINE = {"README.md": b"my words", "tokenizer/notes.txt": b"my notes"}
"""What a user keeps in an output."""


@dataclass
class Tally:
    """What many lies have led to."""

    exits: Counter[int] = field(default_factory=Counter)
    warnings: Counter[int] = field(default_factory=Counter)
    same: int = 0
    """Outputs that are as without a lie."""
    failures: list[str] = field(default_factory=list)

    def check(self) -> None:
        sys.stdout.write(f"exits {dict(self.exits)}, warnings {dict(self.warnings)}, {self.same} outputs the same\n")
        assert not self.failures, "\n".join(self.failures)


@pytest.fixture(scope="module")
def honest_run(
    template: Project, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, Honest, Files]:
    """A machine that has given all to a folder, what that holds, and the rest of what is there."""
    root = tmp_path_factory.mktemp("honest")
    project = new_project(root / "project", checkpoints)
    project.run(shared_cache=(root / "share").as_uri())
    assert project.executed() == NODES
    files = {path.relative_to(root / "share").as_posix(): path.read_bytes() for path in files_in(root / "share")}
    return project, Honest.read(files), {name: files[name] for name in files if "/" not in name}


def new_project(folder: Path, checkpoints: Path) -> Project:
    (folder / "workflows").mkdir(parents=True)
    shutil.copytree(checkpoints / "one", folder / "checkpoint")
    project = Project(folder)
    project.workflow.write_text(WORKFLOW.replace("convert, float16", "convert, fuse, float16"), encoding="utf-8")
    return project


def files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]


def try_lie(
    box: Path, checkpoints: Path, honest: Project, tally: Tally, name: str, run: Callable[[Project, Path], int]
) -> None:
    """Run a project in a box of its own, and note what came of it; every other one has run before."""
    project = new_project(box / "a" / "b" / "project", checkpoints)
    outside = box / "victim.txt"
    outside.write_bytes(b"precious")
    mine = MINE if tally.exits.total() % 2 else {}
    if mine:
        shutil.copytree(honest.output, project.output)
        for path, data in mine.items():
            (project.output / path).write_bytes(data)
        (project.output / "text_encoder" / "weights.pb").unlink()  # So that it has to be made anew.
    before = {path: path.read_bytes() for path in files_in(box) if not path.is_relative_to(project.output)}
    given, code = 0, 0
    try:
        given = run(project, outside)
    except OlivelikeError as error:
        code = error.exit_code
    except Exception as error:
        code = 1
        tally.failures.append(f"{name}: {type(error).__name__}: {error}"[:300])
    told = [event.data["message"] for event in project.events if event.name == "warning"]
    ended = {
        e.data["node"] for e in project.events if e.name in {"node_hit", "node_finished", "node_shelved", "node_failed"}
    }
    tally.exits[code] += 1
    tally.warnings[max(given, len(told))] += 1
    if max(given, len(told)) > 1:
        tally.failures.append(f"{name}: {told}")
    if code == 0 and ended != NODES:
        tally.failures.append(f"{name}: no word of {NODES - ended}")
    kept = (project.folder / "cache", project.output, project.folder / "models")
    after = {path: path.read_bytes() for path in files_in(box) if not any(path.is_relative_to(one) for one in kept)}
    if after != before:
        tally.failures.append(f"{name}: changed {sorted(map(str, {*after.items()} ^ {*before.items()}))}"[:300])
    made = project.files(skip=())
    if any(made.get(path) != data for path, data in mine.items()):
        tally.failures.append(f"{name}: changed a file of the user")
    wanted = {*honest.files(skip=()), *mine}
    if made.keys() - wanted or (code == 0 and made.keys() != wanted):
        tally.failures.append(f"{name}: the output has {sorted(made.keys() ^ wanted)}")
    if project.leftovers():
        tally.failures.append(f"{name}: left {project.leftovers()}")
    tally.same += {**made, "olivelike.json": b""} == {**honest.files(skip=()), **mine, "olivelike.json": b""}
    shutil.rmtree(box)


def planned_and_run(project: Project, address: str) -> int:
    """Plan and run with a shared store; return how often the plan warned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("olivelike.engine.preparation.open_shelf", lambda: Shelf([]))
        _, found = plan(str(project.workflow), Options(shared_cache=address))
    assert {node.node.id for node in found.nodes} == NODES
    project.run(shared_cache=address)
    return len(found.warnings)


def write_all(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web_folder(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server, and the folder that it serves."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("count", [3, pytest.param(160, marks=pytest.mark.slow)])
def test_a_lying_folder_harms_nothing(honest_run, checkpoints: Path, tmp_path: Path, count: int) -> None:
    honest, known, rest = honest_run
    tally = Tally()
    for number, lying in lies(1, count, known, tmp_path / "box-0" / "victim.txt"):
        share = tmp_path / f"share-{number}"
        write_all(share, {**rest, **known.files(), **lying})
        run = functools.partial(lambda project, _, address: planned_and_run(project, address), address=share.as_uri())
        try_lie(tmp_path / "box-0", checkpoints, honest, tally, f"lie {number} {sorted(lying)}", run)
        shutil.rmtree(share, ignore_errors=True)  # A lease may come late.
    tally.check()


@pytest.mark.parametrize("count", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_lying_bucket_harms_nothing(honest_run, checkpoints: Path, tmp_path: Path, count: int, bucket) -> None:
    honest, known, rest = honest_run
    tally = Tally()
    for number, lying in lies(2, count, known, tmp_path / "box-0" / "victim.txt"):
        for name, data in {**rest, **known.files(), **lying}.items():
            bucket.write(f"team{number}/{name}", data)
        address = f"s3://{bucket.name}/team{number}?read-only"
        run = functools.partial(lambda project, _, address: planned_and_run(project, address), address=address)
        try_lie(tmp_path / "box-0", checkpoints, honest, tally, f"lie {number} {sorted(lying)}", run)
    tally.check()


@pytest.mark.parametrize("count", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_lying_web_server_harms_nothing(
    honest_run, checkpoints: Path, tmp_path: Path, count: int, web_folder
) -> None:
    honest, known, rest = honest_run
    address, folder = web_folder
    tally = Tally()
    for number, lying in lies(3, count, known, tmp_path / "box-0" / "victim.txt"):
        write_all(folder / str(number), {**rest, **known.files(), **lying})
        run = functools.partial(
            lambda project, _, address: planned_and_run(project, address), address=f"{address}/{number}"
        )
        try_lie(tmp_path / "box-0", checkpoints, honest, tally, f"lie {number} {sorted(lying)}", run)
    tally.check()


@pytest.mark.parametrize("name", [*names_of(Path("/outside/of/all")), "OUTSIDE"])
def test_a_table_with_such_a_name_is_no_result(honest_run, name: str) -> None:
    from olivelike.engine.output.asset_table import not_of_source, read_assets
    from olivelike.errors import DamagedError

    _, known, _ = honest_run
    record = known.of_pass("assets")
    table: Mapping[str, str] = json.loads(known.objects[record["outputs"]["assets"]])
    extras = [path for path in table if path.partition("/")[0] != "tokenizer"] + ["tokenizer/vocab.json"]
    assert not_of_source(read_assets(json.dumps(table).encode()), extras) is None
    try:
        found = not_of_source(read_assets(json.dumps({**table, name: "0" * 64}).encode()), extras)
    except DamagedError:
        return
    assert found is not None


def test_a_record_with_such_a_name_is_made_anew_and_replaced(honest_run, checkpoints: Path, tmp_path: Path) -> None:
    honest, known, rest = honest_run
    record = known.of_pass("assets")
    table = json.loads(known.objects[record["outputs"]["assets"]])
    lying = with_object(
        record, "assets", json.dumps({**table, str(tmp_path / "pwned"): record["outputs"]["assets"]}).encode()
    )
    write_all(tmp_path / "share", {**rest, **known.files(), **lying})
    project = new_project(tmp_path / "project", checkpoints)
    # As `cache pull` has brought it, before it was known what it is to be.
    write_all(project.folder / "cache", {**{n: d for n, d in known.files().items() if record["key"] not in n}, **lying})
    project.run(shared_cache=(tmp_path / "share").as_uri())
    assert project.executed() == {"pipeline.assets", "text_encoder.materialize", "vae_decoder.materialize"}
    assert not (tmp_path / "pwned").exists()
    assert project.files() == honest.files()
    assert sum(event.name == "warning" for event in project.events) <= 2
    third = new_project(tmp_path / "third", checkpoints)
    third.run(shared_cache=(tmp_path / "share").as_uri())
    assert third.executed() == {"text_encoder.materialize", "vae_decoder.materialize"}
    assert not [event for event in third.events if event.name == "warning"]
