"""The command line: one file per command; nothing but it prints.

Commands and what they need are imported when they are used, so that a run with nothing to do is quick.
"""

from __future__ import annotations

import gc
import sys
import time

_RARELY = 1_000_000
_SHORT_SECONDS = 3.0
"""Seconds; a command that takes longer is slow by something else than imports."""


def main() -> None:
    """Run the command line on the arguments of the process; the entry point of `olivelike`."""
    # Python looks for garbage each time another 700 objects were made. What imports make stays: a tenth of the time
    # that a short command takes would go into looking through it.
    gc.set_threshold(_RARELY)
    sys.exit(_run() if sys.argv[1:2] == ["run"] else _command())


def _command() -> int:
    import threading

    from olivelike.cli.app import run_command_line

    timer = threading.Timer(_SHORT_SECONDS, collect_as_usual)
    timer.daemon = True
    timer.start()
    return run_command_line()


def _run() -> int:
    """Run a workflow, or tell at once that there is still nothing to do."""
    from olivelike.cli import receipt

    start, arguments = time.perf_counter(), sys.argv[1:]
    if (told := receipt.told_again(arguments)) is not None:
        from olivelike.cli.stdout import write_line

        write_line(f"{told}, {time.perf_counter() - start:.1f} s)")
        return 0
    with receipt.Witness() as witness:
        status = _command()
    if status == 0:
        witness.keep(arguments)
    return status


def collect_as_usual() -> None:
    """From now on look for garbage as often as Python does, in what is made from now on: for work that is long."""
    if gc.get_threshold()[0] == _RARELY:
        gc.freeze()
        gc.set_threshold(700)
