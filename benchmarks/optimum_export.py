"""Optimum's export of a whole pipeline, in float32.

    python benchmarks/optimum_export.py CHECKPOINT OUTPUT

Needs `optimum-onnx`, whose last release needs transformers below 4.58, so an environment of its own. Run by `peers.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(checkpoint: Path, output: Path) -> None:
    """Export."""
    from optimum.exporters.onnx import main_export

    main_export(str(checkpoint), str(output), task="text-to-image", do_validation=False, no_post_process=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
