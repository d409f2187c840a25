"""A call of a UNet with LoRAs as factors against one without: SD 1.5 at real size, in float32 on the CPU.

    python benchmarks/lora_step.py --folder DIR    # makes a checkpoint of 5.5 GB and an output in DIR, or takes them
    python benchmarks/lora_step.py --quick         # the demo's UNet
    python benchmarks/lora_step.py --folder DIR --target cuda --side 512    # in float16, in seconds

LoRAs of ranks 16 and 32 change attention, feed-forward layers and the projections around them. `model.onnx`, and
`lora_inputs.onnx` with no LoRA, one and both, take turns in one process of 8 GB. Prints processor seconds and their
ratios to those of `model.onnx`: the median, turn by turn, and least against least. Then how far what factors give is
from what merged weights do, and what is not changed from the plain network.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from spine import make_checkpoint, run

from olivelike.engine.output.live_factors import LiveFactors
from olivelike.engine.output.swap import swap_loras
from olivelike.model.components import MODEL_FILE
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.runtime.sessions.session import Array, BoundCall, Session

DEMO: Final = Path(__file__).parents[1] / "olivelike" / "data" / "demo"
RANKS: Final = (16, 32)
STRENGTHS: Final = (0.8, 0.5)


def optimise(folder: Path, source: Path, target: str) -> Path:
    """Optimise the checkpoint's UNet, unless that is done, and return the output."""
    name = f"{source.name}-{target}"
    path = folder / "lora-step" / "workflows" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    narrow = "" if target == "cpu" else "float16, "
    chains = f"components: {{unet: [convert, fuse, {narrow}lora_inputs]}}"
    path.write_text(f"source: {source}\ntarget: {target}\n{chains}\noutput: models/{name}\n", encoding="utf-8")
    run(path)
    return path.parents[1] / "models" / name


def loras_for(folder: Path, source: Path) -> list[WeightedLora]:
    """Return a LoRA of each rank, made unless it is there."""
    found = []
    for rank, strength in zip(RANKS, STRENGTHS, strict=True):
        path = folder / f"{source.name}-{rank}.safetensors"
        if not path.is_file():
            make_lora(path, "kohya", base=source, rank=rank, seed=rank, modules="attention+ff", components=("unet",))
        found.append(WeightedLora(open_lora(path), strength))
    return found


def bind(session: Session, side: int, batch: int, fed: Mapping[str, Array]) -> tuple[BoundCall, Array]:
    """Return a call on random numbers, with factors, and what it fills."""
    generator = np.random.default_rng(0)
    known = {"sample": (batch, 4, side, side), "encoder_hidden_states": (batch, 77)}
    inputs = {}
    for name, spec in session.inputs.items():
        sizes = known.get(name, ())
        shape = [dim if isinstance(dim, int) else (*sizes, batch)[place] for place, dim in enumerate(spec.dims)]
        inputs[name] = generator.standard_normal(shape).astype(spec.dtype)
    session.fed = fed
    ((name, spec),) = session.outputs.items()
    output = np.empty(known["sample"], spec.dtype)
    return session.bind(inputs, {name: output}), output


def processor_seconds() -> float:
    """Return those of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def relative_error(made: Array, wanted: Array) -> float:
    """Return the norm of a difference to that of what is wanted."""
    wide = wanted.astype(np.float64)
    return float(np.linalg.norm(made - wide) / np.linalg.norm(wide))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the demo's UNet")
    parser.add_argument("--folder", type=Path, help="where checkpoint, LoRAs and output go (kept)")
    parser.add_argument("--side", type=int, default=256, help="of the picture, in pixels")
    parser.add_argument("--batch", type=int, default=2, help="pictures of the UNet; one with guidance is 2")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--turns", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        source, side = (DEMO, 8) if options.quick else (folder / "full-0", options.side // 8)
        if not options.quick:
            make_checkpoint(source, 0, "full")
        output, loras = optimise(folder, source, options.target), loras_for(folder, source)
        factors, settings = LiveFactors(), SessionSettings((parse_provider(options.target),), intra_threads=2)
        plain, taking = (open_session(output / "unet" / name, settings) for name in (MODEL_FILE, LORA_INPUTS_FILE))
        clock = processor_seconds if options.target == "cpu" else time.perf_counter

        def feeds(count: int) -> Mapping[str, Array]:
            return factors.feeds(output, "unet", [(one, one.file.path.name) for one in loras[:count]])

        bound = {
            "`model.onnx`": bind(plain, side, options.batch, {}),
            "no LoRA": bind(taking, side, options.batch, {}),
            "one of rank 16": bind(taking, side, options.batch, feeds(1)),
            "two, of ranks 16 and 32": bind(taking, side, options.batch, feeds(2)),
        }
        times: dict[str, list[float]] = {name: [] for name in bound}
        for _ in range(options.turns + 1):
            for name, (call, _) in bound.items():
                begun = clock()
                call.run()
                times[name].append(clock() - begun)
        del plain
        swapped = open_session(output / "unet" / MODEL_FILE, settings, swap_loras(output, loras)["unet"])
        merged, wanted = bind(swapped, side, options.batch, {})
        merged.run()
    _, *base = times["`model.onnx`"]  # The first call of each warms up.
    unit = "processor seconds" if options.target == "cpu" else "seconds"
    print(f"| | {unit} | times `model.onnx`, median | least against least |\n| --- | --- | --- | --- |")
    for name, (_, *taken) in times.items():
        ratio = statistics.median(own / plain for own, plain in zip(taken, base, strict=True))
        print(f"| {name} | {statistics.median(taken):.4f} | {ratio:.3f} | {min(taken) / min(base):.3f} |")
    (_, first), (_, none), _, (_, two) = bound.values()
    print(f"no LoRA: {relative_error(none, first):.1e} from `model.onnx`")
    changed = relative_error(first, wanted)
    print(f"two: {relative_error(two, wanted):.1e} from merged weights, and these {changed:.1e} from `model.onnx`")


if __name__ == "__main__":
    main()
