from __future__ import annotations

import gc
import json
import re
import signal
import sys
import time
import weakref

import pytest
from picture_files import pixels, save

from olivelike.cli.options import AllSessionOptions
from olivelike.model.targets import TargetChoice
from olivelike.runtime.pictures import PictureWriter
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.sample_records import write_output_record


def events(result):
    return [json.loads(line) for line in result.out.splitlines()]


def test_it_says_what_it_does_and_where_the_pictures_are(generate, empty_folder):
    result = generate("a red circle", "-n", 3, "--batch-size", 2, "--seed", 7)
    assert result.status == 0, result.err
    assert re.sub(r"[\d.]+ (s\b|it/s)", r"0 \1", result.out).splitlines()[1:] == [
        "  on CPUExecutionProvider in 0 s, 32x32",
        "Batch 1 of 2: a red circle",
        "  pictures/00001-7.png (seed 7)",
        "  pictures/00002-8.png (seed 8)",
        "  3 steps, 0 it/s, done in 0 s; about 0 s left for all",
        "Batch 2 of 2: a red circle",
        "  pictures/00003-9.png (seed 9)",
        "  3 steps, 0 it/s, done in 0 s; 3 of 3 pictures passed the safety checker",
    ]
    written = sorted(path.name for path in (empty_folder / "pictures").iterdir())
    assert written == ["00001-7.png", "00002-8.png", "00003-9.png"]
    assert pixels(empty_folder / "pictures" / "00001-7.png").shape == (32, 32, 3)


def test_nothing_is_overwritten_unasked(generate, empty_folder):
    for _ in range(2):
        assert generate("a", "--seed", 1, "-o", "cat.png").status == 0
    first = (empty_folder / "cat.png").read_bytes()
    assert sorted(path.name for path in empty_folder.iterdir()) == ["cat-2.png", "cat.png"]
    assert generate("b", "--seed", 1, "-o", "cat.png", "--overwrite").status == 0
    assert (empty_folder / "cat.png").read_bytes() != first
    assert len(list(empty_folder.iterdir())) == 2


def test_a_sheet_shows_all_pictures(generate, empty_folder):
    result = generate("a", "b", "-n", 2, "--batch-size", 4, "--sheet", "-o", "out/{prompt}-{seed}.png", "--seed", 3)
    assert result.status == 0, result.err
    assert "All on one sheet: out/sheet.png" in result.out
    names = sorted(path.name for path in (empty_folder / "out").iterdir())
    assert names == ["a-3.png", "a-4.png", "b-3.png", "b-4.png", "sheet.png"]
    sheet = pixels(empty_folder / "out" / "sheet.png")
    dark = (sheet < 60).all(axis=2).any(axis=1)
    assert sheet.shape[1] == 2 * 128 + 3 * 8
    assert dark[8:20].any(), "the first prompt stands above its pictures"


def test_flagged_pictures_are_black_and_said_to_be(generate, flagging, empty_folder):
    result = generate("a", "--seed", 1, "-o", "cat.png", folder=flagging)
    assert result.status == 0
    assert "  cat.png (seed 1), black: the safety checker flagged it\n" in result.out
    assert "0 of 1 picture passed the safety checker" in result.out
    assert not pixels("cat.png").any()
    result = generate("a", "--seed", 1, "-o", "free.png", "--no-safety", folder=flagging)
    assert "the safety checker is off: nothing looks at the pictures" in result.out
    assert pixels("free.png").any()


def test_attempts_that_are_all_flagged_end_with_status_6(generate, flagging):
    result = generate("a", "--seed", 1, "--retry-unsafe", 2, "--sheet", folder=flagging)
    assert result.status == 6
    assert "Batch 1 of 1, attempt 3: a" in result.out
    assert result.err.startswith("error: the safety checker flagged 1 of 1 pictures in all 3 attempts")
    assert "All on one sheet" in result.out


def test_json_is_an_object_per_line_and_ends_with_the_outcome(generate, flagging):
    told = events(generate("a", "-n", 2, "--seed", 5, "--json"))
    assert [event["event"] for event in told] == [
        "opening",
        "generate_started",
        *["step", "step", "step", "picture", "batch_finished"] * 2,
        "generate_finished",
    ]
    started = told[1]
    assert (started["provider"], started["pictures"], started["checked"]) == ("CPUExecutionProvider", 2, True)
    assert told[5] == {
        "event": "picture",
        "path": "pictures/00001-5.png",
        "prompt": "a",
        "seed": 5,
        "first_seed": 5,
        "attempts": 1,
        "flagged": False,
    }
    assert told[-1]["pictures"] == ["pictures/00001-5.png", "pictures/00002-6.png"]
    assert told[-1]["error"] is None
    failed = events(generate("a", "--json", "--retry-unsafe", 1, folder=flagging))
    assert failed[-1]["flagged"] == 1
    assert "flagged 1 of 1" in failed[-1]["error"]


@pytest.mark.parametrize(
    "arguments", [("--provider", "nope"), ("--size", 5), ("--init-image", "none.png"), ("-o", "{sed}.png")]
)
def test_json_ends_with_the_outcome_also_if_nothing_begins(generate, arguments):
    (told,) = events(generate("a", "--json", *arguments))
    assert told["event"] == "generate_finished"
    assert told["error"]


