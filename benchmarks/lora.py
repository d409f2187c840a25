"""Time, memory and store growth of another LoRA on SD 1.5, fused and in half precision, beside another checkpoint.

    python benchmarks/lora.py                 # real size: makes two checkpoints of 5.5 GB in --folder
    python benchmarks/lora.py --quick         # tiny networks, about a minute

LoRAs of rank 16 on attention and feed-forward of UNet and text encoder. Every figure is of a fresh process; resident
memory is the highest sum over the whole process tree, sampled from outside. Prints a table; nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from spine import COMPONENTS, evict, make_checkpoint, run, show, size_of

from olivelike.engine.output.swap import swap_loras
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

PROMPT_SIDE = ("text_encoder", "unet")


def write_workflow(project: Path, source: Path) -> Path:
    """Write the workflow that all runs share."""
    path = project / "workflows" / "lora.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    chains = "\n".join(
        f"  {name}: [{'merge_lora, ' if name in PROMPT_SIDE else ''}convert, fuse, float16]" for name in COMPONENTS
    )
    path.write_text(f"source: {source}\ntarget: cuda\ncomponents:\n{chains}\noutput: models/lora\n", encoding="utf-8")
    return path


def executed(project: Path) -> list[str]:
    """Return the nodes that the last run executed."""
    records = sorted((project / "cache").glob("**/runs/*.json"), key=lambda path: path.stat().st_mtime)
    return [node["id"] for node in json.loads(records[-1].read_bytes())["nodes"] if node["status"] == "executed"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    parser.add_argument("--folder", type=Path, help="where checkpoint, LoRAs and project go (kept)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        size = "tiny" if options.quick else "full"
        sources = [folder / f"{size}-{seed}" for seed in range(2)]
        for seed, source in enumerate(sources):
            make_checkpoint(source, seed, size)
        source = sources[0]
        loras = [folder / f"{size}-style-{seed}.safetensors" for seed in (1, 2)]
        for seed, path in enumerate(loras, 1):
            make_lora(path, "kohya", base=source, rank=16, alpha=8, seed=seed, modules="attention+ff", dtype="F16")
        only_unet = folder / f"{size}-unet.safetensors"
        make_lora(only_unet, "peft", base=source, rank=16, seed=3, components=("unet",), modules="attention+ff")
        project = folder / "lora-project"
        shutil.rmtree(project, ignore_errors=True)
        workflow = write_workflow(project, source)
        print("| run | seconds | peak resident GB | executed | hits |\n| --- | --- | --- | --- | --- |")
        cold = run(workflow, "--lora", str(loras[0]))
        show("from nothing, first LoRA", cold)
        before = size_of(project / "cache")
        other = run(workflow, "--lora", str(loras[1]))
        show("another LoRA", other)
        grown = size_of(project / "cache") - before
        nodes = executed(project)
        show("a LoRA for the UNet alone", run(workflow, "--lora", str(only_unet)))
        alone = executed(project)
        show("no LoRA", run(workflow))
        checkpoints, styles = [], []
        for turn in range(1, 4):
            workflow = write_workflow(project, sources[turn % 2])
            for path in sources[turn % 2].rglob("*.safetensors"):
                path.touch()  # As if it was never seen: it is hashed.
            for measured, lora in ((checkpoints, turn % 2), (styles, (turn + 1) % 2)):
                evict(sources[turn % 2])
                evict(project / "models")
                measured.append(run(workflow, "--lora", str(loras[lora]), "--overwrite"))
        for name, turns in (("another checkpoint", checkpoints), ("another LoRA on it", styles)):
            show(f"{name} (median of 3)", sorted(turns, key=lambda measured: measured.seconds)[1])
        ratio = statistics.median(m.seconds for m in styles) / statistics.median(m.seconds for m in checkpoints)
        print(f"\nanother LoRA / another checkpoint: {ratio:.2f}")
        print(f"another LoRA / from nothing: {other.seconds / cold.seconds:.2f}")
        print(f"another LoRA executed: {', '.join(nodes)}")
        print(f"the UNet's alone executed: {', '.join(alone)}")
        print(
            f"the store grew by {grown / 1e6:.1f} MB; changed tensors in float32: {merged_bytes(loras[1]) / 1e6:.1f} MB"
        )
        times = []
        for _ in range(5):
            start = time.perf_counter()
            swapped = swap_loras(project / "models" / "lora", [WeightedLora(open_lora(loras[0]), 1.0)])
            times.append(time.perf_counter() - start)
        count = sum(len(arrays) for arrays in swapped.values())
        print(f"swapping without files: {count} initializers in {statistics.median(times):.1f} s (median of 5)")


def merged_bytes(lora: Path) -> int:
    """Return the float32 size of the weights that a LoRA changes."""
    modules = open_lora(lora).modules.values()
    return sum(4 * math.prod((module.rows, module.columns)) for module in modules)


if __name__ == "__main__":
    main()
