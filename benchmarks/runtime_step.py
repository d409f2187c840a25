"""A denoising step of the runtime against torch: SD 1.5 at real size, pictures of 256 by 256, on the CPU.

    python benchmarks/runtime_step.py --folder DIR    # makes a checkpoint of 5.5 GB and two outputs in DIR, or takes
                                                      # what is there
    python benchmarks/runtime_step.py --quick         # tiny networks, a few minutes
    python benchmarks/runtime_step.py --plugin        # OpenVINO as a package and as a plugin of ONNX Runtime
                                                      # (pip install onnxruntime-ep-openvino)

Latents of 32 by 32; one picture, so the UNet's batch is 2. Each engine runs in a process of its own, and they take
turns: in float32 target `cpu` against eager torch and torch.compile; in bfloat16 target `openvino` against torch's
best, eager and compiled, also with channels last; and each output's steps against the calls of the UNet in them, which
is what the loop adds. A step is a UNet evaluation with guidance and scheduler; medians over batches. Prints tables.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from spine import make_checkpoint, run

from olivelike.extras.bench.engines import session_settings
from olivelike.extras.bench.torch_engine import TorchJob
from olivelike.measure.contest.contest import contest
from olivelike.measure.contest.engine import Turn
from olivelike.measure.contest.runtime_engine import PipelineJob
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import find_provider
from olivelike.runtime.sessions.session import Call
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings

if TYPE_CHECKING:
    from olivelike.measure.contest.contest import Event, Measured
    from olivelike.measure.contest.engine import Job
    from olivelike.runtime.sessions.session import BoundCall

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
SIDE = 256
LIMIT = 3600.0


def optimise(folder: Path, source: Path, target: str, half: str = "") -> Path:
    """Optimise the checkpoint for a target, unless that is done, and return the output.

    `half` is a pass for half precision, put behind the others.
    """
    project = folder / f"step-{source.name}"
    name = target + half.replace(", ", "-")
    path = project / "workflows" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    chains = "\n".join(f"  {name}: [convert, fuse{half}]" for name in COMPONENTS)
    path.write_text(
        f"source: {source}\ntarget: {target}\ncomponents:\n{chains}\noutput: models/{name}\n", encoding="utf-8"
    )
    run(path)
    return project / "models" / name


def sessions_for(target: str) -> SessionSettings:
    """Return the settings of bench's engine for a target."""
    choice = ProviderChoice(find_provider(target))
    engine = "openvino" if target == "openvino" else "onnxruntime"
    return session_settings(engine, SessionSettings((choice,)))


def ours(output: Path, target: str, steps: int, side: int) -> PipelineJob:
    """Return the job of an output in the runtime."""
    engine = "openvino" if target == "openvino" else "onnxruntime"
    return PipelineJob(engine, output, sessions_for(target), (side, side), steps, safety=False)


