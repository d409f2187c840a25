"""Time and memory of a whole run on SD 1.5: from nothing, unchanged, output deleted, another checkpoint; and the disk.

    python benchmarks/spine.py                 # real size: makes two checkpoints of 5.5 GB in --folder
    python benchmarks/spine.py --quick         # tiny networks, about a minute
    python benchmarks/spine.py --peer          # and Olive on the same UNet (benchmarks/requirements-peers.txt)

Every figure is of a fresh process; resident memory is the highest sum over the whole process tree, sampled from
outside. Prints a table; nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
HERE = Path(__file__).parent
_PIECE = 8 << 20


@dataclass
class Measured:
    """One process: seconds, peak of resident memory over its tree, and its last line as JSON if it is."""

    seconds: float
    peak_bytes: int
    finished: dict[str, object]


def measure(*command: str) -> Measured:
    """Run a command to its end, sampling the resident memory of its process tree."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = [0]

    def sample() -> None:
        while process.poll() is None:
            total = 0
            try:
                root = psutil.Process(process.pid)
                for member in (root, *root.children(recursive=True)):
                    total += member.memory_info().rss
            except psutil.Error:
                pass
            peak[0] = max(peak[0], total)
            time.sleep(0.05)

    watcher = threading.Thread(target=sample)
    watcher.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - start
    watcher.join()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}\n{out}")
    try:
        finished = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        finished = {}
    return Measured(seconds, peak[0], finished)


def make_checkpoint(folder: Path, seed: int, size: str) -> None:
    """Make a seeded checkpoint, unless it is there."""
    if not (folder / "model_index.json").exists():
        command = (sys.executable, "-m", "olivelike.testing", "make-checkpoint", "sd15", "--size", size)
        subprocess.run([*command, "--seed", str(seed), str(folder)], check=True)


def write_workflow(project: Path, source: Path) -> Path:
    """Write the workflow that all runs share."""
    path = project / "workflows" / "spine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    chains = "\n".join(f"  {name}: [convert, fuse, float16]" for name in COMPONENTS)
    path.write_text(f"source: {source}\ntarget: cuda\ncomponents:\n{chains}\noutput: models/spine\n", encoding="utf-8")
    return path


def run(workflow: Path, *arguments: str) -> Measured:
    """Run the workflow in a fresh process."""
    return measure(sys.executable, "-m", "olivelike", "run", str(workflow), "--json", *arguments)


def evict(folder: Path) -> None:
    """Drop a folder's files from the page cache, so that what reads them next asks the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_seconds(source: Path, written_bytes: int, folder: Path) -> tuple[float, float]:
    """Return what the disk takes to read the weights of a folder once, and to write so many bytes once, durably."""
    evict(source)
    start = time.perf_counter()
    for path in sorted(source.rglob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass
    read = time.perf_counter() - start
    piece, target = os.urandom(_PIECE), folder / "written"
    start = time.perf_counter()
    with target.open("wb", buffering=0) as file:
        for _ in range(written_bytes // _PIECE):
            file.write(piece)
        os.fsync(file.fileno())
    written = time.perf_counter() - start
    target.unlink()
    return read, written


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show(name: str, measured: Measured) -> None:
    """Print one row."""
    done = measured.finished
    print(
        f"| {name} | {measured.seconds:.2f} | {measured.peak_bytes / 1e9:.2f} "
        f"| {done.get('executed', '')} | {done.get('hits', '')} |",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks")
    parser.add_argument("--peer", action="store_true", help="also run Olive on the same UNet")
    parser.add_argument("--folder", type=Path, help="where checkpoints and project go (kept)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        size = "tiny" if options.quick else "full"
        first, second = folder / f"{size}-0", folder / f"{size}-1"
        make_checkpoint(first, 0, size)
        make_checkpoint(second, 1, size)
        project = folder / "project"
        shutil.rmtree(project, ignore_errors=True)
        workflow = write_workflow(project, first)
        print("| run | seconds | peak resident GB | executed | hits |\n| --- | --- | --- | --- | --- |")
        evict(first)
        cold = run(workflow)
        show("from nothing", cold)
        read, written = disk_seconds(first, size_of(project / "models"), project)
        unchanged = sorted((run(workflow) for _ in range(5)), key=lambda measured: measured.seconds)
        show("nothing changed (median of 5)", unchanged[2])
        shutil.rmtree(project / "models")
        show("output deleted", run(workflow))
        workflow = write_workflow(project, second)
        evict(second)
        other = run(workflow, "--overwrite")
        show("another checkpoint", other)
        print(f"\nfrom nothing / another checkpoint: {cold.seconds / other.seconds:.2f}")
        disk = f"the disk alone: {read:.2f} s to read the source once, {written:.2f} s to write the output once"
        print(f"{disk}; from nothing / disk: {cold.seconds / (read + written):.2f}")
        print(f"nothing changed, all five: {', '.join(f'{m.seconds:.2f}' for m in unchanged)} s; ", end="")
        print(f"median {statistics.median(m.seconds for m in unchanged):.2f} s")
        cache = project / "cache"
        print(f"store: {size_of(cache) / 1e6:.1f} MB in {sorted(path.name for path in cache.iterdir())}")
        if options.peer:
            shutil.rmtree(project / "models")
            peer = measure(sys.executable, str(HERE / "olive_unet.py"), str(first), str(folder / "olive"))
            show("Olive: the UNet alone", peer)


if __name__ == "__main__":
    main()
