"""Two wheels of one tree: `olivelike-runtime`, which draws and serves, and `olivelike`, which is the rest and needs it.

    python -m tools.wheels        # into dist/
    python -m tools.wheels DIR

No file is in both, so that either is removed cleanly; both name the command `olivelike`, since pipx and `uv tool` give
a person the commands of what was asked for alone. `pip install .` makes one distribution of all, as ever.

`olivelike-runtime` brings no ONNX Runtime by itself, since its distributions replace one another: its extras `cpu`,
`cuda` and `directml` name one each.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[1]

ROOMS: Final = (
    "data/published/", "data/serve/", "extras/credentials/", "extras/strips/", "families/", "model/", "runtime/",
    "serve/", "sources/adapters/", "sources/files/", "sources/identify/",
)  # fmt: skip
"""Folders of `olivelike/` that are in `olivelike-runtime` whole; so are the modules beside the rooms."""
PARTS: Final = {
    "cli/__init__.py", "cli/app.py", "cli/commands/__init__.py", "cli/commands/generate.py", "cli/commands/info.py",
    "cli/commands/serve.py", "cli/display/__init__.py", "cli/display/generate_display.py",
    "cli/display/help_pages.py", "cli/display/text.py", "cli/options.py", "cli/receipt.py", "cli/signals.py",
    "cli/stdout.py", "data/__init__.py", "engine/__init__.py", "engine/output/__init__.py",
    "engine/output/expressions.py", "engine/output/fitting_loras.py", "engine/output/folder_info.py",
    "engine/output/initializers.py", "engine/output/live_factors.py", "engine/output/lost_values.py",
    "engine/output/low_rank_factors.py", "engine/output/swap.py", "engine/output/work_ahead.py",
    "engine/plan/__init__.py", "engine/plan/adapters.py", "extras/__init__.py", "graphs/__init__.py",
    "graphs/inspect/__init__.py", "graphs/inspect/skeleton.py", "sources/__init__.py", "sources/checkpoint.py",
    "sources/hub.py", "sources/source_licenses.py", "workflow/__init__.py", "workflow/places.py",
}  # fmt: skip
"""Files of other folders that are in it."""
NEEDS: Final = (
    "annotated-types", "filelock", "huggingface_hub", "ml_dtypes", "numpy", "pillow", "platformdirs", "protobuf",
    "psutil", "pydantic", "rich", "tokenizers", "typer",
)  # fmt: skip
"""Distributions that it needs."""
RUNTIMES: Final = {"cpu": "onnxruntime", "cuda": "onnxruntime-gpu", "directml": "onnxruntime-directml"}
"""Its extras that bring ONNX Runtime."""
OPTIONS: Final = (
    "c2pa",
    "canny",
    "gguf",
    "openvino",
    "openvino-ep",
    "schedulers",
    "serve",
    "tensorrt-rtx",
    "tokenizer",
    "webgpu",
)
"""Extras that it has of those in `pyproject.toml`."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    for wheel in build(parser.parse_args().folder):
        print(wheel)
    return 0


def build(folder: Path) -> list[Path]:
    """Build both wheels into a folder; return their paths, `olivelike-runtime` first."""
    files = [name for name in tracked() if name.startswith(("olivelike/", "passes/", "workflows/"))]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    made = []
    for title, names in (
        ("olivelike-runtime", [name for name in files if is_runtime(name)]),
        ("olivelike", [name for name in files if not is_runtime(name)]),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            tree, out = Path(temporary, "tree"), Path(temporary, "out")
            for name in ("README.md", "LICENSE", *names):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            (tree / "pyproject.toml").write_text("\n".join(toml(project(title, settings, names))), encoding="utf-8")
            command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (wheel,) = out.iterdir()
            folder.mkdir(parents=True, exist_ok=True)
            made.append(Path(shutil.move(wheel, folder / wheel.name)))
    return made


def tracked() -> list[str]:
    """Return the files of the tree that are not ignored; without git, as in a container, all but bytecode."""
    if not (ROOT / ".git").exists():
        found = (path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return sorted(path.relative_to(ROOT).as_posix() for path in found)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def is_runtime(name: str) -> bool:
    """Tell whether a file of the tree is in `olivelike-runtime`."""
    folder, _, inner = name.partition("/")
    return folder == "olivelike" and ("/" not in inner or inner in PARTS or inner.startswith(ROOMS))


def project(title: str, settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of one distribution, made of those of the tree."""
    whole, setuptools = settings["project"], settings["tool"]["setuptools"]
    by_name = {requirement_name(text): text.partition(";")[0].strip() for text in whole["dependencies"]}
    extras = {name: texts for name, texts in whole["optional-dependencies"].items() if name != "dev"}
    if title == "olivelike":
        own = {"dependencies": [f"olivelike-runtime=={whole['version']}", *whole["dependencies"]]}
    else:
        own = {"dependencies": [by_name[name] for name in NEEDS]}
        extras = {name: texts for name, texts in extras.items() if name in OPTIONS}
        extras |= {name: [by_name[runtime]] for name, runtime in RUNTIMES.items()}
    places = {Path(name).parent.as_posix() for name in names}
    homes = {
        package: setuptools["package-dir"].get(package, package.replace(".", "/")) for package in setuptools["packages"]
    }
    kept = {key: value for key, value in whole.items() if key not in {"dependencies", "optional-dependencies"}}
    return {
        "build-system": settings["build-system"],
        "project": {**kept, **own, "name": title, "optional-dependencies": extras},
        "tool": {
            "setuptools": {
                **setuptools,
                "packages": [package for package, home in homes.items() if any(is_in(one, home) for one in places)],
                "package-dir": {name: home for name, home in setuptools["package-dir"].items() if home in places},
            }
        },
    }


def is_in(place: str, home: str) -> bool:
    """Tell whether a folder is a package's own, or has data of it."""
    return f"{place}/".startswith(f"{home}/")


def requirement_name(text: str) -> str:
    """Return the distribution that a requirement names."""
    found = re.match(r"[\w.-]+", text)
    assert found is not None
    return found[0]


def toml(table: Mapping[str, Any], title: str = "") -> Iterator[str]:
    """Yield the lines of a table in TOML: texts and lists are written as JSON has them."""
    if title:
        yield f"[{title}]"
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{json.dumps(key)} = {json.dumps(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toml(value, f"{title}.{json.dumps(key)}" if title else json.dumps(key))


if __name__ == "__main__":
    raise SystemExit(main())
