"""The command line: one file per command; nothing but it prints.

Commands and what they need are imported when they are used, so that a run with nothing to do is quick.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line on the arguments of the process; the entry point of `olivelike`."""
    import sys

    from olivelike.cli.app import run_command_line

    sys.exit(run_command_line())
