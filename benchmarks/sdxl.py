"""Time and memory of optimising a single file of SDXL: 6.9 GB, random weights, real structure.

    python benchmarks/sdxl.py                       # makes two files, 6.9 GB each, in --folder
    python benchmarks/sdxl.py --file sdxl.safetensors

Resident memory is the highest sum over the whole process tree, sampled from outside. Prints a table.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from spine import evict, measure, size_of

from olivelike.testing import make_checkpoint
from olivelike.testing.single_file_writer import make_single_file


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="an SDXL single file that is there already")
    parser.add_argument("--target", default="cuda", help="what to optimise for")
    parser.add_argument("--folder", type=Path, help="where checkpoint, store and output go (kept)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        source = (options.file or folder / "sdxl.safetensors").resolve()
        second = folder / "sdxl-second.safetensors"
        for seed, path in enumerate((source, second)):
            if not path.exists():
                make_checkpoint(folder / "sdxl", family="sdxl", size="full", dtype="F16", seed=seed)
                make_single_file(folder / "sdxl", path)
                shutil.rmtree(folder / "sdxl")
        command = (sys.executable, "-m", "olivelike")
        identified = measure(*command, "info", str(source), "--no-hash")
        output, store = folder / "models" / "sdxl", folder / "sdxl-cache"
        arguments = ("-t", options.target, "-o", str(output), "--cache-dir", str(store), "--json")
        evict(folder)
        cold = measure(*command, "convert", str(source), *arguments)
        warm = measure(*command, "convert", str(source), *arguments)
        evict(folder)
        other = measure(*command, "convert", str(second), *arguments, "--overwrite")
        print("| what | seconds | peak resident GB |\n| --- | --- | --- |")
        rows = (("identify", identified), ("optimise", cold), ("again", warm), ("a second checkpoint", other))
        for name, measured in rows:
            print(f"| {name} | {measured.seconds:.2f} | {measured.peak_bytes / 1e9:.2f} |")
        print(f"\noptimise / a second checkpoint: {cold.seconds / other.seconds:.2f}")
        print(
            f"source {source.stat().st_size / 1e9:.2f} GB, output {size_of(output) / 1e9:.2f} GB, "
            f"store {size_of(store) / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
