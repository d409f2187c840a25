"""Runs on a Dask cluster: the same files as from worker processes, whatever workers do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from olivelike.data import demo_folder
from olivelike.digest import canonical_json
from olivelike.engine.execute.events import Event
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import MissingError, PassError, SessionError, UsageError
from olivelike.extras.cluster import cluster_site, cluster_workers
from olivelike.extras.cluster.cluster_data import packed, unpacked
from olivelike.extras.cluster.cluster_executor import ClusterExecutor
from olivelike.workflow.passes.allowed_plugins import plugin_code
from tests.engine.conftest import Project, run_project
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.late import Late
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.sockets import opened_meanwhile

distributed = Late("distributed")
WORKFLOW = """
name: small
source: DEMO
target: cpu
components:
  text_encoder: [convert, fuse]
  vae_decoder: [convert, fuse]
output: models/small
"""
ROUNDED = """
name: rounded
source: LITTLE
target: cpu
calibration: {prompts: [a cat], steps: 1, size: [32, 32]}
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse, int8: {float_blocks: []}]
  vae_decoder: [convert, fuse]
output: models/small
"""
PLUGIN = """
from olivelike.pass_api import Pass, Resources
from tint_helper import WORD

class Tint(Pass):
    "A pass that tells what lies beside it."
    reads = ("graph",)
    writes = ("graph",)
    files = ("tint.txt",)
    resources = Resources(provider=PROVIDER)

    def run(self, model, context):
        from pathlib import Path
        context.report(**{WORD: Path(__file__).with_name("tint.txt").read_text()})
        print("tinted", __file__)
        return model
"""


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        2, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as made:
        yield made
    cluster_site.end_sides()  # The workers are this process.


@pytest.fixture
def apart(cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of two workers that share no store with a project."""
    monkeypatch.setenv(cluster_site.STORE_VARIABLE, str(tmp_path / "theirs"))
    cluster_site._store.cache_clear()
    return cluster.scheduler_address


