"""A call of a UNet with LoRAs as factors against one without: SD 1.5 at real size, on the CPU, in float32.

    python benchmarks/lora_step.py --folder DIR    # makes a checkpoint of 5.5 GB and an output in DIR, or takes them
    python benchmarks/lora_step.py --quick         # the demo's UNet

LoRAs of ranks 16 and 32 change attention, feed-forward layers and the projections around them. `model.onnx`, and
`lora_inputs.onnx` with no LoRA, one and both, take turns in one process of 8 GB. Prints processor seconds and their
ratios to those of `model.onnx`: the median, turn by turn, and least against least.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from spine import make_checkpoint, run

from olivelike.engine.output.live_factors import LiveFactors
from olivelike.model.components import MODEL_FILE
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.runtime.sessions.session import Array, BoundCall, Session

DEMO: Final = Path(__file__).parents[1] / "olivelike" / "data" / "demo"
RANKS: Final = (16, 32)
STRENGTHS: Final = (0.8, 0.5)


def optimise(folder: Path, source: Path) -> Path:
    """Optimise the checkpoint's UNet, unless that is done, and return the output."""
    path = folder / "lora-step" / "workflows" / f"{source.name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    chains = "components: {unet: [convert, fuse, lora_inputs]}"
    text = f"source: {source}\ntarget: cpu\n{chains}\noutput: models/{source.name}\n"
    path.write_text(text, encoding="utf-8")
    run(path)
    return path.parents[1] / "models" / source.name


def loras_for(folder: Path, source: Path) -> list[WeightedLora]:
    """Return a LoRA of each rank, made unless it is there."""
    found = []
    for rank, strength in zip(RANKS, STRENGTHS, strict=True):
        path = folder / f"{source.name}-{rank}.safetensors"
        if not path.is_file():
            make_lora(path, "kohya", base=source, rank=rank, seed=rank, modules="attention+ff", components=("unet",))
        found.append(WeightedLora(open_lora(path), strength))
    return found


def bind(session: Session, side: int, batch: int, fed: Mapping[str, Array]) -> BoundCall:
    """Return a call on random numbers, with factors."""
    generator = np.random.default_rng(0)
    known = {"sample": (batch, 4, side, side), "encoder_hidden_states": (batch, 77)}
    inputs = {}
    for name, spec in session.inputs.items():
        sizes = known.get(name, ())
        shape = [dim if isinstance(dim, int) else (*sizes, batch)[place] for place, dim in enumerate(spec.dims)]
        inputs[name] = generator.standard_normal(shape).astype(spec.dtype)
    session.fed = fed
    return session.bind(inputs, {name: np.empty(known["sample"], np.float32) for name in session.outputs})


def processor_seconds() -> float:
    """Return those of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the demo's UNet")
    parser.add_argument("--folder", type=Path, help="where checkpoint, LoRAs and output go (kept)")
    parser.add_argument("--side", type=int, default=256, help="of the picture, in pixels")
    parser.add_argument("--batch", type=int, default=2, help="pictures of the UNet; one with guidance is 2")
    parser.add_argument("--turns", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        source, side = (DEMO, 8) if options.quick else (folder / "full-0", options.side // 8)
        if not options.quick:
            make_checkpoint(source, 0, "full")
        output, loras = optimise(folder, source), loras_for(folder, source)
        factors, settings = LiveFactors(), SessionSettings(intra_threads=2)
        plain, taking = (open_session(output / "unet" / name, settings) for name in (MODEL_FILE, LORA_INPUTS_FILE))

        def feeds(count: int) -> Mapping[str, Array]:
            return factors.feeds(output, "unet", [(one, one.file.path.name) for one in loras[:count]])

        calls = {
            "`model.onnx`": bind(plain, side, options.batch, {}),
            "no LoRA": bind(taking, side, options.batch, {}),
            "one of rank 16": bind(taking, side, options.batch, feeds(1)),
            "two, of ranks 16 and 32": bind(taking, side, options.batch, feeds(2)),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.turns + 1):
            for name, call in calls.items():
                begun = processor_seconds()
                call.run()
                times[name].append(processor_seconds() - begun)
    _, *base = times["`model.onnx`"]  # The first call of each warms up.
    print("| | processor seconds | times `model.onnx`, median | least against least |\n| --- | --- | --- | --- |")
    for name, (_, *taken) in times.items():
        ratio = statistics.median(own / plain for own, plain in zip(taken, base, strict=True))
        print(f"| {name} | {statistics.median(taken):.3f} | {ratio:.3f} | {min(taken) / min(base):.3f} |")


if __name__ == "__main__":
    main()