def test_pictures_are_not_held_once_they_are_written(generate, monkeypatch):
    alive = []
    save = PictureWriter.save

    def remember(writer, image, record):
        gc.collect()
        alive.append(sum(held() is not None for held in images))
        images.append(weakref.ref(image))
        return save(writer, image, record)

    images = []
    monkeypatch.setattr(PictureWriter, "save", remember)
    assert generate("a", "-n", 4).status == 0
    assert alive[-1] <= 1
    alive.clear()
    images.clear()
    assert generate("a", "-n", 4, "--sheet").status == 0
    assert alive == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no prompt is given"),
        (("a", "-n", 0), 2, "--num-images is 0"),
        (("a", "--size", "512"), 2, "--size '512' is no size; write width and height"),
        (
            ("a", "--size", "33x32"),
            2,
            "error: --size 33x32: this pipeline makes sides that are multiples of 4 pixels; the",
        ),
        (("a", "--scheduler", "DPM++ 2N"), 2, "did you mean"),
        (("a", "--provider", "cudda"), 2, "did you mean 'cuda'"),
        (("a", "--provider", "directml"), 3, "is not installed"),
        (("a", "--init-image", "nowhere.png"), 3, "nowhere.png: can't be read as a picture: No such file"),
        (("a", "--init-image", "text.png"), 3, "text.png: this is no picture that can be read"),
        (("a", "--mask", "mask.png"), 2, "a mask is given without an initial picture"),
        (("a", "--strength", 0.5), 2, "--strength is given without an initial picture"),
        (("a", "--retry-unsafe", -1), 2, "--retry-unsafe is -1"),
        (("a", "--session-option", "x"), 2, "--session-option: 'x' is no key=value pair"),
        (("a", "-o", "{sed}.png"), 2, "there is no field {sed}; did you mean 'seed'?"),
        (("a", "-o", "cat.gif"), 2, "not .gif"),
        (("a", "-o", "text.png/cat.png"), 2, "text.png is a file; name another folder"),
        (("a", "--guidance-scale", "nan"), 2, "--guidance-scale nan is not between -100 and 1000"),
        (("--from", "text.png"), 3, "text.png can't be read as a picture"),
        (("--from", "mask.png"), 2, "mask.png does not say what made it"),
        (("a", "--lora", "nowhere.safetensors"), 3, "nowhere.safetensors: no such file"),
        (("a", "--lora", "text.png:abc"), 2, "--lora text.png:abc: abc is no weight; write a number"),
        (("a", "--cache-interval", 3, "--guidance-calls", "faster"), 2, "error: --cache-interval 3 is beyond"),
        (("a", "--seed", -2), 2, "--seed -2 is not between 0"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_cant_be_done_is_said_before_anything_is_opened(
    generate, monkeypatch, empty_folder, arguments, status, message
):
    (empty_folder / "text.png").write_text("no picture")
    save(empty_folder / "mask.png", mode="L")
    if "not installed" not in message:
        monkeypatch.setattr("olivelike.runtime.pipeline.networks.open_session", None)
    result = generate(*arguments)
    assert result.status == status
    assert message in result.err
    assert not (empty_folder / "pictures").exists()


def test_the_command_line_adds_to_the_options_of_the_target(tmp_path):
    target = TargetChoice("cpu", session_options={"a": "1", "b": True}, run_options={"r": 0})
    write_output_record(tmp_path, target=target)
    options = AllSessionOptions(session_options=["b=0"], run_options=["s=1"], threads=3, inter_threads=2)
    found = options.settings(tmp_path)
    assert found.session_config == {"a": "1", "b": "0"}
    assert found.run_config == {"r": "0", "s": "1"}
    assert (found.intra_threads, found.inter_threads) == (3, 2)


def test_a_folder_that_is_none_is_named(cli, empty_folder):
    result = cli("generate", "nowhere", "a")
    assert (result.status, result.err) == (3, "error: nowhere: no such folder; name one that `olivelike run` wrote\n")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interruption_keeps_finished_pictures_and_leaves_nothing_half_written(start, little, empty_folder):
    process = start("generate", little, "a", "-n", 500, "--steps", 3, "--json", "--threads", 1, cwd=empty_folder)
    told = []
    while len(told) < 3:
        event = json.loads(process.stdout.readline())
        if event["event"] == "picture":
            told.append(event["path"])
    process.send_signal(signal.SIGINT)
    # What `readline` has buffered already is lost to `communicate`.
    rest = [json.loads(line) for line in process.stdout.read().splitlines()]
    err = process.stderr.read()
    assert process.wait() == 130, err
    told += [event["path"] for event in rest if event["event"] == "picture"]
    assert err == f"error: interrupted; {len(told)} of 500 pictures written\n"
    assert rest[-1]["event"] == "generate_finished"
    assert rest[-1]["pictures"] == told
    found = sorted(str(path.relative_to(empty_folder)) for path in (empty_folder / "pictures").iterdir())
    assert found == sorted(told)
    for name in found:
        assert pixels(empty_folder / name).any()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_would_take_hours_ends_with_the_signal(start, little, empty_folder, signals):
    process = start(
        "generate",
        little,
        "a",
        "--size",
        "1024x1024",
        "--steps",
        1000,
        "--no-safety",
        "--json",
        "--threads",
        1,
        cwd=empty_folder,
    )
    while json.loads(process.stdout.readline())["event"] != "generate_started":
        pass
    time.sleep(1.5)  # Until the UNet runs.
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "error: interrupted; 0 of 1 picture written\n")
    (last,) = [json.loads(line) for line in rest.splitlines()]
    assert (last["event"], last["pictures"]) == ("generate_finished", [])
    assert last["error"].startswith("interrupted")
    assert list(empty_folder.iterdir()) == []


