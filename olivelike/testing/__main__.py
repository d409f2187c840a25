"""`python -m olivelike.testing make-checkpoint sd15 DIR`: write a checkpoint with random weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.testing.checkpoints import make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m olivelike.testing")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "make-checkpoint", help="write a diffusers folder with seeded random weights"
    )
    command.add_argument("family", choices=["sd15"])
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument("--size", choices=["tiny", "full"], default="tiny")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--layout", choices=["saved", "hub"], default="saved")
    command.add_argument("--variant", choices=["fp16"], help="also write half-precision files")
    options = vars(parser.parse_args(arguments))
    folder = make_checkpoint(options.pop("folder"), **options)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{folder}: {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
