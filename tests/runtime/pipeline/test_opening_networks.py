"""When the networks of a pipeline are open, and when they are closed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from olivelike.cli.app import run_command_line
from olivelike.errors import SessionError, UsageError
from olivelike.runtime.pipeline import networks as module
from olivelike.runtime.pipeline.networks import Networks, weight_bytes
from olivelike.runtime.pipeline.pipeline import open_pipeline
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import Request
from olivelike.serve.drawing.warm import SessionChoice, WarmPipelines
from tests.fixtures.little_guides import little_guided
from tests.fixtures.wait_until import wait_until

REQUEST = Request(("a red circle",), steps=3, seed=1)


@pytest.fixture
def opened(monkeypatch):
    """Paths of the networks that are opened, in their order."""
    paths: list[Path] = []
    real = module.open_session

    def noted(path, *args, **named):
        paths.append(path)
        return real(path, *args, **named)

    monkeypatch.setattr(module, "open_session", noted)
    return paths


def names(paths):
    return [path.parent.name for path in paths]


def test_what_a_picture_begins_with_is_open_and_its_end_is_opened_beside_the_steps(little_folder, settings, opened):
    pipeline = open_pipeline(little_folder, settings)
    assert sorted(names(opened)) == ["text_encoder", "unet"]
    pipeline.generate(REQUEST, on_step=lambda _: wait_until(lambda: "vae_decoder" in names(opened)))
    assert sorted(names(opened)) == ["safety_checker", "text_encoder", "unet", "vae_decoder"]
    pipeline.generate(REQUEST)
    assert len(opened) == 4


def test_nothing_is_opened_that_is_not_drawn_with(little_folder, settings, opened):
    open_pipeline(little_folder, settings, safety=False).generate(REQUEST)
    assert sorted(names(opened)) == ["text_encoder", "unet", "vae_decoder"]


def test_what_cant_be_opened_beside_the_steps_ends_the_drawing(little_folder, settings, tmp_path):
    folder = tmp_path / "pipeline"
    shutil.copytree(little_folder, folder)
    (folder / "safety_checker" / "model.onnx").write_bytes(b"no model")
    pipeline, steps = open_pipeline(folder, settings), []

    def step_once_it_failed(step):
        steps.append(step.number)
        wait_until(lambda: not any(thread.name == "opens safety_checker" for thread in threading.enumerate()))

    with pytest.raises(SessionError, match="safety_checker.*no ONNX model"):
        pipeline.generate(Request(("a",), steps=200, seed=1), on_step=step_once_it_failed)
    assert len(steps) < 200
    shutil.copy(little_folder / "safety_checker" / "model.onnx", folder / "safety_checker")
    assert pipeline.generate(REQUEST).pictures


def test_who_asks_for_what_is_being_opened_waits_for_it(little_folder, settings, monkeypatch, opened):
    go, real = threading.Event(), module.open_session
    monkeypatch.setattr(module, "open_session", lambda *args: go.wait(30) and real(*args))
    networks = Networks(open_folder(little_folder), settings, {})
    networks.begin(["unet", "unet"])
    assert "unet" not in networks
    found = []
    asking = [threading.Thread(target=lambda: found.append(networks.get("unet"))) for _ in range(3)]
    for thread in asking:
        thread.start()
    go.set()
    for thread in asking:
        thread.join(30)
    assert found == [networks.denoiser()] * 3
    assert names(opened) == ["unet"]


def test_where_cuda_graphs_are_recorded_no_thread_opens_a_network_meanwhile(little_folder, settings, monkeypatch):
    real, recording = module.open_session, replace(settings, cuda_graph=True)
    monkeypatch.setattr(module, "open_session", lambda path, _, arrays: real(path, settings, arrays))
    networks = Networks(open_folder(little_folder), recording, {})
    networks.begin(["text_encoder", "unet"])
    assert sorted(networks) == ["text_encoder", "unet"]


def test_a_failure_is_told_to_who_asks_and_tried_again(little_folder, settings, monkeypatch):
    networks, real = Networks(open_folder(little_folder), settings, {}), module.open_session

    def fail(*_):
        raise SessionError("no memory")

    monkeypatch.setattr(module, "open_session", fail)
    networks.begin(["vae_decoder"])
    with pytest.raises(SessionError, match="no memory"):
        networks.get("vae_decoder")
    monkeypatch.setattr(module, "open_session", real)
    networks.check()
    assert networks.get("vae_decoder").component == "vae_decoder"


def test_a_memory_limit_closes_what_is_not_drawn_with(little_folder, settings, opened):
    folder = open_folder(little_folder)
    needs = {name: weight_bytes(folder, name) for name in ("text_encoder", "unet", "vae_decoder", "safety_checker")}
    limit = max(needs.values()) + 1
    pipeline = open_pipeline(little_folder, replace(settings, memory_limit=limit))
    pictures = pipeline.generate(REQUEST).pictures
    assert sum(needs[name] for name in pipeline._networks) <= limit
    assert (
        pictures[0].image.tobytes()
        == open_pipeline(little_folder, settings).generate(REQUEST).pictures[0].image.tobytes()
    )


def test_a_memory_limit_below_one_network_is_refused_before_anything_opens(little_folder, settings, opened):
    with pytest.raises(UsageError, match=r"a memory limit of 1\.0 kB is below the [\d.]+ [kM]B of \w+, which"):
        open_pipeline(little_folder, replace(settings, memory_limit=1000))
    assert opened == []


def test_a_server_has_the_networks_of_a_larger_folder_open_in_turns(little_folder, opened):
    warm = WarmPipelines(SessionChoice(), 1000)
    pipeline = warm.get(little_folder, (), None, safety=True)
    assert pipeline.generate(REQUEST).pictures
    assert "unet" not in pipeline._networks
    assert names(opened).count("unet") == 1


@pytest.mark.parametrize(
    ("words", "unet"),
    [
        ((), "unet/model"),
        (("--control", "edges={}"), "unet/controlnet"),
        (("--control", "edges={}", "--ip-adapter", "{}"), "unet/controlnet_ip_adapter"),
    ],
)
def test_generate_opens_the_unet_that_is_drawn_with_alone(words, unet, opened, tmp_path):
    drawing = tmp_path / "drawing.png"
    Image.new("RGB", (32, 32), "white").save(drawing)
    asked = [word.format(drawing) for word in words]
    folder = str(little_guided())
    assert (
        run_command_line(["generate", folder, "a circle", *asked, "--steps", "2", "-o", str(tmp_path / "a.png")]) == 0
    )
    found = {f"{path.parent.name}/{path.stem}" for path in opened}
    led = {"controlnet/model"} if "--control" in words else set()
    shown = {"image_encoder/model"} if "--ip-adapter" in words else set()
    assert found == {"text_encoder/model", unet, "vae_decoder/model"} | led | shown
    assert len(opened) == len(found)


ENDING = """
import sys, time
from olivelike.cli.app import run_command_line
from olivelike.runtime.pipeline import networks

real = networks.open_session
def slow(path, *others):
    if path.parent.name == "unet":
        time.sleep(0.5)
        print("opening", flush=True)
        try:
            return real(path, *others)
        finally:
            print("opened", flush=True)
    return real(path, *others)
networks.open_session = slow
sys.exit(run_command_line(["generate", sys.argv[1], "a", "-o", sys.argv[2]]))
"""


def test_a_process_that_ends_with_an_error_ends_what_is_being_opened_first(little_folder, tmp_path):
    folder = tmp_path / "pipeline"
    shutil.copytree(little_folder, folder)
    (folder / "text_encoder" / "model.onnx").write_bytes(b"no model")
    command = [sys.executable, "-c", ENDING, str(folder), str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [word for word in done.stdout.split() if word in {"opening", "opened"}]
    assert (done.returncode, said) == (3, ["opening", "opened"])
    assert "no ONNX model" in done.stderr
