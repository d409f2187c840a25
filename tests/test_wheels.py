"""The two wheels of one tree: each file is in one, and what draws and serves needs none of the other."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from olivelike._installed import DISTRIBUTIONS
from tools import wheels
from tools.install import settings
from tools.wheels import NEEDS, OPTIONS, ROOT, RUNTIMES, build, is_runtime, requirement_name

ELSEWHERE = {
    "olivelike.cli.options": {
        "olivelike.engine.prepared", "olivelike.measure.report.recorded_runs", "olivelike.store",
        "olivelike.workflow.passes",
    },
    "olivelike.runtime.sessions.load_failure": {"olivelike.graphs.inspect.inspection"},
    "olivelike.serve.runs.run_orders": {"olivelike.workflow.extends", "olivelike.workflow.findings"},
}  # fmt: skip
"""Modules of `olivelike` that those of `olivelike-runtime` use where `lacking` tells of them, or no command asks."""
SCRIPTS = "Scripts" if sys.platform == "win32" else "bin"
LARGE = {"diffusers", "onnx", "onnx-ir", "torch", "transformers"}
"""Distributions that some of its functions still import."""


def modules() -> dict[str, Path]:
    files = (Path(name) for name in wheels.tracked() if is_runtime(name) and name.endswith(".py"))
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """Modules that a module imports as it is imported, and in its functions; not those for type checkers."""
    at_once: set[str] = set()
    later: set[str] = set()
    pending: list[tuple[ast.AST, set[str]]] = [(ast.parse((ROOT / path).read_text(encoding="utf-8")), at_once)]
    while pending:
        node, found = pending.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                pending += [(child, found) for child in orelse]
                continue
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.update(f"{module}.{alias.name}" for alias in names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = later
        pending += [(child, found) for child in ast.iter_child_nodes(node)]
    return at_once, later


def ours(name: str) -> str | None:
    """Return the module that an imported name is or is in; `None` for other distributions."""
    if name.partition(".")[0] != "olivelike":
        return None
    place = Path(*name.split("."))
    there = (ROOT / place).is_dir() or (ROOT / place).with_suffix(".py").is_file()
    return name if there else name.rpartition(".")[0]


def test_what_draws_and_serves_imports_nothing_of_the_other_wheel() -> None:
    here, found = modules(), {}
    for name, path in here.items():
        at_once, later = ({module for one in some if (module := ours(one))} for some in imports(path))
        assert at_once <= here.keys(), name
        if absent := later - here.keys():
            found[name] = absent
    assert found == ELSEWHERE


def test_what_draws_and_serves_imports_what_its_wheel_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    optional = {requirement_name(text) for name in OPTIONS if name in extras for text in extras[name]}
    optional |= {*RUNTIMES.values(), *LARGE}
    for name, path in modules().items():
        for kind, some in zip(("at once", "later"), imports(path), strict=True):
            tops = {one.partition(".")[0] for one in some} - {"olivelike", *sys.stdlib_module_names}
            allowed = {*NEEDS, *(optional if kind == "later" or name.startswith("olivelike.serve.") else ())}
            assert {DISTRIBUTIONS[top] for top in tops} <= allowed, (name, kind)


def test_what_draws_and_serves_imports_neither_torch_nor_diffusers() -> None:
    draw = [path for name, path in modules().items() if name.startswith(("olivelike.runtime.", "olivelike.serve."))]
    tops = {one.partition(".")[0] for path in draw for some in imports(path) for one in some}
    assert not tops & {"diffusers", "peft", "torch"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("wheels"))


def test_no_file_is_in_both_wheels_and_none_is_in_neither(built: list[Path]) -> None:
    runtime, rest = (
        {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} for wheel in built
    )
    assert not runtime & rest
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "olivelike").rglob("*.py")} <= runtime | rest
    assert {"olivelike/data/serve/index.html", "olivelike/py.typed"} <= runtime
    assert {"olivelike/passes/fuse.py", "olivelike/workflows/demo.yaml", "olivelike/data/demo/model_index.json"} <= rest
    folder = ROOT / "olivelike" / "data" / "demo_transformer"
    assert {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()} <= rest


def test_olivelike_needs_the_same_olivelike_runtime(built: list[Path]) -> None:
    texts = []
    for wheel in built:
        archive = zipfile.ZipFile(wheel)
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        texts.append(archive.read(name).decode())
    versions = [re.search(r"^Version: (.+)$", text, re.MULTILINE)[1] for text in texts]
    assert versions[0] == versions[1]
    assert f"Requires-Dist: olivelike-runtime=={versions[0]}\n" in texts[1]
    assert not re.search(r"Requires-Dist: (torch|diffusers|transformers|onnx|onnx-ir|peft|accelerate)\b[^-]", texts[0])


def test_both_wheels_name_the_command(built: list[Path]) -> None:
    points = []
    for wheel in built:
        archive = zipfile.ZipFile(wheel)
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/entry_points.txt"))
        points.append(archive.read(name).decode())
    assert points[0] == points[1] == "[console_scripts]\nolivelike = olivelike.cli:main\n", "pipx shows no other"


@pytest.fixture(scope="module")
def packaging_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with what people install and check wheels with."""
    home = tmp_path_factory.mktemp("packaging_tools")
    venv.create(home, with_pip=True)
    folder = home / SCRIPTS
    names = ("uv", "pipx", "twine", "check-wheel-contents")
    subprocess.run([folder / "python", "-m", "pip", "install", "-q", *names], check=True)
    return folder


