"""Pictures on the workers of a Dask cluster: the same files as here, whatever workers do."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.cli import stdout
from olivelike.cli.app import run_command_line
from olivelike.errors import MissingError, SessionError, UsageError
from olivelike.extras.cluster import cluster_workers
from olivelike.extras.cluster.cluster_site import STORE_VARIABLE
from olivelike.extras.cluster.drawing_cluster import DrawingCluster
from olivelike.serve.gallery.gallery import PictureRow
from olivelike.serve.service import Service
from olivelike.testing.lora_files import make_lora
from tests.fixtures.late import Late
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.sockets import opened_meanwhile
from tests.serve.conftest import LONG, SMALL, Running, _forked_children, running, wait_until  # noqa: F401 - for all
from tests.test_file_identity import rewrite

distributed = Late("distributed")
MANY = {"prompt": "a red circle", "steps": 30, "seed": 7, "num_images": 8, "batch_size": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    """A worker, which is a process that sees none of our folders; `drawing` adds another one."""
    theirs = str(tmp_path_factory.mktemp("theirs"))
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        env={STORE_VARIABLE: theirs},
    ) as made:
        yield made


@pytest.fixture(scope="module")
def drawing(cluster: distributed.LocalCluster, base_settings, tmp_path_factory: pytest.TempPathFactory):
    """A server whose pictures two workers draw; the second one comes when it runs already."""
    gallery = tmp_path_factory.mktemp("drawing") / "gallery"
    with running(replace(base_settings, gallery=gallery, cluster=cluster.scheduler_address)) as server:
        wait_until(lambda: [one.is_ready for one in server.service.dispatcher.painters] == [True])
        cluster.scale(2)
        wait_until(lambda: sum(one.is_ready for one in server.service.dispatcher.painters) == 2)
        yield server


def submitted(server: Running, **order: object) -> str:
    with server.client() as client:
        return client.post("/api/jobs", json={**SMALL, **order}).json()["id"]


def pictures(server: Running, view: dict[str, object]) -> list[bytes]:
    assert view["state"] == "done", view["error"]
    with server.client() as client:
        return [client.get(f"/files/{picture['id']}.png").content for picture in view["pictures"]]


def test_a_worker_that_comes_later_draws_too_and_what_one_process_draws(drawing: Running, server: Running) -> None:
    orders = [{"seed": seed, "steps": 12, "num_images": 3, "batch_size": 1} for seed in (0, 0, 0, 1)]
    long = submitted(drawing, **LONG)
    wait_until(lambda: long in drawing.service.dispatcher.running)
    jobs = [submitted(drawing, **order) for order in orders]
    views = [drawing.wait(job) for job in jobs]
    assert long in drawing.service.dispatcher.running
    with drawing.client() as client:
        client.post(f"/api/jobs/{long}/cancel")
    there = [pictures(drawing, view) for view in views]
    assert there == [pictures(server, server.draw(**order)) for order in orders]
    assert len({picture["id"] for view in views for picture in view["pictures"]}) == 12
    (folder,) = drawing.service.dispatcher.open_folders
    assert folder == str(drawing.settings.folders[0])


def test_a_worker_keeps_no_more_than_its_last_job(drawing: Running, cluster: distributed.LocalCluster) -> None:
    for seed in range(4):
        assert drawing.draw(seed=seed, num_images=2)["state"] == "done"
    scratch = Path(next(iter(cluster.workers.values())).local_directory)
    gallery = drawing.settings.gallery.relative_to("/")
    kept = [
        len(list(scratch.glob(f"*/olivelike/{painter._child._name}/{gallery}/20*/*.png")))
        for painter in drawing.service.dispatcher.painters
    ]
    assert max(kept) in {2, 3}


def test_a_worker_that_names_a_file_outside_of_the_gallery_writes_none(drawing: Running, tmp_path: Path) -> None:
    child = next(one for one in drawing.service.dispatcher.painters if one.is_ready)._child
    child._gallery = tmp_path / "gallery"
    with pytest.raises(SessionError, match="outside of the gallery"):
        child._fetch(child.site, "../one.png", "/etc/hostname", 1)
    assert not list(tmp_path.rglob("*.png"))


def test_steps_come_as_they_are_made_and_a_plot_has_its_sheet(drawing: Running) -> None:
    job = submitted(drawing, steps=6, x={"field": "steps", "values": [2, 4]})
    seen = []

    async def listen() -> None:
        async for event in drawing.service.events(job):
            seen.append(event["type"])

    drawing.call(listen())
    assert {"picture", "sheet", "done"} <= set(seen)
    view = drawing.wait(job)
    assert (view["state"], len(view["pictures"])) == ("done", 2)
    with drawing.client() as client:
        assert client.get(f"/files/{view['sheet']['id']}.png").status_code == 200


def test_a_cancelled_job_ends(drawing: Running) -> None:
    job = submitted(drawing, **LONG)
    wait_until(lambda: job in drawing.service.dispatcher.running)
    with drawing.client() as client:
        assert client.post(f"/api/jobs/{job}/cancel").status_code == 200
    assert drawing.wait(job)["state"] == "cancelled"
    assert drawing.draw()["state"] == "done"


def test_a_job_of_a_lost_worker_goes_on_elsewhere(
    drawing: Running, server: Running, cluster: distributed.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, killed = drawing.service.gallery.add_soon, []

    def kill_behind_the_second(row: PictureRow, client: str) -> None:
        add(row, client)
        if row.number == 1 and not killed:
            address = drawing.service.dispatcher.running[row.job].painter._child.site.address
            killed.append(next(one.pid for one in cluster.workers.values() if one.worker_address == address))
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(drawing.service.gallery, "add_soon", kill_behind_the_second)
    job = submitted(drawing, **MANY)
    wait_until(lambda: drawing.service.job(job).state == "done", 120)
    view = drawing.wait(job)
    assert len(view["pictures"]) == 8
    assert killed
    assert pictures(drawing, view) == pictures(server, server.draw(**MANY))


@pytest.fixture
def generate(capsys, monkeypatch, tmp_path, little, cluster):
    """Run `olivelike generate` on the workers or here, and return status, what went wrong, and the files."""
    monkeypatch.setattr(stdout, "reader_left", False)
    monkeypatch.chdir(tmp_path)

    def generate(*arguments, name="there", here=False):
        capsys.readouterr()
        where = () if here else ("--cluster", cluster.scheduler_address)
        words = ("generate", little, *arguments, "--threads", 1, "--steps", 3, *where, "-o", f"{name}/")
        status = run_command_line([str(one) for one in words])
        folder = tmp_path / name
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        return status, capsys.readouterr().err, files

    return generate


@pytest.mark.slow
def test_generate_writes_the_same_files_by_the_same_names(generate, tmp_path, little):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "animal.txt").write_text("a cat\na dog\n", encoding="utf-8")
    make_lora(tmp_path / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    prompt = "{red|blue} __animal__ in the garden"
    options = (prompt, "a house", "--num-images", 4, "--batch-size", 1, "--seed", 5)
    more = ("--wildcard-dir", "words", "--lora", "style.safetensors:0.7")
    ours, theirs = (generate(*options, *more, name=str(here), here=here) for here in (True, False))
    assert (ours[0], theirs[0]) == (0, 0), theirs[1]
    assert len(ours[2]) == 8
    assert theirs[2] == ours[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--server", "http://127.0.0.1:9"), "--server and --cluster are two places"),
        (("--preview", "p.png"), "--preview: workers of a cluster do not have it"),
        (("--cuda-graph",), "options of sessions beyond provider, device and threads"),
        (("--api-key", "k"), "--api-key: workers of a cluster"),
    ],
)
def test_what_workers_do_not_have_is_refused(generate, words, said):
    status, err, files = generate("a house", *words)
    assert (status, files) == (2, {})
    assert said in err


@pytest.mark.parametrize(("address", "error"), [("tcp://127.0.0.1:9", MissingError), ("here", UsageError)])
def test_a_server_without_its_cluster_does_not_start(base_settings, tmp_path, monkeypatch, address, error):
    monkeypatch.setattr(cluster_workers, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(error):
        Service(replace(base_settings, gallery=tmp_path / "gallery", cluster=address))


def test_workers_of_another_version_do_not_draw(base_settings, tmp_path, monkeypatch, cluster):
    monkeypatch.setattr(cluster_workers, "versions", lambda: {"olivelike": "99"})
    with pytest.raises(SessionError, match=r"olivelike .* there, and 99 on this machine"):
        Service(replace(base_settings, gallery=tmp_path / "gallery", cluster=cluster.scheduler_address))


@pytest.mark.slow
def test_a_server_with_workers_of_its_own_listens_on_loopback_alone(base_settings, tmp_path, server):
    with opened_meanwhile() as sockets:
        settings = replace(base_settings, gallery=tmp_path / "gallery", cluster="local:2")
        with running(settings) as drawing:
            view = drawing.draw(seed=7, num_images=2)
            drawn = pictures(drawing, view)
    assert [address for address, _ in sockets] == ["127.0.0.1"]  # its own
    assert drawn == pictures(server, server.draw(seed=7, num_images=2))


@pytest.mark.slow
def test_generate_with_workers_of_its_own_listens_on_loopback_alone(generate):
    with opened_meanwhile() as sockets:
        status, err, files = generate("a house", "--seed", 5, "--cluster", "local:2", here=True)
    assert (status, len(files)) == (0, 1), err
    assert [address for address, _ in sockets] == ["127.0.0.1"]  # of the server that it starts
    assert files == generate("a house", "--seed", 5, name="here", here=True)[2]


def test_workers_get_the_digest_of_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    cluster = object.__new__(DrawingCluster)
    cluster._digests = {}
    before = cluster.digests([str(path)])
    rewrite(path, b"two")
    assert cluster.digests([str(path)]) != before
    assert len(cluster._digests) == 1
