"""`olivelike serve` as a real process, for tests that kill it."""

from __future__ import annotations

import re
import subprocess
import sys


def olivelike(*words):
    """Return a command line."""
    return [sys.executable, "-m", "olivelike", *map(str, words)]


def start_server(*words, port=0):
    """Start a server, by default on a free port; return the process, and its URL once it answers."""
    process = subprocess.Popen(olivelike("serve", "--port", port, *words), stdout=subprocess.PIPE, text=True)
    said = ""
    while not (found := re.search(r"http://\S+", said)):
        line = process.stdout.readline()
        assert line, said
        said += line
    return process, found[0]


def kill(process):
    """Kill a server without a word, and its pipe with it."""
    process.kill()
    process.wait()
    process.stdout.close()
