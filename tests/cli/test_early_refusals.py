"""What can't be done is refused before heavy libraries are imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from olivelike.cli.app import COMMANDS
from tests.fixtures.little_pipeline import little_pipeline

RUN_EACH = """
import contextlib, io, json, sys
from olivelike.cli.app import run_command_line

for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = run_command_line(arguments)
    heavy = {"torch", "diffusers", "transformers", "scipy", "onnx", "onnxruntime"} & set(sys.modules)
    print(json.dumps([status, said.getvalue(), sorted(heavy)]))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory, one_torch_thread):
    """A folder with an optimised pipeline, and one that says it is for DirectML."""
    place = tmp_path_factory.mktemp("folders")
    shutil.copytree(little_pipeline(), place / "little")
    shutil.copytree(little_pipeline(), place / "windows")
    record = place / "windows" / "olivelike.json"
    content = json.loads(record.read_text())
    content["target"] = {"name": "directml"}
    record.write_text(json.dumps(content))
    return place


def refusals(folder, *commands):
    """Run commands one after the other in a process of their own; return status, message and heavy modules of each."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps([command.split() for command in commands])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_wrong_options_are_refused_without_any_engine(folders):
    said = {
        "generate little x --provider nope": (2, "unknown provider 'nope'"),
        "generate little x --scheduler Nope": (2, "there is no sampler 'Nope'"),
        "generate little x --scheduler DDIMInverse": (2, "goes from a picture back to noise"),
        "generate little x --clip-skip 9": (2, "--clip-skip leaves no layer"),
        "generate little x --size 17x17": (2, "multiples of"),
        "generate little <lora:nope>": (3, "there is no LoRA of that name"),
        "generate little {3$$a|b}": (2, "asks for more than its 2 texts"),
        "generate little x --size big": (2, "is no size"),
        "generate nowhere x": (3, "no such folder"),
        "bench little --height 17": (2, "multiples of"),
        "bench nowhere": (3, "no such folder"),
        "verify little --provider nope": (2, "unknown provider 'nope'"),
        "verify nowhere": (3, "no such folder"),
        "profile little --provider nope": (2, "unknown provider 'nope'"),
    }
    said = {command: told for command, told in said.items() if command.split()[0] in COMMANDS}
    for (status, message), (found, error, heavy) in zip(said.values(), refusals(folders, *said), strict=True):
        assert (found, heavy) == (status, []), error
        assert message in error


@pytest.mark.skipif(sys.platform == "win32", reason="DirectML may be here")
def test_a_provider_that_is_not_installed_is_refused_without_torch(folders):
    commands = [
        "generate little x --provider directml",
        "generate little x --provider dml",
        "generate windows x",
        "bench little --provider dml",
        "profile little --provider dml",
        "verify little --provider dml",
    ]
    commands = [command for command in commands if command.split()[0] in COMMANDS]
    answers = refusals(folders, *commands)
    for status, error, heavy in answers:
        assert status == 3
        assert "DmlExecutionProvider is not installed" in error
        assert set(heavy) <= {"onnx", "onnxruntime"}
    for command, (_, error, _) in zip(commands, answers, strict=True):
        if "windows" in command:  # A folder whose target is not installed: what makes pictures here is said, too.
            assert error.endswith("; to use the folder on this machine, run it with --provider cpu\n")
        elif command.startswith("generate"):
            assert "on this machine" not in error
