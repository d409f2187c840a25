"""Run the tests of what draws and serves in an environment that has `olivelike-runtime` alone, and no torch.

    python -m tools.runtime_tests                 # all of them, in .venv-runtime
    python -m tools.runtime_tests tests/serve -x  # what pytest is given

Folders that tests share are made here, with torch, and read there. A test that imports itself what is not there is
skipped, and the summary says what it needs; what the distribution imports and lacks is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.wheels import ROOT, build, requirement_name, tracked

EXTRAS: Final = "cpu,serve,canny,openvino,tokenizer"
"""Of `olivelike-runtime`: what has tests."""
NEEDED: Final = {
    "defusedxml", "httpx", "hypothesis", "jsonschema", "openai", "prometheus-client", "pytest", "webuiapi",
}  # fmt: skip
"""Of the extra `dev`: what tests themselves need. None of these needs torch or onnx."""
TESTS: Final = (
    "tests/runtime", "tests/serve", "tests/families", "tests/model", "tests/cli/test_generate.py",
    "tests/cli/test_generate_prompts.py", "tests/cli/test_picture_info.py", "tests/cli/test_folder_info.py",
)  # fmt: skip
HOME: Final = ROOT / ".venv-runtime"


def main(arguments: Sequence[str]) -> int:
    """Make the environment anew, and run pytest in it; return its exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        there, folders = Path(temporary, "tree"), Path(temporary, "folders")
        python = make_environment(Path(temporary, "wheels"))
        copy_tests(there)
        kept = {**os.environ, "OLIVELIKE_TEST_FOLDERS": str(folders)}
        shelf = {"OLIVELIKE_TESTING_SHELF": str(ROOT / "tests" / "fixtures" / "shelf")}
        folders.mkdir()
        subprocess.run([sys.executable, "-m", "tests.fixtures.made_folders"], cwd=ROOT, env=kept | shelf, check=True)
        command = [python, "-m", "pytest", "-p", "tests.fixtures.runtime_alone", *(arguments or ("-q", *TESTS))]
        return subprocess.run(command, cwd=there, env=kept, check=False).returncode


def make_environment(wheels: Path) -> Path:
    """Build `olivelike-runtime` and install it with what its tests need; return the interpreter."""
    venv.create(HOME, with_pip=True, clear=True)
    python = HOME / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        "dev"
    ]
    needed = [text for text in dev if requirement_name(text) in NEEDED]
    command = [python, "-m", "pip", "install", "-q", f"{build(wheels)[0]}[{EXTRAS}]", *needed]
    subprocess.run(command, check=True)
    return python


def copy_tests(tree: Path) -> None:
    """Copy the tests and what they read: in the tree they would import its own modules."""
    for name in tracked():
        if name.startswith(("tests/", "docs/")) or name == "pyproject.toml":
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
