"""The project without one of its extras: whether the rest stays green when a folder and its tests are deleted.

    python -m tools.without_extra strips                # ruff, mypy and `make test`'s suite, some ten minutes
    python -m tools.without_extra strips tests/runtime  # these tests alone

The tracked files are copied to a temporary folder, `olivelike/extras/NAME` and `tests/extras/NAME` and their lines in
`pyproject.toml` are left out, and what remains is installed into an environment that borrows this one's libraries.
The status is that of the first command that fails, else 0.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = ("--workers", "3")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.parent.name for path in (ROOT / "olivelike" / "extras").glob("*/extra.py"))
    parser.add_argument("name", choices=names)
    parser.add_argument("tests", nargs="*", help="by default the whole suite")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olivelike-without-") as folder:
        tree = Path(folder, "tree")
        copy_without(asked.name, tree)
        python = environment(Path(folder, "env"), tree)
        commands: Sequence[Sequence[str]] = (
            ("ruff", "check", "."),
            ("mypy",),
            ("pytest", "-q", "-p", "no:cacheprovider", *(asked.tests or SUITE)),
        )
        for command in commands:
            print(f"without {asked.name}: {' '.join(command)}", flush=True)
            if status := subprocess.run([python, "-m", *command], cwd=tree, check=False).returncode:
                return status
    return 0


def copy_without(name: str, tree: Path) -> None:
    """Copy the tracked files as they are, but for an extra."""
    gone = (f"olivelike/extras/{name}/", f"tests/extras/{name}/", f"docs/extras/{name}.md")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in tracked.split("\0"):
        if path and not path.startswith(gone) and (ROOT / path).exists():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
    project = tree / "pyproject.toml"
    project.write_text(re.sub(rf'.*"olivelike\.extras\.{name}[".].*\n', "", project.read_text(encoding="utf-8")))
    # Tests ask git which files are tracked.
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tree, check=True)


def environment(folder: Path, tree: Path) -> Path:
    """Make an environment that has a tree installed, and this one's libraries; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    # A line of a `.pth` file adds a folder, not that folder's own `.pth` files: our tree is not among them.
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(tree)]
    subprocess.run([python, "-m", "pip", *install], check=True)
    for script in Path(sys.executable).parent.iterdir():  # Tests look for commands beside their interpreter.
        if not (python.parent / script.name).exists():
            (python.parent / script.name).symlink_to(script)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
