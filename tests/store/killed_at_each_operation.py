"""Runs the work of `store_faults` once for one of so many file operations, killed at it, each on its own store.

A process of its own, since it forks: `killed_at_each_operation.py FOLDER EVERY` leaves FOLDER/<number>/ for each.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import filelock
import psutil
from store_faults import killing, prepare, work

from olivelike.store import Store

LOADED = (filelock, psutil)
"""Imported here once, not in each child."""


def main(folder: Path, every: int) -> None:
    """Fork until a child ends by itself."""
    template = folder / "template"
    prepare_in_child(template)
    number = 1 - every
    while True:
        number += every
        root = folder / str(number)
        shutil.copytree(template, root)
        pid = os.fork()
        if pid == 0:
            work(Store.open(root, filesystem=killing(number)))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(status)


def prepare_in_child(template: Path) -> None:
    """Make the first store in a child, so that this process holds no claim."""
    pid = os.fork()
    if pid == 0:
        prepare(template)
        os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
