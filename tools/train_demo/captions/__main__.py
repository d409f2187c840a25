"""`python -m tools.train_demo.captions FOLDER --method … --captions N`: how many captions of the demo are drawn right.

It is `olivelike bench FOLDER --method …` with captions as prompts, and a column more.
"""

from __future__ import annotations

import argparse
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.cli.options import ProviderOptions, ReportOptions
from olivelike.cli.stdout import write_error, write_found, write_text
from olivelike.errors import OlivelikeError
from olivelike.extras.bench.bench_tables import method_lines
from olivelike.extras.bench.fidelity import SEED, compare_methods, read_method
from olivelike.measure.report.page import FIDELITY_FILE
from tools.train_demo.captions.evaluation import random_captions, share_right

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.captions", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--method", action="append", default=[], metavar="[FOLDER] [OPTIONS]", help="may be repeated")
    parser.add_argument("--captions", type=int, default=100, metavar="N")
    parser.add_argument("--steps", type=int, default=50, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="within an operator")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--json-file", type=Path, metavar="FILE")
    parser.add_argument("--report", action="store_true", help="add it to the report of the folder's last run")
    parser.add_argument("--cache-dir", metavar="DIR")
    asked = parser.parse_args(arguments)
    try:
        recorded = ReportOptions(asked.report, asked.cache_dir).run(asked.folder)
        found = compare_methods(
            asked.folder,
            [read_method(text, asked.folder) for text in asked.method],
            steps=asked.steps,
            prompts=random_captions(asked.captions, SEED),
            judge=share_right,
            sessions=ProviderOptions(threads=asked.threads).settings(asked.folder),
            listen=write_error,
        )
        add = (lambda: recorded.add_to_report(FIDELITY_FILE, found.to_json())) if recorded else (lambda: None)
        write_found(found.to_json(), method_lines(found), json=asked.json, add_to_report=add)
        if asked.json_file is not None:
            write_text(f"{dumps(found.to_json(), indent=1)}\n", asked.json_file)
    except OlivelikeError as error:
        write_error(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