@pytest.fixture(scope="module")
def made_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run of the project in this process writes."""
    project = new_project(tmp_path_factory.mktemp("here"))
    run(str(project.workflow), executor=InlineExecutor)
    return project.files()


@pytest.fixture
def emptied(tmp_path: Path) -> Project:
    """Networks of the demo, whose graphs are on the shelf."""
    return new_project(tmp_path / "project")


def new_project(folder: Path) -> Project:
    project = Project(folder)
    project.workflow.parent.mkdir(parents=True)
    project.workflow.write_text(WORKFLOW.replace("DEMO", str(demo_folder())), encoding="utf-8")
    return project


def run_on(project: Project, address: str, *overrides: str, **options: object) -> None:
    project.events = []
    asked = Options(overrides=overrides, cache_dir=project.folder / "cache", **options)
    run(str(project.workflow), asked, project.events.append, None, lambda _, log: ClusterExecutor(address, None, log))


def last_record(project: Project) -> list[dict[str, object]]:
    record = json.loads(max((project.folder / "cache" / "runs").iterdir()).read_text(encoding="utf-8"))
    return [node for node in record["nodes"] if node["status"] in {"executed", "failed"}]


def with_plugin(project: Project, provider: str = "None") -> Path:
    folder = project.folder / "plugins"
    folder.mkdir()
    (folder / "tint.py").write_text(PLUGIN.replace("PROVIDER", provider), encoding="utf-8")
    (folder / "tint_helper.py").write_text("WORD = 'tone'\n", encoding="utf-8")
    (folder / "tint.txt").write_text("sepia", encoding="utf-8")
    project.edit("vae_decoder: [convert, fuse]", "vae_decoder: [convert, tint, fuse]")
    return folder / "tint.py"


def test_workers_with_stores_of_their_own_give_the_same_bytes(
    emptied: Project, apart: str, tmp_path: Path, made_here: dict[str, bytes]
) -> None:
    run_on(emptied, apart)
    assert emptied.files() == made_here
    assert emptied.leftovers() == []
    ran = last_record(emptied)
    assert all(re.fullmatch(r".+ \(tcp://127\.0\.0\.1:\d+\)", str(node["host"])) for node in ran)
    assert Counter(event.data["node"] for event in emptied.events if event.name == "node_started") == Counter(
        str(node["id"]) for node in ran
    )
    assert any(event.name == "node_progress" for event in emptied.events)
    assert any((tmp_path / "theirs" / "objects").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("auto", ["", ", auto: true, samples: 1, error_of: latents, max_relative_error: 0.01"])
def test_pictures_for_calibration_are_drawn_elsewhere_as_here(tmp_path: Path, apart: str, auto: str) -> None:
    text = ROUNDED.replace("LITTLE", str(little_checkpoint())).replace("[]}", f"[]{auto}}}")
    networks = ("text_encoder", "unet", "vae_decoder")
    project = run_project(tmp_path / "rounded", text, little_checkpoint(), *networks)
    here = project.files()
    run_on(project, apart, clean_cache=True)
    assert "pipeline.calibrate" in {node["id"] for node in last_record(project)}
    assert project.files() == here


def test_plugins_travel_with_their_code_and_data_where_a_worker_allows_them(
    emptied: Project, apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = with_plugin(emptied)
    options = {"plugins": (str(plugin),), "only": ("vae_decoder",)}
    with pytest.raises(MissingError) as refused:
        run_on(emptied, apart, **options)
    digest = plugin_code(plugin)
    assert f"does not allow the code of {plugin}; whoever keeps the worker allows it with" in str(refused.value)
    assert f"{cluster_site.PLUGINS_VARIABLE}={digest}" in str(refused.value)
    monkeypatch.setenv(cluster_site.PLUGINS_VARIABLE, f"{'0' * 64}, {digest}")
    run_on(emptied, apart, **options)
    tint = next(node for node in last_record(emptied) if node["name"] == "tint")
    assert tint["facts"] == {"tone": "sepia"}
    log = next((emptied.folder / "cache" / "logs").rglob("*tint*.log")).read_text(encoding="utf-8")
    assert "tinted" in log
    assert str(plugin) not in log


def test_what_no_worker_can_do_is_refused_by_name(
    emptied: Project, apart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cluster_site.PLUGINS_VARIABLE, "any")
    plugin = with_plugin(emptied, "'CUDAExecutionProvider'")
    with pytest.raises(MissingError, match="no worker of the cluster has CUDAExecutionProvider; start one"):
        run_on(emptied, apart, plugins=(str(plugin),), only=("vae_decoder",))


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"olivelike": "0.0.9"}, r"olivelike 0\.0\.9 there, and 0\.2\.0 on this machine; install the same"),
        ({"onnx": None}, r"onnx is missing there, and .+ on this machine"),
        ({}, r"has other code than this machine's; install the same"),
    ],
)
def test_a_worker_with_another_olivelike_is_refused_with_both_versions(
    emptied: Project, apart: str, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, str | None], message: str
) -> None:
    known = cluster_site.describe

    def describe(probe: str, token: str, dask_worker: object) -> dict[str, object]:
        facts = known(probe, token, dask_worker)
        versions = {name: found for name, found in {**facts["versions"], **theirs}.items() if found is not None}
        return {**facts, "versions": versions, "code": facts["code"] if theirs else "0" * 64}

    monkeypatch.setattr(cluster_site, "describe", describe)
    with pytest.raises(SessionError, match=message):
        run_on(emptied, apart)
    assert not emptied.output.exists()


def test_addresses_where_there_is_no_cluster_are_refused(emptied: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_workers, "_CONNECT_SECONDS", 1)
    for address in ("local:0", "tcp://somewhere", "http://127.0.0.1:80", ""):
        with pytest.raises(UsageError, match="is no cluster; give tcp://HOST:PORT"):
            run_on(emptied, address)
    with pytest.raises(MissingError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 .+ start one with"):
        run_on(emptied, "tcp://127.0.0.1:9")
    with distributed.LocalCluster(
        1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as lonely:
        lonely.scale(0)
        with pytest.raises(MissingError, match="the cluster has no worker; start one with `dask worker ADDRESS`"):
            run_on(emptied, lonely.scheduler_address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingError, match=r"pip install 'olivelike\[cluster\]'"):
        run_on(emptied, "local:1")


def test_what_comes_over_damaged_is_never_taken(emptied: Project, apart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = cluster_site.give

    async def flipped(what: str, offset: int) -> bytes:
        piece = bytearray(await given(what, offset))
        piece[0] ^= 1
        return bytes(piece)

    monkeypatch.setattr(cluster_site, "give", flipped)
    with pytest.raises(MissingError, match="came back"):
        run_on(emptied, apart)
    assert not emptied.output.exists()


def test_a_worker_writes_nowhere_but_into_the_output(
    emptied: Project, apart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cluster_site._written
    monkeypatch.setattr(cluster_site, "_written", lambda folder: {**known(folder), "../../../../evil": (4, "0" * 64)})
    with pytest.raises(PassError, match=r"left files that its task does not name: \.\./\.\./\.\./\.\./evil"):
        run_on(emptied, apart)
    assert not list(tmp_path.rglob("evil"))


Made = dict[str, Any]
"""An `Outcome` as a worker answers it, of a task that has been done."""

LIES: dict[str, Callable[[Made], object]] = {
    "a file more": lambda made: {**made, "written": {**made["written"], "evil.py": (1, "0" * 64)}},
    "a file more, reported": lambda made: _told(
        made, files={**_files(made), "evil.py": {"size": 1, "sha256": "0" * 64}}
    ),
    "a file elsewhere": lambda made: _told(
        made, files={**_files(made), "../config.json": {"size": 1, "sha256": "0" * 64}}
    ),
    "a size below zero": lambda made: _told(
        made, files={name: {**one, "size": -1} for name, one in _files(made).items()}
    ),
    "a size that is none": lambda made: _told(
        made, files={name: {**one, "size": "1"} for name, one in _files(made).items()}
    ),
    "no files": lambda made: _told(made, files=None),
    "no time": lambda made: _done(made, seconds="x"),
    "endless time": lambda made: _done(made, seconds=1e300),
    "no facts": lambda made: _done(made, facts=[1]),
    "no end": lambda made: {**made, "done": None},
    "no outcome": lambda _: {"answer": "done"},
    "a field less": lambda made: {name: one for name, one in made.items() if name != "written"},
    "memory below zero": lambda made: {**made, "peak_memory_bytes": -1},
    "what JSON can't hold": lambda made: _done(made, facts={"x": float("nan")}),
}


def _files(made: Made) -> dict[str, dict[str, object]]:
    return dict(made["done"]["facts"].get("files") or {})


def _done(made: Made, **fields: object) -> Made:
    return {**made, "done": {**made["done"], **fields}}


def _told(made: Made, **facts: object) -> Made:
    return _done(made, facts={**made["done"]["facts"], **facts})


_REAL = cluster_site.answer_task
_change: list[Callable[[Made], object]] = []
"""What a worker makes of its answers in place of honest ones."""


def lying(parcel: cluster_site.Parcel) -> object:
    """Do a task, and lie; it goes to workers by its name."""
    said = unpacked(_REAL(parcel))
    told = _change[-1](said["value"])
    return packed({**said, "value": told}) if isinstance(told, dict) else told


@pytest.fixture
def liars(apart: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of workers that lie as `_change` says."""
    monkeypatch.setattr(cluster_site, "answer_task", lying)
    yield apart
    _change.clear()


