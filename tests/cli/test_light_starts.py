"""What commands import until their work begins: no module of ours and no library that they do not use.

A number here is the greatest that is allowed. Whoever needs one more module than it says looks first whether the
command uses it: what only some options need is imported where they are followed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from olivelike._installed import DISTRIBUTIONS
from olivelike.families import FAMILIES

COMMAND_LINE = """
import contextlib, io, sys
from olivelike.cli.app import run_command_line

with contextlib.redirect_stdout(io.StringIO()):
    assert run_command_line({arguments!r}) == 0
"""
GENERATE = """
import contextlib, io, sys
from olivelike.cli.app import run_command_line
from olivelike.runtime.jobs import job_plan
from olivelike.runtime.pipeline import pipeline

def plan_jobs(*arguments, **options):
    sys.exit()

job_plan.plan_jobs = plan_jobs
pipeline.begin_pipeline = lambda *arguments, **options: None
assert run_command_line(["generate", {folder!r}, "a red circle"]) == 0
"""
TOLD = "\nprint(*sys.modules, sep='\\n')\n"


def loaded(code: str) -> tuple[list[str], set[str]]:
    """Return the modules of olivelike, and the libraries that it knows, after some code has run in a new process."""
    done = subprocess.run([sys.executable, "-c", code + TOLD], capture_output=True, text=True, check=True)
    names = done.stdout.split("\n")
    tops = {name.partition(".")[0] for name in names}
    ours = sorted(name for name in names if name.partition(".")[0] == "olivelike")
    return ours, {DISTRIBUTIONS[top] for top in tops & DISTRIBUTIONS.keys()}


def check(code: str, most: int, libraries: set[str]) -> None:
    ours, used = loaded(code)
    assert len(ours) <= most, "\n".join(ours)
    assert used <= libraries | ({"annotated-types"} if "pydantic" in libraries else set())  # It imports them.


@pytest.mark.parametrize("package", ["engine", "engine.plan", "model", "runtime", "runtime.pictures", "sources"])
def test_a_package_imports_nothing_by_itself(package):
    ours, libraries = loaded(f"import sys, olivelike.{package}")
    parts = package.split(".")
    around = {".".join(["olivelike", *parts[:length]]) for length in range(len(parts) + 1)}
    assert set(ours) - {"olivelike._lazy", "olivelike._light_onnx_ir"} == around
    assert not libraries


def test_help():
    """Each command tells its purpose, so that their 32 files are among these; `serve`'s options are its settings."""
    check(COMMAND_LINE.format(arguments=["--help"]), 59, {"typer"})


def test_info_of_a_folder(little):
    check(COMMAND_LINE.format(arguments=["info", str(little)]), 46, {"pydantic", "typer"})


def test_generate_until_it_plans(little):
    """Threads open networks beside the planning, and are left out here."""
    check(GENERATE.format(folder=str(little)), 87 + len(FAMILIES), {"platformdirs", "pydantic", "typer"})


def test_generate_to_its_end(little, tmp_path):
    """Each family has a file, of which none is heavy."""
    words = ["generate", str(little), "a red circle", "--steps", "1", "-o", str(tmp_path / "picture.png")]
    own = {"numpy", "onnxruntime", "pillow", "platformdirs", "protobuf", "psutil", "pydantic", "tokenizers", "typer"}
    check(COMMAND_LINE.format(arguments=words), 98 + len(FAMILIES), own)


def test_the_child_of_serve_until_it_is_told_what_to_draw():
    check("import sys, olivelike.serve.drawing.painting", 86 + len(FAMILIES), {"psutil", "pydantic"})
