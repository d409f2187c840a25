"""Time until a server's child can draw with other LoRAs: as factors of `lora_inputs.onnx`, and merged.

    python benchmarks/lora_switch.py

The demo's networks, two LoRAs of rank 4 on attention and feed-forward, in turns with none. Medians of processor time of
`WarmPipelines.get`, and of drawing two steps; the first time of each is apart. Prints a table; nothing here is a test.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
from pathlib import Path

from olivelike.engine.output.swap import LiveLoras
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.runtime import Request
from olivelike.serve.drawing.warm import SessionChoice, WarmPipelines
from olivelike.testing.lora_files import make_lora

DEMO = Path(__file__).parents[1] / "olivelike" / "data" / "demo"
TURNS = 7
REQUEST = Request(prompts=("a red circle",), steps=2, seed=1)


def processor_seconds() -> float:
    """Return what this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_folder(root: Path, name: str, last: str) -> Path:
    """Convert the demo."""
    chain = f"[convert, fuse{last}]"
    components = f"{{text_encoder: {chain}, unet: {chain}, vae_decoder: [convert, fuse]}}"
    workflow = root / f"{name}.yaml"
    text = f"name: {name}\nsource: demo\ntarget: cpu\ncomponents: {components}\noutput: {root / name}\n"
    workflow.write_text(text, encoding="utf-8")
    run(str(workflow), Options(cache_dir=root / "cache"))
    return root / name


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folders = {name: make_folder(root, name, last) for name, last in (("factors", ", lora_inputs"), ("merged", ""))}
        files = LiveLoras()
        paths = [
            make_lora(root / f"{name}.safetensors", "kohya", base=DEMO, seed=seed, modules="attention+ff")
            for seed, name in enumerate(("ink", "glow"))
        ]
        choices = [(files.named(f"{path}:0.8"),) for path in paths]
        print(f"{'':10}{'first, ms':>12}{'other, ms':>12}{'none, ms':>12}{'drawing, ms':>14}")
        for way, folder in folders.items():
            warm, times = WarmPipelines(SessionChoice(), 1 << 30), {}
            warm.get(folder, (), files, safety=False).latents(REQUEST)
            for turn in range(TURNS):
                for loras in (*choices, ()):
                    begun = processor_seconds()
                    pipeline = warm.get(folder, loras, files, safety=False)
                    ready = processor_seconds()
                    pipeline.latents(REQUEST)
                    what = "none" if not loras else "other" if turn else "first"
                    times.setdefault(what, []).append(ready - begun)
                    times.setdefault("drawing", []).append(processor_seconds() - ready)
            medians = [1e3 * statistics.median(times[what]) for what in ("first", "other", "none", "drawing")]
            print(f"{way:10}{medians[0]:12.1f}{medians[1]:12.1f}{medians[2]:12.1f}{medians[3]:14.1f}")


if __name__ == "__main__":
    main()
