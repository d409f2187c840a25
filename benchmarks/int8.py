"""The UNet in 8 bits against float: SD 1.5 at real size, latents of 32 by 32, batch 2, on the CPU.

    python benchmarks/int8.py --folder DIR    # makes a checkpoint of 5.5 GB in DIR, or takes what is there
    python benchmarks/int8.py --quick         # tiny networks, a few minutes

Contenders take turns in one process: target `cpu` in float32 and in `int8`; OpenVINO in its own bfloat16 on the float
graph, and on the graph that `int8` makes for it; and, where `nncf` is installed, OpenVINO on what NNCF makes of that
float graph (its defaults for transformers, twelve random inputs of the kind that are measured). Ranges of ours are
those of two pictures. Prints medians, and how far each output is from that in float32, ‖difference‖ / ‖float32's‖.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import openvino
from spine import make_checkpoint, run

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Step = Callable[[dict[str, Array]], Array]

WORKFLOW = """
source: {source}
target: {target}
calibration: {{prompts: [a red circle on a blue background, an old fisherman], steps: 4, size: [256, 256]}}
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse{int8}]
  vae_decoder: [convert, fuse]
output: models/{name}
"""
SIDE, SEEN = 32, 12


def optimise(folder: Path, source: Path, target: str, *, int8: bool) -> Path:
    """Optimise the checkpoint, unless that is done, and return the UNet's file."""
    name = f"{target}-int8" if int8 else target
    path = folder / "int8" / "workflows" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    step = ", int8" if int8 else ""
    path.write_text(WORKFLOW.format(source=source, target=target, int8=step, name=name), encoding="utf-8")
    run(path)
    return folder / "int8" / "models" / name / "unet" / "model.onnx"


def inputs(path: Path, seed: int) -> dict[str, Array]:
    """Return random inputs: noise, one of a thousand timesteps, and states of a text."""
    rng = np.random.default_rng(seed)
    session = openvino.Core().read_model(path)
    found = {}
    for value in session.inputs:
        name, sizes = value.any_name, value.partial_shape
        if name == "timestep":
            found[name] = np.array([rng.integers(1000)], value.element_type.to_dtype())
            continue
        shape = [2, 4, SIDE, SIDE] if name == "sample" else [2, 77, sizes[2].get_length()]
        found[name] = rng.standard_normal(shape).astype(np.float32)
    return found


def in_onnx_runtime(path: Path) -> Step:
    """Open a UNet in ONNX Runtime's CPU provider."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def in_openvino(model: Any, precision: str) -> Step:
    """Compile a UNet for the CPU; what is not in 8 bits is computed in this precision."""
    settings = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda feeds: np.array(request.infer(feeds)[0])


def by_nncf(path: Path, seen: list[dict[str, Array]]) -> Any:
    """Return what NNCF makes of a float graph; `None` where it is not installed."""
    try:
        import nncf
    except ImportError:
        return None
    return nncf.quantize(
        openvino.Core().read_model(path),
        nncf.Dataset(seen),
        subset_size=len(seen),
        model_type=nncf.ModelType.TRANSFORMER,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the checkpoint and the outputs are made, or are")
    parser.add_argument("--source", type=Path, help="a checkpoint, in place of one with random weights")
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    parser.add_argument("--target", choices=("cpu", "openvino"), help="one of them alone; 8.6 GB of outputs otherwise")
    parser.add_argument("--runs", type=int, default=7, help="steps of each contender")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        source = arguments.source or folder / ("tiny" if arguments.quick else "full-0")
        if arguments.source is None:
            make_checkpoint(source, 0, "tiny" if arguments.quick else "full")
        targets = ("cpu", "openvino") if arguments.target is None else (arguments.target,)
        files = {(target, int8): optimise(folder, source.resolve(), target, int8=int8)
                 for target in targets for int8 in (False, True)}  # fmt: skip
        steps: dict[str, Step] = {}
        if "cpu" in targets:
            steps["cpu, float32"] = in_onnx_runtime(files["cpu", False])
            steps["cpu, int8"] = in_onnx_runtime(files["cpu", True])
        if "openvino" in targets:
            as_float = files["openvino", False]
            started = time.perf_counter()
            peer = by_nncf(as_float, [inputs(as_float, seed) for seed in range(1, 1 + SEEN)])
            if "cpu" not in targets:
                steps["openvino, float32"] = in_openvino(as_float, "f32")
            steps["openvino, bfloat16"] = in_openvino(as_float, "bf16")
            steps["openvino, int8"] = in_openvino(files["openvino", True], "bf16")
            steps["openvino, int8, the rest in float32"] = in_openvino(files["openvino", True], "f32")
            if peer is not None:
                print(f"NNCF took {time.perf_counter() - started:.0f} s")
                steps["openvino, NNCF's int8"] = in_openvino(peer, "bf16")
                steps["openvino, NNCF's int8, the rest in float32"] = in_openvino(peer, "f32")
        show(steps, inputs(next(iter(files.values())), 0), arguments.runs)


def show(steps: dict[str, Step], feeds: dict[str, Array], runs: int) -> None:
    """Run all contenders in turns, and print their medians."""
    found = {name: step(feeds) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(runs):
        for name, step in steps.items():
            started = time.perf_counter()
            step(feeds)
            seconds[name].append(time.perf_counter() - started)
    wanted = next(iter(found.values()))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    print("| UNet, a step | seconds | times as fast | relative error |\n| --- | --- | --- | --- |")
    for name, median in medians.items():
        error = np.linalg.norm(found[name] - wanted) / np.linalg.norm(wanted)
        print(f"| {name} | {median:.2f} | {first / median:.2f} | {error:.3f} |")


if __name__ == "__main__":
    main()
