"""`python -m olivelike.testing make-checkpoint sd15 DIR`: write a checkpoint with random weights.

`python -m olivelike.testing make-single-file DIR FILE` writes the same weights into one file, in original names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olivelike.errors import OlivelikeError, UsageError
from olivelike.model.components import INDEX_FILE
from olivelike.testing.checkpoint_configs import KINDS
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.single_file_writer import make_single_file, require_readable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m olivelike.testing")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("make-checkpoint", help="write a diffusers folder with seeded random weights")
    command.add_argument("family", choices=list(KINDS))
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument("--size", choices=["tiny", "small", "full"])
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--layout", choices=["saved", "hub"], default="saved")
    command.add_argument("--variant", choices=["fp16"], help="also write half-precision files")
    command.add_argument("--dtype", choices=["F32", "F16"], default="F32")
    command.set_defaults(write=make_checkpoint)
    command = commands.add_parser("make-single-file", help="put a checkpoint folder into one file")
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument("path", type=Path, metavar="FILE")
    command.add_argument("--dtype", choices=["F32", "F16", "BF16"])
    command.set_defaults(write=_make_readable_file)
    options = vars(parser.parse_args(arguments))
    try:
        written: Path = options.pop("write")(options.pop("folder"), **options)
    except OlivelikeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except (OSError, ValueError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"error: {told}\n")
        return UsageError.exit_code
    files = [written] if written.is_file() else written.rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    sys.stdout.write(f"{written}: {size / 1e6:.1f} MB\n")
    return 0


def _make_readable_file(folder: Path, path: Path, **options: Any) -> Path:
    if not (folder / INDEX_FILE).is_file():
        raise UsageError(f"{folder}: has no {INDEX_FILE}; name a folder that `make-checkpoint` wrote")
    require_readable(folder)
    return make_single_file(folder, path, **options)


if __name__ == "__main__":
    sys.exit(main())
