"""A denoising step beside stable-diffusion.cpp and torch: SD 1.5 at real size, on the CPU, one interleaved run.

    python -m venv PEER && PEER/bin/pip install stable-diffusion-cpp-python    # builds it for this processor
    python benchmarks/sd_cpp.py --peer PEER/bin/python --folder DIR            # DIR as in runtime_step.py
    python benchmarks/sd_cpp.py --peer PEER/bin/python --side 512 --steps 2    # another size, fewer steps a turn
    python benchmarks/sd_cpp.py --peer PEER/bin/python --checkpoint FILE --ours models/fp32 --ours models/w8

The last compares quantised outputs with its q8_0: pictures of the same noise are compared with those of the first of
`--ours` and of its f16. FILE is the single-file checkpoint that the outputs were made of.

Each engine is a process of its own, is warmed up, and then they take turns. A step is what the sampler takes for one
picture with guidance: one UNet call on two rows here and in diffusers, two calls on one row in stable-diffusion.cpp.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.measure.contest.runtime_engine import PipelineJob

PROMPT = "a lighthouse on a cliff at dusk"
_LIMIT = 3600.0


def work(checkpoint: str, weights: str, side: int, steps: int) -> None:
    """Be the peer: draw once for each line that comes, save the picture there, and answer with the steps' seconds."""
    import time

    from stable_diffusion_cpp import StableDiffusion

    answers = sys.stdout
    sys.stdout = sys.stderr
    model = StableDiffusion(model_path=checkpoint, wtype=weights, n_threads=2, diffusion_flash_attn=True, verbose=False)
    for line in sys.stdin:
        marks: list[float] = []
        pictures = model.generate_image(
            prompt=PROMPT, width=side, height=side, sample_steps=steps, sample_method="euler", cfg_scale=7.5,
            seed=1, progress_callback=lambda *_, marks=marks: marks.append(time.perf_counter()),
        )  # fmt: skip
        if line.strip():
            pictures[0].save(line.strip())
        seconds = [end - start for start, end in itertools.pairwise(marks)]
        print(json.dumps(seconds), file=answers, flush=True)


