"""Conversion of a large folder from a cold cache, beside what reading it and writing the output costs the disk alone.

    python benchmarks/large_folders.py z_image DIR/z_image
    python benchmarks/large_convert.py DIR/z_image --precision w8 [--rounds 3]

Files leave the page cache before each measurement (`posix_fadvise`, Linux). Each round converts into a new folder with
a store of its own, beside the source, then reads the source's weights once and writes as many bytes as the output has,
and syncs. Memory is that of all processes, sampled twice a second; bytes read are those that came from the disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

_PIECE: Final = 8 << 20
_WEIGHTS: Final = frozenset({".safetensors", ".gguf"})


def main() -> None:
    """Print a row for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder, or a file of weights")
    parser.add_argument("--precision", default="w8")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path, help="where to write, by default beside the source; removed at the end")
    options = parser.parse_args()
    source: Path = options.source
    work = (options.work or source.parent) / f"large_convert.{os.getpid()}"
    weights = [path for path in _files(source) if path.suffix in _WEIGHTS]
    for _ in range(options.rounds):
        work.mkdir(parents=True)
        try:
            command = [
                *(sys.executable, "-m", "olivelike", "convert", str(source), "-t", options.target),
                *("-o", str(work / "output"), "--cache-dir", str(work / "store"), "--precision", options.precision),
            ]
            evict(weights)
            seconds, processor, read, memory = measured(command)
            written = sum(path.stat().st_size for path in _files(work / "output"))
            shutil.rmtree(work / "output")
            evict(weights)
            disk = read_all(weights) + write(work / "bytes", written)
        finally:
            shutil.rmtree(work)
        size = sum(path.stat().st_size for path in weights)
        print(
            f"{options.precision}: {seconds:.1f} s = {seconds / disk:.2f} times the disk's {disk:.1f} s "
            f"({size / 1e9:.1f} GB read, {written / 1e9:.1f} GB written); {processor:.1f} processor seconds; "
            f"{read / 1e9:.1f} GB came from the disk; {memory / 1e9:.2f} GB at most",
            flush=True,
        )


def _files(place: Path) -> Iterator[Path]:
    return (path for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file())


def evict(paths: list[Path]) -> None:
    """Let the page cache forget files."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # Pages that are not on the disk stay.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measured(command: list[str]) -> tuple[float, float, int, int]:
    """Run a command: seconds, processor seconds and bytes from the disk of all its processes, most resident memory."""
    before, io = resource.getrusage(resource.RUSAGE_CHILDREN), _bytes_read()
    start = time.perf_counter()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.5):
            most = max(most, sum(_resident(one) for one in (process, *process.children(recursive=True))))

    thread = threading.Thread(target=watch)
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - start
    ended.set()
    thread.join()
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, _bytes_read() - io, most


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _bytes_read() -> int:
    """Return what this process and those that it has waited for read from disks."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def read_all(paths: list[Path]) -> float:
    """Return the seconds that reading takes."""
    start, piece = time.perf_counter(), bytearray(_PIECE)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass
    return time.perf_counter() - start


def write(path: Path, count: int) -> float:
    """Return the seconds that writing so many bytes takes, until they are on the disk."""
    piece = memoryview(os.urandom(_PIECE))
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while count > 0:
            count -= file.write(piece[:count])
        os.fsync(file.fileno())
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
