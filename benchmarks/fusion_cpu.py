"""What fusion buys on the CPU: one UNet step, eager torch against the raw graph and fused ones, interleaved.

    python benchmarks/fusion_cpu.py CHECKPOINT                        # such as spine.py's full-0
    python benchmarks/fusion_cpu.py CHECKPOINT --off skip_layer_norm  # one more graph, without that rule

Latents of 32 by 32, batch 2, float32, medians of interleaved rounds in one process. Prints a table, with the largest
difference from torch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivelike.testing import load_model, run_pass
from olivelike.testing.parity import materialize_model, open_on_cpu, torch_network
from olivelike.workflow.passes import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from olivelike.testing import LocalModel

    Engine = Callable[[], Any]


def graph_engine(model: LocalModel, folder: Path, feeds: dict[str, Any]) -> Engine:
    """Materialise a graph into `folder` and return a call of its session."""
    folder.mkdir()
    materialize_model(model, folder)
    session = open_on_cpu(folder)
    return lambda: session.run(None, feeds)[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--off", action="append", default=[], help="also measure without this rule")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=32, help="latents' height and width")
    options = parser.parse_args()

    import torch

    passes = Registry.built_in()
    loaded = load_model(options.checkpoint, "unet")
    raw = run_pass(passes.get("convert").cls, loaded)
    generator = np.random.default_rng(0)
    width = raw.architecture.config["cross_attention_dim"] if raw.architecture else 768
    feeds = {
        "sample": generator.standard_normal((2, 4, options.size, options.size), dtype=np.float32),
        "timestep": np.array([500.0], np.float32),
        "encoder_hidden_states": generator.standard_normal((2, 77, width), dtype=np.float32),
    }
    fuse = passes.get("fuse").cls
    variants: dict[str, dict[str, bool]] = {"fused": {}}
    variants |= {f"fused, {name} off": {name: False} for name in options.off}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        engines: dict[str, Engine] = {"raw graph": graph_engine(raw, folder / "raw", feeds)}
        for index, (name, switches) in enumerate(variants.items()):
            start = time.perf_counter()
            fused = run_pass(fuse, raw, target="cpu", **switches)
            print(f"{name}: fused in {time.perf_counter() - start:.1f} s, {fused.facts['operators_after']}")
            engines[name] = graph_engine(fused, folder / str(index), feeds)
        network = torch_network(loaded).float()
        inputs = [torch.from_numpy(value) for value in feeds.values()]

        def eager() -> Any:
            with torch.no_grad():
                return network(*inputs).numpy()

        engines["torch eager"] = eager
        times: dict[str, list[float]] = {name: [] for name in engines}
        outputs = {name: engine() for name, engine in engines.items()}  # Warm-up.
        for _ in range(options.rounds):
            for name, engine in engines.items():
                start = time.perf_counter()
                engine()
                times[name].append(time.perf_counter() - start)
    expected = outputs["torch eager"]
    base = statistics.median(times["torch eager"])
    print("\n| engine | median s | times as fast as torch | relative difference |\n| --- | --- | --- | --- |")
    for name, measured in times.items():
        difference = np.linalg.norm(outputs[name] - expected) / np.linalg.norm(expected)
        median = statistics.median(measured)
        print(f"| {name} | {median:.3f} | {base / median:.2f} | {difference:.1e} |")


if __name__ == "__main__":
    main()
