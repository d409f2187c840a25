"""What a matrix costs beside single runs, and how planning and running grow.

    python benchmarks/fleet.py                  # 100 combinations of the demo's text encoder and VAE decoder
    python benchmarks/fleet.py --grow 1111      # plan 1, 11, 111 and 1111 combinations, about 9 nodes each
    python benchmarks/fleet.py --cluster        # 8 networks, traced anew, on 1 and 2 Dask workers, in turn

Ratios are of one run of this script; seconds are those of this machine and what else it did. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from olivelike.data import demo_folder
from olivelike.engine.fleet import plan_fleet
from olivelike.engine.prepared import Options

TARGETS = ("cpu", "cuda", "directml", "tensorrt", "migraphx")
HALF = "{components: {text_encoder: [convert, fuse, float16], vae_decoder: [convert, fuse, float16]}}"
PLAIN = "{components: {vae_decoder: [convert, fuse: {group_norm: false}]}}"


def write_workflow(folder: Path, sources: int, devices: int = 1) -> Path:
    """Write a matrix of `sources * 20 * devices` combinations; sources are copies of the demo with other weights."""
    for number in range(sources):
        copy = folder / f"c{number}"
        if not copy.exists():
            shutil.copytree(demo_folder(), copy)
            for weights in (*copy.glob("text_encoder/*.safetensors"), *copy.glob("vae/*.safetensors")):
                data = bytearray(weights.read_bytes())
                data[-2] = number  # The low byte of the last float16.
                weights.write_bytes(data)
    file = folder / f"fleet-{sources}-{devices}.yaml"
    names = ", ".join(f"./c{number}" for number in range(sources))
    file.write_text(
        "name: fleet\ncomponents:\n  text_encoder: [convert, fuse]\n  vae_decoder: [convert, fuse]\nmatrix:\n"
        f"  source: [{names}]\n  target: [{', '.join(TARGETS)}]\n"
        f"  precision: {{full: , half: {HALF}}}\n  fusion: {{all: , plain: {PLAIN}}}\n"
        f"  target.device_id: [{', '.join(map(str, range(devices)))}]\noutput: out\n",
        encoding="utf-8",
    )
    return file


def write_networks(folder: Path, count: int) -> Path:
    """Write a matrix of text encoders of other depths, each of which takes seconds to trace."""
    from transformers import CLIPTextConfig, CLIPTextModel

    for number in range(count):
        copy = folder / f"n{number}"
        shutil.copytree(demo_folder(), copy)
        config = json.loads((copy / "text_encoder" / "config.json").read_text(encoding="utf-8"))
        config |= {"num_hidden_layers": 12 + number}
        CLIPTextModel(CLIPTextConfig(**config)).half().save_pretrained(copy / "text_encoder")
    file = folder / "networks.yaml"
    names = ", ".join(f"./n{number}" for number in range(count))
    file.write_text(
        "name: networks\ncomponents:\n  text_encoder: [convert: {fresh: true}, fuse]\n"
        f"matrix:\n  source: [{names}]\ntarget: cpu\noutput: out\n",
        encoding="utf-8",
    )
    return file


def count_loops(processes: int) -> float:
    """Return the loops per second of so many busy processes at once: what the cores allow."""
    loop = "import time; t = time.perf_counter(); sum(range(100_000_000)); print(time.perf_counter() - t)"
    busy = [subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(1 / float(process.communicate()[0]) for process in busy)


def compare_workers(place: Path) -> None:
    """Print how much faster two workers are than one, where nodes take longer than giving them out."""
    times: dict[int, list[float]] = {1: [], 2: []}
    allowed = []
    file = write_networks(place, 8)
    for turn in range(3):
        allowed.append(count_loops(2) / count_loops(1))
        for workers, found in times.items():
            name = f"{workers}-{turn}"
            found.append(
                run(str(file), "--cluster", f"local:{workers}", "--cache-dir", str(place / f"cluster-{name}"),
                    "--output", str(place / f"cluster-output-{name}"))
            )  # fmt: skip
    one, two = (statistics.median(found) for found in times.values())
    print(f"8 networks on local:1 and local:2: {one:.1f} and {two:.1f} s, medians of 3: {one / two:.2f}")
    print(f"two busy loops beside one, before each: {', '.join(f'{ratio:.2f}' for ratio in allowed)}")


def run(*arguments: str) -> float:
    """Run `olivelike run`; return its seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "olivelike", "run", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure_plan(file: Path, cache: Path) -> tuple[int, float, float]:
    """Plan in a process of its own; return nodes, CPU seconds with imports, and peak memory in MB."""
    code = f"import runpy, sys; sys.argv = ['fleet', '--plan', {str(file)!r}, {str(cache)!r}]; "
    code += f"runpy.run_path({__file__!r}, run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    nodes, seconds, megabytes = json.loads(found.stdout)
    return nodes, seconds, megabytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grow", type=int, default=0, metavar="N", help="plan up to N combinations")
    parser.add_argument("--cluster", action="store_true", help="compare 1 and 2 Dask workers instead")
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        fleet = plan_fleet(options.plan[0], Options(cache_dir=Path(options.plan[1])))
        nodes = sum(len(plan.nodes) for _, plan in fleet.plans.values())
        print(json.dumps([nodes, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        if options.cluster:
            compare_workers(place)
            return
        if options.grow:
            print("| combinations | nodes | CPU seconds | per node, ms | MB |\n| --- | --- | --- | --- | --- |")
            count = 1
            while count <= options.grow:
                file = write_workflow(place, 1, math.ceil(count / 20))
                nodes, seconds, megabytes = measure_plan(file, place / "none")
                each = 1000 * seconds / nodes
                print(f"| {20 * math.ceil(count / 20)} | {nodes} | {seconds:.2f} | {each:.2f} | {megabytes:.0f} |")
                count = 10 * count + 1
            return
        file = write_workflow(place, 5)
        nodes, seconds, megabytes = measure_plan(file, place / "none")
        print(f"plan of 100 combinations, {nodes} nodes: {seconds:.2f} CPU s, {megabytes:.0f} MB")
        all_of_them = run(str(file), "--cache-dir", str(place / "all"), "--output", str(place / "outputs"))
        singles = [
            run(str(file), "--combination", f"c{number}-{target}-{precision}-{fusion}-0", "--cache-dir",
                str(place / f"single-{number}"), "--output", str(place / f"single-output-{number}"))
            for number, (target, precision, fusion) in enumerate(
                [("cpu", "full", "all"), ("cuda", "half", "plain"), ("directml", "half", "all"),
                 ("tensorrt", "full", "plain"), ("migraphx", "half", "all")]
            )
        ]  # fmt: skip
        single = statistics.median(singles)
        print(f"run of all: {all_of_them:.1f} s; one alone, with a store of its own: {single:.2f} s, the median of 5")
        print(f"all / 100 single runs: {all_of_them / (100 * single):.3f}")


if __name__ == "__main__":
    main()