QUICK = {"a file more, reported", "a file elsewhere", "no facts", "no outcome"}
"""Lies that are tried each time; a run for each of the others takes a while."""


def _tried(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("lie", _tried(LIES, QUICK))
def test_an_answer_that_is_none_of_its_task_fails_that_task(
    emptied: Project, liars: str, lie: str, tmp_path: Path
) -> None:
    _change.append(lambda made: LIES[lie](made) if made["written"] else made)
    with pytest.raises((PassError, MissingError), match=r"its worker|gave an answer that olivelike can't read"):
        run_on(emptied, liars)
    assert not emptied.output.exists()
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "what", _tried(["no data", "no output", "another table", "another graph"], {"no data", "another table"})
)
def test_a_result_that_is_none_of_its_node_fails_that_node(
    emptied: Project, liars: str, what: str, tmp_path: Path
) -> None:
    def change(made: Made) -> object:
        outputs, parts = made["done"]["outputs"], made["done"]["parts"]
        match what:
            case "no data":
                return threading.Lock()
            case "no output":
                outputs, parts = {}, {}
            case "another table" if "assets" in outputs:
                data = canonical_json({str(tmp_path / "evil"): next(iter(parts))})
                digest = cluster_site.own_store().put_bytes(data)
                outputs, parts = {"assets": digest}, {**parts, digest: len(data)}
            case "another graph" if "graph" in outputs:
                digest = cluster_site.own_store().put_bytes(b"evil")
                outputs, parts = {"graph": digest}, {**parts, digest: 4}
        return _done(made, outputs=outputs, parts=parts)

    _change.append(change)
    with pytest.raises((PassError, MissingError), match=r"its worker|gave an answer that olivelike can't read"):
        run_on(emptied, liars)
    assert not emptied.output.exists()
    assert not (tmp_path / "evil").exists()


def _start(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOME": str(folder), cluster_site.STORE_VARIABLE: str(folder / "store")}
    command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_local_cluster_of_any_size_gives_the_same_bytes(
    emptied: Project, workers: int, made_here: dict[str, bytes]
) -> None:
    with opened_meanwhile() as sockets:
        run_on(emptied, f"local:{workers}")
    assert sockets == set()
    assert emptied.files() == made_here
    assert emptied.leftovers() == []


@pytest.mark.slow
def test_workers_that_are_killed_20_times_change_nothing(
    emptied: Project, tmp_path: Path, made_here: dict[str, bytes]
) -> None:
    homes = [tmp_path / name for name in ("scheduler", "one", "two")]
    for home in homes:
        home.mkdir()
    port = 18_000 + os.getpid() % 2_000
    address = f"tcp://127.0.0.1:{port}"
    started = [_start("scheduler", "--host", "127.0.0.1", "--port", str(port), folder=homes[0])]
    started += [_start("worker", address, "--nthreads", "1", folder=home) for home in homes[1:]]
    killed = 0

    def kill(event: Event) -> None:
        """Kill a worker that has just been given something, or is in the middle of it."""
        nonlocal killed
        if killed < 20 and event.name in {"node_started", "node_progress"}:
            for child in psutil.Process(started[1 + killed % 2].pid).children():
                with contextlib.suppress(psutil.Error):
                    if any("spawn_main" in word for word in child.cmdline()):
                        child.kill()
                        killed += 1
                        break

    try:
        for _ in range(10):
            options = Options(cache_dir=emptied.folder / "cache", clean_cache=True)
            run(str(emptied.workflow), options, kill, None, lambda _size, log: ClusterExecutor(address, None, log))
            if killed == 20:
                break
        assert killed == 20
        assert emptied.files() == made_here
        assert emptied.leftovers() == []
    finally:
        for process in started:
            for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                one.kill()
            process.wait()
