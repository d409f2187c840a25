"""`olivelike generate --server`: the same files and words as without, drawn elsewhere."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from PIL import Image

from olivelike.cli import stdout
from olivelike.cli.app import run_command_line
from olivelike.runtime.pictures import PictureRecord, read_picture
from tests.serve.conftest import wait_until


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
    wait_until(lambda: all(job.state in {"cancelled", "done"} for job in server.service.jobs()))


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
