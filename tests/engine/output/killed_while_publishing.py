"""Publishes `NEW` over a template once per file operation, killed at that operation, each in its own folder.

A process of its own, since it forks: `killed_while_publishing.py FOLDER` copies FOLDER/template to
FOLDER/<number>/ for each.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import psutil
from output_folders import NEW, publish_files

LOADED = psutil
"""Imported here once, not in each child."""
CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def main(folder: Path) -> None:
    """Fork until a child ends by itself."""
    number = 0
    while True:
        number += 1
        shutil.copytree(folder / "template", folder / str(number))
        pid = os.fork()
        if pid == 0:
            os.fsync = lambda _: None  # what a process wrote outlives it
            kill_at(number)
            publish_files(folder / str(number) / "out", NEW)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(status)


def kill_at(number: int) -> None:
    """Kill this process ahead of its change number `number` to the file system."""
    left = [number]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGING or opened:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
