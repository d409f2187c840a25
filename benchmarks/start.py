r"""Seconds from a command to its first step and to its picture, beside torch, OpenVINO GenAI, stable-diffusion.cpp.

    python -m venv PEER && PEER/bin/pip install openvino-genai "optimum-intel[openvino]" stable-diffusion-cpp-python
    PEER/bin/optimum-cli export openvino --model CHECKPOINT --weight-format fp16 GENAI
    python benchmarks/start.py --ours models/cpu --ours models/openvino --torch CHECKPOINT \
        --peer PEER/bin/python --genai GENAI --sd-cpp CHECKPOINT.safetensors
    python benchmarks/start.py --ours models/cpu --networks    # and what opening all networks takes, against `cat`

Each command is a fresh process, and all take turns; what they read is in the page cache, since each is run once before.
Memory is the highest resident memory of the process. Prints a table of medians; nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

PROMPT = "a lighthouse on a cliff at dusk"
STEP = "first step"


def tell() -> None:
    """Say that a step is done."""
    print(STEP, flush=True)


def draw_with_torch(checkpoint: str, side: int, steps: int) -> None:
    """Be diffusers, in float32."""
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint)
    pipeline.set_progress_bar_config(disable=True)

    def on_step(*arguments: object) -> object:
        tell()
        return arguments[-1]

    pipeline(PROMPT, height=side, width=side, num_inference_steps=steps, callback_on_step_end=on_step)


def draw_with_genai(folder: str, side: int, steps: int, precision: str) -> None:
    """Be OpenVINO GenAI."""
    import openvino_genai

    pipeline = openvino_genai.Text2ImagePipeline(folder, "CPU", INFERENCE_PRECISION_HINT=precision)

    def on_step(*_: object) -> bool:
        tell()
        return False

    pipeline.generate(PROMPT, height=side, width=side, num_inference_steps=steps, callback=on_step)


def draw_with_sd_cpp(checkpoint: str, side: int, steps: int) -> None:
    """Be stable-diffusion.cpp."""
    from stable_diffusion_cpp import StableDiffusion

    output = os.dup(1)  # It turns the other one off.

    def on_step(step: int, *_: object) -> None:
        if step:
            os.write(output, f"{STEP}\n".encode())

    model = StableDiffusion(model_path=checkpoint, wtype="f32", n_threads=os.cpu_count(), verbose=False)
    model.generate_image(
        prompt=PROMPT, width=side, height=side, sample_steps=steps, sample_method="euler", progress_callback=on_step
    )


def open_all(folder: str, kept: str = "") -> None:
    """Open each network of a picture, in the threads that `generate` has."""
    from dataclasses import replace

    from olivelike.runtime.pipeline.networks import Networks
    from olivelike.runtime.pipeline.pipeline_folder import open_folder, read_folder_target, target_settings
    from olivelike.runtime.sessions.compiled import compiled_folder

    path = Path(folder)
    names = list(open_folder(path).models(safety=True))
    settings = target_settings(read_folder_target(path))
    if kept:
        settings = replace(settings, compiled=compiled_folder(), keep_compiled=True)
    began = time.perf_counter()
    networks = Networks(open_folder(path), settings, {})
    networks.begin(names)
    for name in names:
        networks.get(name)
    print(f"opened {time.perf_counter() - began}", flush=True)


def open_genai(folder: str, precision: str) -> None:
    """Open text encoders, UNet and VAE decoder in OpenVINO GenAI."""
    import openvino_genai

    began = time.perf_counter()
    openvino_genai.Text2ImagePipeline(folder, "CPU", INFERENCE_PRECISION_HINT=precision)
    print(f"opened {time.perf_counter() - began}", flush=True)


PEERS: dict[str, Callable[..., None]] = {
    "torch": draw_with_torch, "genai": draw_with_genai, "sd.cpp": draw_with_sd_cpp, "networks": open_all,
    "genai-networks": open_genai,
}  # fmt: skip


@dataclass
class Started:
    """What one process took."""

    step: float
    """Seconds until its first step, or that its networks took to open, or a file to be read."""
    end: float
    """Seconds until it ended."""
    peak: int
    """Bytes."""


def start(command: list[str], is_step: Callable[[str], bool]) -> Started:
    """Run a command to its end; the first line that is a step counts."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            try:
                peak[0] = max(peak[0], psutil.Process(process.pid).memory_info().rss)
            except psutil.Error:
                return
            time.sleep(0.02)

    watching = threading.Thread(target=watch)
    watching.start()
    assert process.stdout is not None
    step = float("nan")
    for line in process.stdout:
        if is_step(line):
            step = float((*line.split(), 0)[1]) if line.startswith("opened ") else time.perf_counter() - began
            break
    process.stdout.read()
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    watching.join()
    return Started(step, time.perf_counter() - began, peak[0])


