"""What the built wheel holds."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = ROOT / "olivelike" / "extras"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode().split("\0")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).is_file() and name.split("/")[0] in {
            "olivelike",
            "passes",
            "workflows",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        }:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    settings = (tree / "pyproject.toml").read_text(encoding="utf-8").splitlines(keepends=True)
    named = [set(re.findall(r'"olivelike\.extras\.(\w+)"', line)) for line in settings]
    kept = [
        line for line, extras in zip(settings, named, strict=True) if all((EXTRAS / one).is_dir() for one in extras)
    ]
    (tree / "pyproject.toml").write_text("".join(kept), encoding="utf-8")  # An extra's folder may be gone.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"]
    command += ["--outdir", str(folder), str(tree)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_passes_and_workflows_are_installed_below_olivelike(names: set[str]) -> None:
    assert {"olivelike/passes/__init__.py", "olivelike/passes/convert.py", "olivelike/passes/float16.py"} <= names
    assert {"olivelike/workflows/sd15_directml.yaml", "olivelike/workflows/workflow.schema.json"} <= names


def test_defaults_of_schedulers_are_installed(names: set[str]) -> None:
    assert "olivelike/data/published/schedulers.json" in names


def test_the_pages_for_browsers_are_installed(names: set[str]) -> None:
    pages = [page.parent for page in (ROOT / "olivelike").rglob("index.html")]
    assert ROOT / "olivelike" / "data" / "serve" in pages
    assert {path.relative_to(ROOT).as_posix() for page in pages for path in page.iterdir()} <= names


def test_the_template_of_reports_is_installed(names: set[str]) -> None:
    assert {f"olivelike/measure/report/{name}" for name in ("page.html", "style.css")} <= names


def test_every_module_is_installed(names: set[str]) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "olivelike").rglob("*.py")}
    assert modules <= names


def test_no_other_package_comes_along(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"olivelike"}


def test_the_passes_folder_refuses_to_be_imported_by_its_own_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import passes"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "olivelike.passes" in done.stderr