@pytest.mark.slow
def test_the_wheels_are_what_an_index_takes(built: list[Path], packaging_tools: Path) -> None:
    subprocess.run([packaging_tools / "twine", "check", "--strict", *built], check=True)
    subprocess.run([packaging_tools / "check-wheel-contents", *built], check=True)


def installed_with(program: str, tools: Path, built: list[Path], home: Path) -> tuple[Path, Path]:
    """Install both wheels into an environment of their own; return its `olivelike` and its Python."""
    if program == "pipx":
        places = {"PIPX_HOME": str(home), "PIPX_BIN_DIR": str(home / SCRIPTS), "PIPX_MAN_DIR": str(home / "man")}
        found = f"--pip-args=--find-links={built[0].parent}"
        command = [tools / "pipx", "install", "--quiet", found, built[1]]
        subprocess.run(command, check=True, env={**os.environ, **places})
        return home / SCRIPTS / "olivelike", home / "venvs" / "olivelike" / SCRIPTS / "python"
    venv.create(home, with_pip=program == "pip")
    python = home / SCRIPTS / "python"
    if program == "pip":
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", *built], check=True)
    else:
        command = [tools / "uv", "pip", "install", "--quiet", "--python", python, *built]
        subprocess.run(command, check=True, env={**settings(), **os.environ})
    return home / SCRIPTS / "olivelike", python


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv", "pipx"])
def test_the_wheels_alone_optimise_and_draw(
    program: str, packaging_tools: Path, built: list[Path], tmp_path: Path
) -> None:
    olivelike, python = installed_with(program, packaging_tools, built, tmp_path / "home")
    work = tmp_path / "work"
    work.mkdir()
    bare = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "OLIVELIKE_CACHE_DIR"}}

    def told(*command: str | Path) -> str:
        return subprocess.run(command, check=True, cwd=work, env=bare, capture_output=True, text=True).stdout

    places = told(
        python, "-c", "import olivelike, olivelike.passes as p; print(olivelike.__file__, p.__file__, sep='\\n')"
    )
    assert all(Path(place).is_relative_to(tmp_path / "home") for place in places.splitlines())
    # What `make demo` does, and then the README's `convert`.
    told(olivelike, "run", "demo")
    told(olivelike, "generate", "models/demo", "a red circle on a blue background", "--seed", "1", "-o", "circle.png")
    told(olivelike, "convert", "demo", "-t", "directml", "-o", "models/painter")
    with Image.open(work / "circle.png") as picture:
        red, green, blue = picture.convert("RGB").getpixel((picture.width // 2, picture.height // 2))
    assert red > 2 * max(green, blue)


@pytest.fixture(scope="module")
def alone(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command line of an environment with `olivelike-runtime` and what its extras `cpu` and `serve` bring."""
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, with_pip=True)
    folder = home / SCRIPTS
    subprocess.run([folder / "python", "-m", "pip", "install", "-q", f"{built[0]}[cpu,serve]"], check=True)
    return folder / "olivelike"


@pytest.mark.slow
def test_olivelike_runtime_alone_tells_what_it_lacks(alone: Path, tmp_path: Path) -> None:
    def olivelike(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([alone, *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert olivelike("--version").stdout.startswith("olivelike ")
    told = olivelike("--help").stdout
    assert "\n  generate " in told
    assert "\n  run " not in told
    assert "\n  cache " not in told
    for command in ("run", "convert", "doctor"):
        done = olivelike(command, "demo")
        assert done.returncode == 3
        assert done.stderr.endswith("olivelike-runtime alone is installed; run `pip install olivelike`\n")
    assert olivelike("generate", "--help").returncode == 0
    assert olivelike("serve", "--help").returncode == 0


@pytest.mark.slow
def test_olivelike_runtime_alone_draws_what_all_of_olivelike_draws(alone: Path, tmp_path: Path) -> None:
    whole = [sys.executable, "-m", "olivelike"]
    words = ["generate", "demo", "a red circle on a blue background", "--seed", "1", "-o"]
    for command in (
        [*whole, "run", "demo", "--output", "demo"],
        [*whole, *words, "whole.png"],
        [alone, *words, "alone.png"],
    ):
        subprocess.run(command, check=True, cwd=tmp_path)
    with Image.open(tmp_path / "whole.png") as wanted, Image.open(tmp_path / "alone.png") as drawn:
        assert drawn.tobytes() == wanted.tobytes()
