"""Seconds that commands take before and beside their work, against what they can't do without.

    python benchmarks/startup.py FOLDER                     # of `olivelike run workflows/demo.yaml`
    python benchmarks/startup.py FOLDER --against OTHER/bin/python   # and against another installation

Figures are CPU seconds of each process and its children, medians of 9 that take turns, since other work on the machine
moves them less than it moves wall time. `run` has nothing to do: it was run once before. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKFLOW = Path(__file__).absolute().parents[1] / "workflows" / "demo.yaml"
LIBRARIES = "import pydantic, yaml, typer, rich, diskcache, filelock"
PAINTING = "olivelike.serve.drawing.painting"
PROMPT = "a red circle on a blue background"


def cpu_seconds(*command: str) -> float:
    """Run a command; return user and system seconds of its process tree."""
    before = os.times()
    # Installed packages have their bytecode; so has what is measured.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # A checkout that one is in would be imported in place of what is installed.
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=tempfile.gettempdir())
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the demo's optimised folder")
    parser.add_argument("--against", help="Python of an environment with another olivelike")
    parser.add_argument("--runs", type=int, default=9, help="runs of each")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)

        def commands(name: str, python: str) -> dict[str, tuple[str, ...]]:
            olivelike = (python, "-m", "olivelike")
            store = ("--cache-dir", str(place / f"{name}-cache"), "--output", str(place / f"{name}-output"))
            picture = ("--steps", "10", "--seed", "3", "--overwrite", "-o", str(place / f"{name}.png"))
            return {
                f"{name}: --help": (*olivelike, "--help"),
                f"{name}: info of the folder": (*olivelike, "info", str(options.folder)),
                f"{name}: run, nothing to do": (*olivelike, "run", str(WORKFLOW), *store),
                f"{name}: generate, 10 steps": (*olivelike, "generate", str(options.folder), PROMPT, *picture),
                f"{name}: imports of serve's child": (python, "-c", f"import {PAINTING}"),
            }

        all_commands = {"the libraries' imports": (sys.executable, "-c", LIBRARIES), **commands("this", sys.executable)}
        if options.against is not None:
            all_commands |= commands("other", options.against)
        seconds: dict[str, list[float]] = {name: [] for name in all_commands}
        for command in all_commands.values():
            cpu_seconds(*command)
        for _ in range(options.runs):
            for name, command in all_commands.items():
                seconds[name].append(cpu_seconds(*command))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    print("| command | CPU seconds |\n| --- | --- |")
    for name, median in medians.items():
        print(f"| {name} | {median:.3f} |")
    imports = medians["the libraries' imports"]
    print(f"\nrun, nothing to do / the libraries' imports: {medians['this: run, nothing to do'] / imports:.2f}")
    if options.against is not None:
        for name in commands("", ""):
            print(f"{name.removeprefix(': ')}, this / other: {medians[f'this{name}'] / medians[f'other{name}']:.2f}")


if __name__ == "__main__":
    main()
