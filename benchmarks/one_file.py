"""A pipeline in one file against the same networks in sessions of their own: time of a picture, and memory.

    python benchmarks/one_file.py                              # the demo
    python benchmarks/one_file.py --source DIR --size 256      # a checkpoint of diffusers

Both are made here, for target `cpu`. Each runs in a process of its own, and they take turns. Prints a table of medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.measure.contest.contest import contest
from olivelike.measure.contest.engine import ONNXRUNTIME, Turn
from olivelike.measure.contest.runtime_engine import NetworkJob, PipelineJob
from olivelike.model.components import PIPELINE_FILE
from olivelike.runtime import SessionSettings

LIMIT = 3600.0
WORKFLOW = """
source: {source}
target: cpu
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse]
  vae_decoder: [convert, fuse]
  safety_checker: [convert, fuse]
outputs: [{{path: separate}}, {{path: one, layout: single-ids}}]
"""


def main() -> None:
    """Make both, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="demo", help="a name, a folder or a file, as workflows take it")
    parser.add_argument("--folder", type=Path, help="where to make both; by default a temporary folder")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        workflow = folder / "one_file.yaml"
        workflow.write_text(WORKFLOW.format(source=asked.source), encoding="utf-8")
        run(str(workflow), Options(cache_dir=folder / "cache"))
        sizes = {"height": asked.size, "width": asked.size, "steps": asked.steps}
        separate = PipelineJob(
            ONNXRUNTIME, folder / "separate", SessionSettings(), (asked.size, asked.size), asked.steps, safety=True
        )
        jobs = {"separate": separate, "one file": NetworkJob(folder / "one" / PIPELINE_FILE, SessionSettings(), sizes)}
        measured = contest(jobs, [Turn("a red circle")] * 2, [Turn("a red circle")] * asked.runs, LIMIT)
    print(f"{asked.source}, {asked.size}x{asked.size}, {asked.steps} steps, {asked.runs} pictures by turns")
    for name, one in measured.items():
        seconds = [timing.seconds for timing in one.timings]
        memory = (one.peak_bytes or 0) / 1e6
        print(f"{name:<10} median {statistics.median(seconds):8.3f} s  least {min(seconds):8.3f} s  {memory:8.1f} MB")


if __name__ == "__main__":
    main()
