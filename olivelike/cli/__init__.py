"""The command line: one file per command; nothing but it prints.

Commands and what they need are imported when they are used, so that a run with nothing to do is quick.
"""

from __future__ import annotations

import gc
import sys

_RARELY = 1_000_000


def main() -> None:
    """Run the command line on the arguments of the process; the entry point of `olivelike`."""
    # Python looks for garbage each time another 700 objects were made. What imports make stays: a tenth of the time
    # that a short command takes would go into looking through it.
    gc.set_threshold(_RARELY)

    from olivelike.cli.app import run_command_line

    sys.exit(run_command_line())


def collect_as_usual() -> None:
    """From now on look for garbage as often as Python does, in what is made from now on: for work that is long."""
    if gc.get_threshold()[0] == _RARELY:
        gc.freeze()
        gc.set_threshold(700)
