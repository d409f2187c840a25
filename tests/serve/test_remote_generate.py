"""`olivelike generate --server`: the same files and words as without, drawn elsewhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from PIL import Image

from olivelike.cli import stdout
from olivelike.cli.app import run_command_line
from olivelike.runtime.pictures import PictureRecord, read_picture
from tests.fixtures.little_pipeline import flagging_pipeline, little_checkpoint
from tests.serve.conftest import wait_until
from tests.serve.server_process import kill, start_server


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def events(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def generate(capsys, monkeypatch, tmp_path, server, little):
    """Run `olivelike generate` in an empty folder: at the server, or here on the same folder."""
    monkeypatch.setattr(stdout, "reader_left", False)
    monkeypatch.delenv("OLIVELIKE_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def generate(*arguments, here=False, url=server.url, steps=("--steps", 3)):
        capsys.readouterr()
        where = (str(little), "--threads", 1) if here else (little.name, "--server", url)
        status = run_command_line([str(one) for one in ("generate", *where, *arguments, *steps)])
        found = capsys.readouterr()
        return Result(status, found.out, found.err)

    return generate


def shape(text):
    return re.sub(r"[\d.]+ (s\b|it/s)", r"0 \1", text).splitlines()


def both(generate, tmp_path, *arguments, suffix=".png"):
    """Run the same at the server and here; return what both said, and the files of both, by name."""
    results, files = [], []
    for name, here in (("there", False), ("here", True)):
        pattern = f"{name}/{{prompt}}-{{seed}}-{{steps}}{suffix}"
        results.append(generate(*arguments, "-o", pattern, here=here))
        assert results[-1].status == 0, results[-1].err
        files.append({path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())})
    return results, files


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_pictures_are_those_of_a_local_run_to_the_byte(generate, tmp_path, suffix):
    options = ("a {red|green} circle", "a (blue:1.2) square", "-n", 2, "--seed", 7, "--sheet", "--scheduler", "Euler a")
    (there, here), files = both(generate, tmp_path, *options, "--negative-prompt", "blurry", suffix=suffix)
    assert files[0] == files[1]
    assert len(files[0]) == 5
    lines = shape(there.out.replace("there/", "here/"))
    assert lines[1:] == shape(here.out)[1:]


def test_json_events_are_those_of_a_local_run(generate):
    words = ("a", "-n", 3, "--batch-size", 2, "--seed", 3, "--json")
    there, here = (generate(*words, here=here).events for here in (False, True))
    # A server that draws faster than anybody listens leaves steps out, which get the timestep of the next.
    other = {"seconds", "pictures", "path", "folder", "timestep"}
    there, here = ([{key: event[key] for key in event.keys() - other} for event in run] for run in (there, here))
    assert there == here


def test_a_picture_to_start_from_is_sent_and_keeps_its_name(generate, tmp_path):
    Image.effect_mandelbrot((32, 32), (-2, -1, 1, 1), 20).convert("RGB").save(tmp_path / "start.png")
    Image.linear_gradient("L").resize((32, 32)).save(tmp_path / "mask.png")
    options = ("a", "--init-image", "start.png", "--mask", "mask.png", "--strength", 0.7, "--seed", 5)
    _, files = both(generate, tmp_path, *options)
    assert files[0] == files[1]
    (path,) = (tmp_path / "there").iterdir()
    record = read_picture(path).record
    assert (record.init_image.name, record.mask.name) == ("start.png", "mask.png")


def test_prompts_of_a_file_have_their_own_options(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text('a cat\n--prompt "a dog" --seed 3 --n_iter 2 --width 64 --height 32\n')
    _, files = both(generate, tmp_path, "@prompts.txt", "--seed", 9)
    assert files[0] == files[1]
    assert sorted(files[0]) == ["a-cat-9-3.png", "a-dog-3-3.png", "a-dog-4-3.png"]


def test_a_line_that_the_server_refuses_is_named_and_nothing_is_drawn(generate, tmp_path, server):
    (tmp_path / "prompts.txt").write_text('a cat\n--prompt "a dog" --width 33 --height 32\n')
    result = generate("@prompts.txt")
    assert result.status == 2
    assert f"error: prompts.txt:2: {server.url}: size 33x32" in result.err
    wait_until(lambda: server.service.jobs(limit=1)[0].state in {"cancelled", "done"})


def test_a_picture_is_made_again(generate, tmp_path):
    assert generate("a cat", "--seed", 4, "-o", "first.png", here=True).status == 0
    result = generate("--from", "first.png", "-o", "again.png", steps=())
    assert (result.status, result.err) == (0, "")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "first.png").read_bytes()


def test_what_it_was_made_of_is_wanted(generate, tmp_path):
    from olivelike.runtime.pictures import PictureWriter, UsedFile

    record = PictureRecord("a", seed=1, steps=2, loras=(UsedFile("ink", "0123"),), model="elsewhere")
    PictureWriter(tmp_path / "ink.png").save(Image.new("RGB", (8, 8)), record)
    result = generate("--from", "ink.png", steps=())
    assert (result.status, "made with LoRAs that are not given: ink" in result.err) == (2, True)


def test_without_metadata_the_mark_is_all_that_a_file_has(generate, tmp_path, server):
    assert generate("secretword", "--no-metadata", "-o", "a.png").status == 0
    found = read_picture(tmp_path / "a.png")
    assert (found.record, found.source_type) == (None, "trainedAlgorithmicMedia")
    assert b"secretword" not in (tmp_path / "a.png").read_bytes()
    assert server.service.jobs(limit=1)[0].order.save is False


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--scheduler", "Nonsense"), 2, "Nonsense"),
        (("--lora", "nowhere:0.5"), 3, "nowhere"),
        (("--lora", "folder/style.safetensors"), 2, "a server has its own LoRAs"),
        (("--lora-dir", ".", "--device", "0", "--no-safety"), 2, "--lora-dir, --no-safety, options of sessions: with"),
        (("--init-image", "missing.png"), 3, "missing.png"),
        (("--eta", 7), 2, "eta"),
    ],
)
def test_refusals_have_their_exit_codes(generate, words, status, said):
    result = generate("a", *words)
    assert (result.status, said in result.err) == (status, True), result.err


def test_an_unknown_model_and_a_server_that_is_not_there(generate, tmp_path, server, capsys):
    capsys.readouterr()
    assert run_command_line(["generate", "nowhere", "a", "--server", server.url]) == 3
    assert "nowhere" in capsys.readouterr().err
    result = generate("a", url="http://127.0.0.1:9")
    assert (result.status, "no server answers at http://127.0.0.1:9" in result.err) == (3, True)
    assert generate("a", url="ftp://x").status == generate("a", "--server", "http://:0").status == 2
    assert generate("a", "--api-key", "k", here=True).status == 2
    assert not list(tmp_path.iterdir())


class _Junk(BaseHTTPRequestHandler):
    """Answers all that is asked with what the test says."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.answers.get(self.path, (404, b"<html>not here</html>"))
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def junk():
    """Return the URL of a server that speaks HTTP, and nothing that we understand."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Junk) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


VIEW = {
    "id": "j", "kind": "pictures", "state": "queued", "position": 0, "client": "c", "created": "", "started": None,
    "finished": None, "order": None, "run": None, "step": 0, "steps_total": 0, "batch": 0, "batches": 0,
    "eta_seconds": None, "pictures": [], "sheet": None, "notes": [], "error": None,
}  # fmt: skip
STARTED = (200, b": here\n\n")
ACCEPTED = (202, json.dumps(VIEW).encode())


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        ({}, 3, "404 Not Found; is it `olivelike serve`?"),
        ({"/api/events": (302, b"")}, 2, "302"),
        ({"/api/events": (500, b"\xff")}, 3, "500"),
        ({"/api/events": (401, b'{"error": {"code": "unauthorized", "message": "a key\\u001b[31m"}}')}, 2, "--api-key"),
        ({"/api/events": (200, b"")}, 3, "end without a word"),
        ({"/api/events": (200, b"data: nonsense\n\n")}, 3, "no JSON"),
        ({"/api/events": STARTED, "/api/jobs": (202, b"[]")}, 3, "can't read"),
        ({"/api/events": STARTED, "/api/jobs": (202, b"[" * 200_000)}, 3, "no JSON"),
        ({"/api/events": STARTED, "/api/jobs": (429, b'{"error": {"code": "queue", "message": "full"}}')}, 3, "full"),
        ({"/api/events": STARTED, "/api/jobs": (422, b'{"error": {"code": "usage", "message": "no"}}')}, 2, ": no\n"),
        ({"/api/events": STARTED, "/api/jobs": ACCEPTED, "/api/jobs/j": (200, b'{"state": 7}')}, 3, "can't read"),
        (
            {"/api/events": (200, b'data: {"job": "j", "type": "step", "step": "x"}\n\n'), "/api/jobs": ACCEPTED},
            3, "can't read",
        ),
        (
            {"/api/events": (200, b'data: {"job": "j", "type": "picture", "picture": 3}\n\n'), "/api/jobs": ACCEPTED},
            3, "can't read",
        ),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_server_that_talks_nonsense_is_no_bug_of_ours(generate, tmp_path, junk, monkeypatch, answers, status, said):
    monkeypatch.setattr(_Junk, "answers", answers)
    result = generate("a", url=junk)
    assert (result.status, said in result.err) == (status, True), result.err
    assert "bug" not in result.err
    assert "\x1b" not in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_loras_and_keys_are_the_server_s_and_flagged_pictures_end_with_status_6(serve, little, generate, tmp_path):
    from olivelike.testing.lora_files import make_lora

    lora = make_lora(tmp_path / "style.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    (tmp_path / "loras").mkdir()
    lora.rename(tmp_path / "loras" / lora.name)
    black = flagging_pipeline(tmp_path / "flagging")
    own = serve(folders=(little, black), lora_dirs=(tmp_path / "loras",), api_keys={"me": "secret"})
    words = ("a", "--seed", 1, "--lora")
    assert generate(*words, "style:0.5", url=own.url).status == 2
    at = ("--api-key", "secret")
    there = generate(*words, "style:0.5", *at, "-o", "there.png", url=own.url)
    assert there.status == 0, there.err
    assert generate(*words, "loras/style.safetensors:0.5", "-o", "here.png", here=True).status == 0
    assert (tmp_path / "there.png").read_bytes() == (tmp_path / "here.png").read_bytes()
    assert there.out.splitlines()[0].endswith(" with style at 0.5 …")
    tagged = generate("a<lora:style:0.5>", "--seed", 1, *at, "-o", "tag.png", url=own.url)
    assert (tagged.status, tagged.out.splitlines()[0].endswith(" with style at 0.5 …")) == (0, True)

    options = ("a", "--retry-unsafe", "1", "--steps", "2", "--server", own.url, "-o", "flagged.png", *at)
    assert run_command_line(["generate", black.name, *options]) == 6
    with Image.open(tmp_path / "flagged.png") as image:
        assert not image.getbbox()


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_and_keeps_what_is_written(server, little, tmp_path):
    words = [little.name, "a", "-n", "50", "--steps", "300", "--server", server.url, "--json"]
    command = [sys.executable, "-m", "olivelike", "generate", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if json.loads(line)["event"] == "picture":
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"interrupted; \d+ of 50 pictures written, jobs at the server cancelled", err)
    wait_until(lambda: server.service.jobs(limit=1)[0].state == "cancelled")
    last = json.loads(out.splitlines()[-1])
    assert len(last["pictures"]) == len(list((tmp_path / "pictures").iterdir()))


@pytest.mark.slow
def test_a_server_that_is_killed_is_waited_for_and_goes_on_or_is_said_to_be_gone(little, generate, tmp_path):
    def serve(port=0):
        return start_server(little, "--gallery", tmp_path / "gallery", "--threads", 1, port=port)

    def once_drawn(folder, action):
        wait_until(lambda: folder.is_dir() and any(folder.iterdir()), 60)
        action()

    def restart():
        kill(process)
        processes.append(serve(urlsplit(url).port)[0])

    process, url = serve()
    processes = [process]
    words = ("a", "-n", 20, "--seed", 1)
    try:
        Thread(target=once_drawn, args=(tmp_path / "pictures", restart)).start()
        result = generate(*words, url=url, steps=("--steps", 300))
        assert result.status == 0, result.err
        assert "it is waited for" in result.err
        Thread(target=once_drawn, args=(tmp_path / "again", processes[-1].kill)).start()
        gone = generate(*words, "-o", "again", url=url, steps=("--steps", 300))
        assert (gone.status, "no server answers" in gone.err) == (3, True), gone.err
    finally:
        kill(processes[-1])
    assert generate(*words, "-o", "here", here=True, steps=("--steps", 300)).status == 0
    there, here = (sorted((tmp_path / name).iterdir()) for name in ("pictures", "here"))
    assert [path.name for path in there] == [path.name for path in here]
    assert [path.read_bytes() for path in there] == [path.read_bytes() for path in here]
