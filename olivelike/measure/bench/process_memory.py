"""How much memory this process has had at most."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_KIB: Final = 1024


def peak_resident_bytes() -> int:
    """Return the highest resident memory of this process so far, as the operating system counted it.

    On Linux this is `VmHWM`, and not `ru_maxrss`: the latter begins with what the parent held as it started the
    process (man 2 getrusage, exec in kernel/exec.c). For a small parent such as `/usr/bin/time` they are the same.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIB
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # macOS counts in bytes, others in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)
