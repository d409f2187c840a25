"""Making an ONNX pipeline: time, memory and size, ours against others, on the same SD 1.5 checkpoint in one run.

    python benchmarks/peers.py --quick                          # tiny networks, ours alone
    python benchmarks/peers.py --folder DIR --peers .venv-peers/bin/python --optimum .venv-optimum/bin/python

Olive with ONNX Runtime's optimizer, and optimum, each need an environment of their own
(benchmarks/requirements-peers.txt and requirements-optimum.txt), given as its Python. Every figure is of a fresh
process; resident memory is the highest sum over the whole process tree, sampled from outside. A peer that fails or is
killed for memory has a row that says so.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from spine import HERE, Measured, make_checkpoint, measure, size_of

WHOLE = ("text_encoder", "unet", "vae_encoder", "vae_decoder")


def ours(folder: Path, source: Path, name: str, components: tuple[str, ...], chain: str) -> tuple[Path, Measured]:
    """Run a workflow from nothing; return its output and what it took."""
    project = folder / f"peers-{source.name}-{name}"
    shutil.rmtree(project, ignore_errors=True)
    path = project / "workflows" / "peer.yaml"
    path.parent.mkdir(parents=True)
    chains = "\n".join(f"  {component}: [{chain}]" for component in components)
    path.write_text(f"source: {source}\ntarget: cuda\ncomponents:\n{chains}\noutput: models/peer\n", encoding="utf-8")
    return project / "models" / "peer", measure(sys.executable, "-m", "olivelike", "run", str(path), "--json")


def peer(folder: Path, source: Path, python: str, script: str) -> tuple[Path, Measured] | str:
    """Run a peer's script; return its output and what it took, or how it ended."""
    output = folder / f"peers-{source.name}-{Path(script).stem}"
    shutil.rmtree(output, ignore_errors=True)
    try:
        return output, measure(python, str(HERE / script), str(source), str(output))
    except SystemExit as error:
        return str(error).splitlines()[0]


def show(name: str, result: tuple[Path, Measured] | str) -> None:
    """Print one row."""
    if isinstance(result, str):
        print(f"| {name} | {result} | | |", flush=True)
        return
    output, measured = result
    print(
        f"| {name} | {measured.seconds:.1f} | {measured.peak_bytes / 1e9:.2f} | {size_of(output) / 1e9:.2f} |",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    parser.add_argument("--folder", type=Path, help="where checkpoint and outputs go (kept)")
    parser.add_argument("--peers", metavar="PYTHON", help="Python of an environment with Olive and ONNX Runtime")
    parser.add_argument("--optimum", metavar="PYTHON", help="Python of an environment with optimum-onnx")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        size = "tiny" if options.quick else "full"
        source = folder / f"{size}-0"
        make_checkpoint(source, 0, size)
        print("| what | seconds | peak resident GB | output GB |\n| --- | --- | --- | --- |")
        show("olivelike: the UNet, fused, float16", ours(folder, source, "unet", ("unet",), "convert, fuse, float16"))
        if options.peers:
            show("ONNX Runtime's optimizer: the same", peer(folder, source, options.peers, "ort_unet.py"))
            show("Olive: the same", peer(folder, source, options.peers, "olive_unet.py"))
        if options.optimum:
            show("olivelike: four networks, float32", ours(folder, source, "whole", WHOLE, "convert"))
            show("optimum: the same", peer(folder, source, options.optimum, "optimum_export.py"))


if __name__ == "__main__":
    main()
