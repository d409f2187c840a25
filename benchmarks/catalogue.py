"""What a server takes with hundreds of folders, LoRAs and wildcards: its lists, and the planning of an order.

    olivelike run workflows/demo.yaml
    python benchmarks/catalogue.py models/demo

Folders are links to the files of one; LoRAs have the headers of SDXL's, with factors of rank 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel

from olivelike.serve import ServeSettings
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.drawing.planning import Files, plan_order
from olivelike.serve.orders import Order
from olivelike.testing.lora_files import make_lora

_SDXL = {
    "sample_size": 128, "cross_attention_dim": 2048, "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
    "transformer_layers_per_block": (1, 2, 10), "attention_head_dim": (5, 10, 20),
}  # fmt: skip


def copies(source: Path, folder: Path, count: int) -> None:
    """Put a folder's files, or a file, into another one so often, under other names."""
    folder.mkdir()
    for number in range(count):
        if source.is_dir():
            shutil.copytree(source, folder / f"model{number}", copy_function=os.link)
        else:
            os.link(source, folder / f"lora{number}{source.suffix}")


def timed(name: str, work: Callable[[], object], turns: int) -> None:
    """Print what the first and the others of some calls take."""
    taken = []
    for _ in range(turns):
        began = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - began))
    print(f"{name:44} first {taken[0]:9.1f} ms, then {statistics.median(taken[1:]):7.2f} ms", flush=True)


def measure(folder: Path, scratch: Path, counts: Sequence[int], turns: int) -> None:
    """Print the figures of a catalogue of so many folders, LoRAs and wildcards."""
    folders, loras, wildcards = counts
    shutil.copytree(folder, model := scratch / "model")
    copies(model, scratch / "models", folders)
    with torch.device("meta"):
        shapes = {name: tuple(one.shape) for name, one in UNet2DConditionModel(**_SDXL).state_dict().items()}
    sdxl = make_lora(
        scratch / "sdxl.safetensors", "kohya_sdxl", base={"unet": shapes}, components=("unet",), rank=1, alpha=1,
        modules="attention+ff", dtype="F16",
    )  # fmt: skip
    copies(sdxl, scratch / "loras", loras)
    (scratch / "wildcards").mkdir()
    for number in range(wildcards):
        (scratch / "wildcards" / f"card{number}.txt").write_text("".join(f"a line {line}\n" for line in range(200)))
    served = Catalogue(ServeSettings(folders=(), models_dirs=(scratch / "models",)))
    timed(f"names of {folders} folders", served.folders, turns)
    timed(f"list of {folders} folders", lambda: served.models([]), turns)
    lora_dirs, wildcard_dirs = (scratch / "loras",), (scratch / "wildcards",)
    listed = Catalogue(ServeSettings(folders=(model,), lora_dirs=lora_dirs, wildcard_dirs=wildcard_dirs))
    timed(f"list of {loras} LoRAs", listed.loras, turns)
    timed(f"list of {wildcards} wildcards", listed.wildcards, turns)
    files = Files(
        models={"model": model}, loras=lora_dirs, wildcards=wildcard_dirs, uploads=scratch, allow_pickle=False
    )
    number = itertools.count()
    own = make_lora(scratch / "loras" / "own.safetensors", "kohya", base="olivelike/data/demo", rank=1)
    for name, prompt in (
        ("a prompt", "a cat {}"), ("a wildcard", "a cat {} __card7__"), ("a LoRA", f"a cat {{}} <lora:{own.stem}:0.5>"),
    ):  # fmt: skip

        def plan(prompt: str = prompt) -> None:
            order = Order(model="model", prompt=prompt.format(next(number)), seed=1, steps=4)
            plan_order(order, files)

        timed(f"plan of {name} beside all these", plan, turns)


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an optimised folder of the demo")
    parser.add_argument("--counts", type=int, nargs=3, default=(300, 1000, 500), metavar=("FOLDERS", "LORAS", "CARDS"))
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(options.folder, Path(scratch), options.counts, options.turns)


if __name__ == "__main__":
    main()