class Peer:
    """A process of stable-diffusion.cpp."""

    def __init__(self, python: str, checkpoint: Path, weights: str, side: int, steps: int) -> None:
        command = [python, __file__, "--worker", str(checkpoint), weights, str(side), str(steps)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def steps(self, picture: Path | None = None) -> list[float]:
        """Draw, keep the picture if asked to, and return the seconds of its steps."""
        self._process.stdin.write(f"{picture or ''}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def peak_bytes(self) -> int:
        """Return the most that was resident."""
        import psutil

        status = (
            Path(f"/proc/{self._process.pid}/status").read_text("ascii", "replace") if sys.platform == "linux" else ""
        )
        peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), None)
        return int(peak) * 1024 if peak else psutil.Process(self._process.pid).memory_info().rss

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Own:
    """A process of `olivelike bench`: the runtime, or torch."""

    def __init__(self, job: PipelineJob, log: Path) -> None:
        from olivelike.measure.contest.contest import Child
        from olivelike.measure.contest.engine import encode_job

        self._child, self._peak = Child(log), 0
        self._child.ask(encode_job(job), _LIMIT)

    def steps(self) -> list[float]:
        """Draw, and return the seconds of its steps, each their mean."""
        from olivelike.measure.contest.engine import Turn

        answer = self._child.ask(vars(Turn(PROMPT, 1, 1)), _LIMIT)
        self._peak = answer["peak_bytes"]
        timing = answer["timing"]
        return [timing["loop"] / timing["steps"]] * timing["steps"]

    def peak_bytes(self) -> int:
        """Return the most that was resident."""
        return self._peak

    def stop(self) -> None:
        """End it."""
        self._child.stop()


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:4], *map(int, sys.argv[4:6]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python with stable-diffusion-cpp-python")
    parser.add_argument("--folder", type=Path, help="where checkpoint and outputs go (kept)")
    parser.add_argument("--side", type=int, default=256, help="of the picture, in pixels")
    parser.add_argument("--steps", type=int, default=4, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checkpoint", type=Path, help="single file; with --ours")
    parser.add_argument("--ours", type=Path, action="append", help="output to compare; the first one is in float")
    options = parser.parse_args()
    if options.ours:
        compare_quantised(options)
        return

    from runtime_step import make_checkpoint, optimise, ours

    from olivelike.extras.bench.torch_engine import TorchJob
    from olivelike.runtime.sessions.session_settings import SessionSettings
    from olivelike.testing.single_file_writer import make_single_file

    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        source = folder / "full-0"
        make_checkpoint(source, 0, "full")
        single = source.with_suffix(".safetensors")  # It reads no folder without a second text encoder.
        if not single.is_file():
            make_single_file(source, single)
        cpu, openvino = optimise(folder, source, "cpu"), optimise(folder, source, "openvino", ", bfloat16")
        size = (options.side, options.side)

        def torch(engine: str, dtype: str, *, channels_last: bool = False) -> TorchJob:
            return TorchJob(
                engine, cpu, SessionSettings(), size, options.steps, safety=False, checkpoint=str(source),
                torch_dtype=dtype, channels_last=channels_last,
            )  # fmt: skip

        groups = {
            "float32": {
                "olivelike, target cpu": ours(cpu, "cpu", options.steps, options.side),
                "torch, eager": torch("torch", "float32"),
                "torch.compile": torch("torch-compile", "float32"),
            },
            "bfloat16": {
                "olivelike, target openvino": ours(openvino, "openvino", options.steps, options.side),
                "torch, eager, channels last": torch("torch", "bfloat16", channels_last=True),
                "torch.compile, channels last": torch("torch-compile", "bfloat16", channels_last=True),
            },
        }
        for precision, jobs in groups.items():  # All at once do not fit into 24 GB.
            engines: dict[str, Own | Peer] = {}
            try:
                for number, (name, job) in enumerate(jobs.items()):
                    engines[f"{name}, {precision}"] = Own(job, Path(temporary, f"{number}.log"))
                for weights in ("f16", "q8_0"):
                    name = f"stable-diffusion.cpp, {weights}"
                    engines[name] = Peer(options.peer, single, weights, options.side, options.steps)
                compare(engines, options.rounds, f"{precision}, {options.side} by {options.side} pixels")
            finally:
                for engine in engines.values():
                    engine.stop()


def compare_quantised(options: argparse.Namespace) -> None:
    """Compare outputs and the peer's f16 and q8_0: size, seconds, memory, and PSNR to each one's own float."""
    from PIL import Image
    from runtime_step import ours

    from olivelike import Request, open_pipeline

    def psnr(picture: Path, reference: Path) -> str:
        import numpy as np

        pair = [np.asarray(Image.open(path), dtype=float) for path in (picture, reference)]
        error = float(((pair[0] - pair[1]) ** 2).mean())
        return f"{10 * np.log10(255**2 / error):.1f} dB" if error else "equal"

    side, steps = options.side, options.steps
    with tempfile.TemporaryDirectory() as temporary:
        pictures, engines = {}, {}
        for output in options.ours:
            request = Request((PROMPT,), steps=steps, size=(side, side), seed=1)
            pictures[output.name] = Path(temporary, f"{output.name}.png")
            open_pipeline(output, safety=False).generate(request).pictures[0].image.save(pictures[output.name])
        try:
            for output in options.ours:
                engines[output.name] = Own(ours(output, "cpu", steps, side), Path(temporary, f"{output.name}.log"))
            for weights in ("f16", "q8_0"):
                name = f"stable-diffusion.cpp, {weights}"
                engines[name] = Peer(options.peer, options.checkpoint, weights, side, steps)
                pictures[name] = Path(temporary, f"{weights}.png")
                engines[name].steps(pictures[name])
            compare(engines, options.rounds, f"{side} by {side} pixels")
        finally:
            for engine in engines.values():
                engine.stop()
        print("\n| picture | PSNR to its own float |\n| --- | --- |")
        names = list(pictures)
        for number, name in enumerate(names):
            if number not in (0, len(options.ours)):
                reference = names[0] if number < len(options.ours) else names[len(options.ours)]
                print(f"| {name} | {psnr(pictures[name], pictures[reference])} |")
    for output in options.ours:
        total = sum(path.stat().st_size for path in output.glob("*/*.*") if path.parent.name != "safety_checker")
        print(f"{output.name}: {total / 1e6:.0f} MB without the safety checker")


def compare(engines: dict[str, Own | Peer], rounds: int, title: str) -> None:
    """Let engines take turns, and print a table."""
    for name, engine in engines.items():
        print(f"  warming up {name}", file=sys.stderr, flush=True)
        engine.steps()
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds):
        order = list(engines)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            taken[name] += engines[name].steps()
    first = statistics.median(next(iter(taken.values())))
    print(f"\n{title}\n\n| engine | seconds per step | of the first | peak resident GB |\n| --- | --- | --- | --- |")
    for name, seconds in taken.items():
        step, peak = statistics.median(seconds), engines[name].peak_bytes() / 1e9
        print(f"| {name} | {step:.3f} | {step / first:.2f} | {peak:.2f} |", flush=True)


if __name__ == "__main__":
    main()