def test_a_size_far_beyond_the_unet_s_own_is_noted(generate):
    large = generate("a", "--size", "80x64", "--seed", 1, steps=("--steps", 1))
    assert large.status == 0
    assert large.err.startswith(
        "note: 80x64 is 5 times the area that this model was trained on (32x32): a step takes 5 to 25 times as long"
    )
    assert generate("a", "--size", "64x64", "--seed", 1, steps=("--steps", 1)).err == ""


CHECKPOINT = (
    "is a checkpoint, not an optimised folder; optimise it first: olivelike convert painter.safetensors -t cpu "
    "-o models/painter, then olivelike generate models/painter PROMPT"
)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("painter.safetensors", CHECKPOINT),
        ("torch", "is a checkpoint of diffusers, not an optimised folder; optimise it first: olivelike convert torch"),
        ("models/dema", "no such folder; did you mean models/demo?"),
        ("dem", "no such folder; did you mean models/demo?"),
        ("models", "has no model_index.json, so it is no pipeline; did you mean models/demo?"),
        ("notes.txt", "is a file; name a folder that"),
    ],
)  # fmt: skip
def test_what_is_no_optimised_folder_is_said_to_be_what_it_is(cli, empty_folder, named, message):
    for name in ("painter.safetensors", "notes.txt", "torch/unet/diffusion_pytorch_model.safetensors"):
        (empty_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (empty_folder / name).touch()
    for name in ("torch", "models/demo"):
        (empty_folder / name).mkdir(parents=True, exist_ok=True)
        (empty_folder / name / "model_index.json").write_text("{}")
    result = cli("generate", named, "a")
    assert (result.status, result.out) == (3, "")
    assert result.err.startswith(f"error: {named}: {message}")


def test_networks_are_kept_where_that_is_asked_for(generate, cli, empty_folder, tmp_path, monkeypatch):
    from olivelike.runtime.sessions import compiled

    monkeypatch.setattr(compiled, "compiled_folder", lambda: tmp_path / "compiled")
    assert generate("a", "--seed", 1, "-o", "plain.png").status == 0
    assert not (tmp_path / "compiled").exists()
    for name in ("first.png", "again.png"):
        result = generate("a", "--seed", 1, "-o", name, "--keep-compiled")
        assert result.status == 0, result.err
        assert (pixels(empty_folder / name) == pixels(empty_folder / "plain.png")).all()
    assert compiled.size_of_compiled(tmp_path / "compiled")[0] > 0
    pytest.importorskip("olivelike.cli.commands.cache", reason="needs all of olivelike")
    cleared = cli("cache", "clear", "--compiled")
    assert cleared.status == 0, cleared.err
    assert compiled.size_of_compiled(tmp_path / "compiled")[0] == 0


def test_what_other_providers_keep_is_not_asked_for(generate):
    refused = generate("a", "--keep-compiled", "--provider", "cuda")
    assert (refused.status, "--keep-compiled is for the providers cpu and openvino" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("prompt", "option", "status", "begun"),
    [
        ("a", "", 0, 1),
        ("a", "--scheduler=Nope", 2, 0),
        ("a", "--scheduler=DDIM --steps=2000", 2, 1),
        ("<lora:small>", "", 0, 0),
    ],
)
def test_networks_open_beside_planning(prompt, option, status, begun, generate, empty_folder, monkeypatch):
    """Once all is checked that can be without torch, and where no LoRA changes them."""
    from olivelike.runtime.pipeline import pipeline
    from olivelike.testing.lora_files import make_lora

    (empty_folder / "loras").mkdir()
    make_lora(empty_folder / "loras" / "small.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    seen, real = [], pipeline.begin_pipeline
    monkeypatch.setattr(pipeline, "begin_pipeline", lambda *args, **kw: seen.append(args) or real(*args, **kw))
    steps = () if "steps" in option else ("--steps", 2)
    result = generate(prompt, "--seed", 1, *option.split(), steps=steps)
    assert result.status == status, result.err
    assert len(seen) == begun


def test_what_is_wrong_with_the_networks_is_no_fault_of_a_prompt(generate, empty_folder):
    (empty_folder / "prompts.txt").write_text("a red circle\n")
    refused = generate("@prompts.txt", "--memory-limit", "1kB")
    assert (refused.status, refused.err.startswith("error: a memory limit of 1.0 kB is below")) == (2, True)
