"""What cheap steps buy: pictures of one folder, whole and with cheaper steps, and fewer whole steps, interleaved.

    python -m olivelike.testing make-checkpoint sd15 --size full --seed 1 full
    olivelike run sd15_cpu --set source=full --set components.unet='[convert, fuse, deepcache]' --set output=models/full
    python benchmarks/few_steps.py --folder models/full --size 256x256            # minutes for each round

Each round draws by every way, in an order that rotates; medians, and each round's ratio to the whole picture. PSNR is
against the picture of all steps; of random weights it says little, of `--folder models/demo` more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.request import parse_interval, parse_size

if TYPE_CHECKING:
    from olivelike.runtime import Pipeline
    from olivelike.runtime.pipeline.request import RequestFields


def draw(pipeline: Pipeline, options: argparse.Namespace, more: RequestFields) -> tuple[float, np.ndarray]:
    """Return the seconds of a picture and its pixels."""
    fields: RequestFields = {
        "steps": options.steps,
        "seed": 1,
        "size": options.size,
        "prompts": (options.prompt,),
        **more,
    }
    began = time.perf_counter()
    result = pipeline.generate(Request(**fields))
    return time.perf_counter() - began, np.asarray(result.pictures[0].image, np.float64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", type=parse_size, help="such as 256x256; by default the UNet's own")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval", type=int, default=3, help="of the deep layers")
    parser.add_argument("--guidance", type=parse_interval, default=(0.0, 0.6), help="interval such as 0:0.6")
    parser.add_argument("--prompt", default="a red circle")
    options = parser.parse_args()

    cached: RequestFields = {"cache_interval": options.interval}
    fewer = -(-options.steps // options.interval)
    ways: dict[str, RequestFields] = {
        "whole": {},
        "two calls": {"guidance_calls": "two"},
        f"cache {options.interval}": cached,
        "guidance": {"guidance_interval": options.guidance},
        "both": {**cached, "guidance_interval": options.guidance},
        f"{fewer} steps": {"steps": fewer},
        f"{fewer + options.steps // 10} steps": {"steps": fewer + options.steps // 10},
    }
    pipeline = open_pipeline(options.folder, safety=False)
    for more in ways.values():  # Buffers are made, and the shallow graph is opened.
        draw(pipeline, options, {**more, "steps": max(options.interval, 4)})
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    pictures: dict[str, np.ndarray] = {}
    names = list(ways)
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken, pictures[name] = draw(pipeline, options, ways[name])
            seconds[name].append(taken)
    print(f"{options.folder}, {options.steps} steps, {options.rounds} rounds")
    print(f"{'way':12}{'seconds':>10}{'times as fast':>16}{'PSNR':>9}")
    for name, own in seconds.items():
        ratio = statistics.median([first / one for first, one in zip(seconds["whole"], own, strict=True)])
        error = float(np.mean((pictures[name] - pictures["whole"]) ** 2))
        psnr = 10 * np.log10(255**2 / error) if error else np.inf
        print(f"{name:12}{statistics.median(own):10.2f}{ratio:16.2f}{psnr:9.1f}")


if __name__ == "__main__":
    main()
