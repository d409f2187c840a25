"""Dependencies inside `olivelike/` point one way only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = [
    {"errors", "digest", "environment", "lazy", "similar_paths", "units", "untrusted"},
    {"model"},
    {
        "layout",
        "targets",
        "pass_api",
        "half",
        "export",
        "contrib",
        "fusion",
        "inspection",
        "store",
        "sources",
        "lora",
    },
    {"registry"},
    {"workflow"},
    {"plan"},
    {"output", "runtime", "bench"},
    {"profiling", "report", "verify"},
    {"executor"},
    {"engine"},
    {"doctor", "clients", "scaffold", "testing", "ablation"},
    {"demo"},
    {"cli"},
]
"""A module may import from its own layer and from those above it in this list."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in (ROOT / "olivelike").rglob("*.py") if path.name != "__main__.py")


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT / "olivelike").parts[0]
    return first.removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("olivelike."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "olivelike":
            found.update(alias.name for alias in node.names if alias.name in LEVEL)
        elif isinstance(node, ast.Import):
            found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("olivelike."))
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_from_its_own_layer_or_lower_ones(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    too_high = {name for name in imported_parts(path) if LEVEL[name] > LEVEL[part]}
    assert not too_high, f"{part} imports {too_high}"


def test_passes_know_nothing_of_store_plan_or_executor() -> None:
    for path in (ROOT / "passes").glob("*.py"):
        assert not imported_parts(path) & {"store", "plan", "executor", "engine", "cli"}, path


def test_the_store_does_not_know_what_a_pass_is() -> None:
    for path in (ROOT / "olivelike" / "store").glob("*.py"):
        assert imported_parts(path) <= {"errors", "digest", "store"}, path


def test_the_runtime_stands_beside_the_engine() -> None:
    known = {
        "errors",
        "digest",
        "lazy",
        "similar_paths",
        "untrusted",
        "model",
        "targets",
        "inspection",
        "runtime",
    }
    for path in (ROOT / "olivelike" / "runtime").rglob("*.py"):
        assert imported_parts(path) <= known, path


def test_nothing_outside_tests_imports_a_built_in_pass_by_name() -> None:
    for path in modules():
        assert "passes" not in imported_parts(path), path
