"""`python -m olivelike` is the command line."""

import os
import sys

if sys.path and sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109  (sys.path holds text)
    # As for the installed command: plugins are found by path or installed, never by the folder one is in.
    del sys.path[0]

from olivelike.cli import main

if __name__ == "__main__":
    main()