def is_told(line: str) -> bool:
    """Return whether a peer says that a step is done."""
    return line.startswith((STEP, "opened"))


def is_event(line: str) -> bool:
    """Return whether `generate --json` says so."""
    return json.loads(line)["event"] == "step"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", action="append", default=[], help="an optimised folder")
    parser.add_argument("--torch", help="the checkpoint as diffusers has it")
    parser.add_argument("--peer", help="Python of the environment of the peers")
    parser.add_argument(
        "--genai", action="append", default=[], help="what optimum-intel exported, and a precision: DIR:f32"
    )
    parser.add_argument("--sd-cpp", help="the checkpoint in one file")
    parser.add_argument("--networks", action="store_true", help="open all networks, too")
    parser.add_argument("--kept", action="store_true", help="and ours with --keep-compiled")
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        name, place, *others = options.work
        PEERS[name](place, *(int(one) if one.isdecimal() else one for one in others))
        return
    sizes = [str(options.side), str(options.steps)]
    here, peer = [sys.executable, __file__, "--work"], [options.peer or sys.executable, __file__, "--work"]
    commands: dict[str, tuple[list[str], Callable[[str], bool]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ours in options.ours:
            asked = ["--size", f"{sizes[0]}x{sizes[0]}", "--steps", sizes[1], "--seed", "1", "--json", "--overwrite"]
            command = [sys.executable, "-m", "olivelike", "generate", ours, PROMPT, *asked, "-o", f"{folder}/a.png"]
            commands[f"generate {ours}"] = command, is_event
            if options.networks:
                commands[f"all networks of {ours}"] = [*here, "networks", ours], is_told
            if options.kept:
                commands[f"generate {ours} --keep-compiled"] = [*command, "--keep-compiled"], is_event
                if options.networks:
                    commands[f"all networks of {ours}, kept"] = [*here, "networks", ours, "kept"], is_told
            if options.networks:
                files = [str(path) for path in Path(ours).rglob("*") if path.is_file()]
                commands[f"cat of {ours}"] = ["sh", "-c", 'cat "$@" > /dev/null; echo opened', "cat", *files], is_told
        if options.torch:
            commands["diffusers, float32"] = [*here, "torch", options.torch, *sizes], is_told
        for genai in options.genai:
            place, _, precision = genai.rpartition(":")
            commands[f"OpenVINO GenAI, {precision}"] = [*peer, "genai", place, *sizes, precision], is_told
            if options.networks:
                named = f"networks in OpenVINO GenAI, {precision}"
                commands[named] = [*peer, "genai-networks", place, precision], is_told
        if options.sd_cpp:
            commands["stable-diffusion.cpp, f32"] = [*peer, "sd.cpp", options.sd_cpp, *sizes], is_told
        found: dict[str, list[Started]] = {name: [] for name in commands}
        for turn in range(options.runs + 1):
            for name, (command, is_step) in commands.items():
                one = start(command, is_step)
                if turn:
                    found[name].append(one)
    print("| command | first step, s | end, s | peak, GB |\n| --- | --- | --- | --- |")
    for name, all_of in found.items():
        step, end = (statistics.median(getattr(one, part) for one in all_of) for part in ("step", "end"))
        print(f"| {name} | {step:.2f} | {end:.2f} | {max(one.peak for one in all_of) / 1e9:.2f} |")


if __name__ == "__main__":
    main()
