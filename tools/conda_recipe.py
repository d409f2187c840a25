"""Writes `conda/recipe.yaml` for rattler-build, with both packages, from `pyproject.toml` and `tools/wheels.py`.

    python -m tools.conda_recipe

Format: https://rattler-build.prefix.dev/latest/reference/recipe_file/. Names are those of conda-forge.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.wheels import NEEDS, OPTIONS, requirement_name

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "conda" / "recipe.yaml"

NAMES: Final = {"msgpack": "msgpack-python", "opencv-python-headless": "py-opencv", "torch": "pytorch"}
"""What conda-forge calls otherwise than PyPI."""
BY_PIP: Final = {
    "c2pa-python", "model-signing", "onnxruntime-directml", "onnxruntime-ep-nv-tensorrt-rtx", "onnxruntime-ep-openvino",
    "onnxruntime-ep-webgpu", "onnxruntime-extensions", "onnxruntime-gpu", "openvino",
}  # fmt: skip
"""What conda-forge has not, has under several names, or, as CUDA, as a build of `onnxruntime`."""


def recipe() -> dict[str, Any]:
    """Return the recipe as a value."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = f"python {project['requires-python']}"
    needed = {requirement_name(text): text for text in project["dependencies"]}
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name != "dev"}
    runtime = {
        "imports": ["olivelike.runtime", "olivelike.serve"],
        "run": [python, *_conda(needed[name] for name in NEEDS)],
        "constraints": [*_conda([needed["onnxruntime"]]), *_options(extras, OPTIONS)],
        "summary": "Draws and serves with ONNX pipelines that olivelike has optimised",
        "extra": {"python": {"entry_points": [f"{name} = {place}" for name, place in project["scripts"].items()]}},
    }
    whole = {
        "imports": ["olivelike", "olivelike.engine", "olivelike.passes"],
        "run": [python, '${{ pin_subpackage("olivelike-runtime", exact=True) }}', *_conda(needed.values())],
        "constraints": _options(extras, extras),
        "summary": project["description"],
        # `olivelike-runtime` has the command, and conda wants one owner of each file.
        "extra": {"files": {"exclude": ["bin/olivelike", "Scripts/olivelike.exe", "Scripts/olivelike-script.py"]}},
    }
    return {
        "schema_version": 1,
        "context": {"version": project["version"]},
        "recipe": {"name": "olivelike", "version": "${{ version }}"},
        "source": {"path": ".."},
        "build": {"number": 0},
        "outputs": [_output("olivelike-runtime", **runtime), _output("olivelike", **whole)],
        "about": {"license": project["license"], "license_file": project["license-files"][0]},
    }


def text() -> str:
    """Return the file as it should be: JSON in lines, which is YAML."""
    head = "# yaml-language-server: $schema=https://raw.githubusercontent.com/prefix-dev/recipe-format/main/schema.json"
    return "\n".join([head, "# `python -m tools.conda_recipe` writes this from pyproject.toml.", *_yaml(recipe()), ""])


def _output(
    name: str, *, imports: list[str], run: list[str], constraints: list[str], summary: str, extra: Mapping[str, Any]
) -> dict[str, Any]:
    install = f"python -m pip install -vv --no-deps --no-index --find-links wheels {name}"
    return {
        "package": {"name": name},
        "build": {"noarch": "python", "script": ["python -m tools.wheels wheels", install], **extra},
        "requirements": {
            "host": [run[0], "pip", "python-build", "setuptools >=77"],
            "run": run,
            "run_constraints": constraints,
        },
        # The wheels name onnxruntime-gpu and onnxruntime-directml, so `pip check` misses them beside conda's builds.
        "tests": [{"python": {"imports": imports, "pip_check": False}}, {"script": ["olivelike --help"]}],
        "about": {"summary": summary},
    }


def _options(extras: Mapping[str, list[str]], names: Iterable[str]) -> list[str]:
    return sorted({one for name in names if name in extras for one in _conda(extras[name])})


def _conda(requirements: Iterable[str]) -> list[str]:
    """Return requirements as conda writes them; what pip alone has is left out."""
    found = []
    for requirement in requirements:
        name = requirement_name(requirement)
        span = re.sub(r"^\[.*?\]", "", requirement.partition(";")[0].strip().removeprefix(name))  # conda has no extras
        if name not in BY_PIP:
            found.append(f"{NAMES.get(name, name)} {span}".strip())
    return found


def _yaml(value: Any, level: int = 0) -> Iterator[str]:
    """Yield a value's lines; texts are quoted as in JSON."""
    indent = "  " * level
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping | list):
                yield f"{indent}{key}:"
                yield from _yaml(inner, level + 1)
            else:
                yield f"{indent}{key}: {json.dumps(inner)}"
        return
    for inner in value:
        if isinstance(inner, Mapping):
            first, *rest = _yaml(inner, level + 1)
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield f"{indent}- {json.dumps(inner)}"


if __name__ == "__main__":
    RECIPE.parent.mkdir(exist_ok=True)
    RECIPE.write_text(text(), encoding="utf-8", newline="\n")