def compare_plugin(folder: Path, source: Path, side: int, rounds: int) -> None:
    """Print what a UNet call takes in OpenVINO, the package and the plugin, calls taking turns in one process.

    The plugin also runs the graph that is for the package, with ai.onnx Attention in it.
    """
    outputs = {target: optimise(folder, source, target) for target in ("openvino", "openvino_ep")}
    rows = {
        "package": ("openvino", "openvino"),
        "plugin": ("openvino_ep", "openvino_ep"),
        "plugin, graph for the package": ("openvino_ep", "openvino"),
    }
    for precision in ("f32", "bf16"):
        hint = {"INFERENCE_PRECISION_HINT": precision}
        options = {"openvino": hint, "openvino_ep": {"load_config": json.dumps({"CPU": hint})}}
        calls = {
            name: unet_call(outputs[graphs], ProviderChoice(find_provider(target), options[target]), side // 8)
            for name, (target, graphs) in rows.items()
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call.run()
                times[name].append(time.perf_counter() - start)
        print(f"\nUNet call, {precision}\n\n| engine | median seconds | least | of the package's, round by round |")
        print("| --- | --- | --- | --- |")
        for name, (_, *taken) in times.items():  # The first compiles.
            shares = [own / base for own, base in zip(taken, times["package"][1:], strict=True)]
            print(f"| {name} | {statistics.median(taken):.3f} | {min(taken):.3f} | {statistics.median(shares):.2f} |")


def unet_call(output: Path, choice: ProviderChoice, side: int) -> BoundCall:
    """Return a call of an output's UNet for one picture with guidance, on random numbers."""
    import numpy as np

    generator = np.random.default_rng(0)
    session = open_session(output / "unet" / "model.onnx", SessionSettings((choice,)))
    sizes = {"sample": (2, 4, side, side), "encoder_hidden_states": (2, 77)}
    inputs = {}
    for name, spec in session.inputs.items():
        known = sizes.get(name, ())
        shape = [dim if isinstance(dim, int) else (*known, 2)[place] for place, dim in enumerate(spec.dims)]
        inputs[name] = generator.random(shape).astype(spec.dtype)
    return session.bind(inputs, {name: np.empty(sizes["sample"], np.float32) for name in session.outputs})


def overhead(job: PipelineJob) -> tuple[float, float]:
    """Return the median seconds of a step and of its UNet call alone, timed in the same steps of one process."""
    pipeline = open_pipeline(job.folder, job.sessions, safety=False)
    calls: list[float] = []
    ends: list[float] = []
    run = Call.run

    def timed(call: Call) -> None:
        start = time.perf_counter()
        run(call)
        calls.append(time.perf_counter() - start)

    request = Request(("a lighthouse on a cliff at dusk",), steps=10, size=job.size, seed=1)
    pipeline.generate(replace(request, steps=2))
    with patch.object(Call, "run", timed):
        pipeline.generate(request, on_step=lambda _: ends.append(time.perf_counter()))
    steps = [end - start for start, end in itertools.pairwise(ends)]
    # Text encoder and VAE have a call each, before and after those of the steps.
    return statistics.median(steps), statistics.median(calls[2 : 1 + len(ends)])


def measure(title: str, jobs: dict[str, Job], rounds: int) -> None:
    """Measure engines against each other, and print a table."""

    def tell(event: Event) -> None:
        if event.name in ("opened", "warmed_up", "failed"):
            print(f"  {event.engine}: {event.name} {event.text}", file=sys.stderr, flush=True)

    turn = Turn("a lighthouse on a cliff at dusk", 1, 1)
    results = contest(jobs, [turn], [turn] * rounds, LIMIT, tell)
    print(f"\n{title}\n\n| engine | seconds per step | times as fast as the first | peak resident GB |")
    print("| --- | --- | --- | --- |")
    first: float | None = None
    for name, result in results.items():
        step = step_seconds(result)
        if step is None or result.peak_bytes is None:
            print(f"| {name} | {result.status}: {result.message[:200]} | | |", flush=True)
            continue
        first = first or step
        print(f"| {name} | {step:.3f} | {first / step:.2f} | {result.peak_bytes / 1e9:.2f} |", flush=True)


def step_seconds(result: Measured) -> float | None:
    """Return the median seconds of a step; `None` if there is no result."""
    steps = [timing.loop / timing.steps for timing in result.timings if timing.loop and timing.steps]
    return statistics.median(steps) if result.status == "ok" else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    parser.add_argument("--folder", type=Path, help="where checkpoint and outputs go (kept)")
    parser.add_argument("--steps", type=int, default=4, help="of each batch")
    parser.add_argument("--rounds", type=int, default=5, help="measured batches of each engine")
    parser.add_argument("--plugin", action="store_true", help="OpenVINO alone, as a package and as a plugin")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        size, side = ("tiny", 64) if options.quick else ("full", SIDE)
        source = folder / f"{size}-0"
        make_checkpoint(source, 0, size)
        if options.plugin:
            compare_plugin(folder, source, side, options.rounds)
            return
        halves = {"cpu": "", "openvino": ", bfloat16"}
        outputs = {target: optimise(folder, source, target, half) for target, half in halves.items()}
        jobs = {target: ours(output, target, options.steps, side) for target, output in outputs.items()}

        def torch(engine: str, dtype: str, *, channels_last: bool = False) -> TorchJob:
            return TorchJob(
                engine, outputs["cpu"], SessionSettings(), (side, side), options.steps, safety=False,
                checkpoint=str(source), torch_dtype=dtype, channels_last=channels_last,
            )  # fmt: skip

        single: dict[str, Job] = {
            "torch, eager": torch("torch", "float32"),
            "torch.compile": torch("torch-compile", "float32"),
            "olivelike, target cpu": jobs["cpu"],
        }
        half: dict[str, Job] = {
            "torch, eager": torch("torch", "bfloat16"),
            "torch, eager, channels last": torch("torch", "bfloat16", channels_last=True),
            "torch.compile": torch("torch-compile", "bfloat16"),
            "torch.compile, channels last": torch("torch-compile", "bfloat16", channels_last=True),
            "olivelike, target openvino": jobs["openvino"],
        }
        if options.no_compile:
            single, half = (
                {name: job for name, job in group.items() if "compile" not in name} for group in (single, half)
            )
        measure("float32", single, options.rounds)
        measure("bfloat16", half, options.rounds)
        for target, job in jobs.items():
            step, call = overhead(job)
            print(
                f"\n{target}: a step of the loop takes {step:.4f} s, its UNet call {call:.4f} s: "
                f"overhead {(step / call - 1) * 100:.2f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
