"""Arrows between the rooms of `olivelike/` point one way only: `docs/architecture.md` has the picture."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tests.fixtures.own_code import nodes_of, own_files, tree_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "olivelike"

GROUND = {
    "errors", "digest", "_extras", "_files", "_installed", "_json_child", "_lazy", "_light_diffusers",
    "_light_onnx_ir", "_memory", "_signing_keys", "_table", "_text", "_untrusted", "__version__",
}  # fmt: skip
"""Modules that any room may use; each uses those of this set alone."""

MAY_USE = {
    "model": set(),
    "families": {"model"},
    "data": set(),
    "store": set(),
    "sources": {"model", "families", "data"},
    "graphs": {"model", "families", "sources"},
    "pass_api": {"model", "families", "graphs"},
    "runtime": {"model", "families", "graphs"},
    "workflow": {"model", "families", "data", "sources", "graphs", "pass_api"},
    "engine": {"model", "families", "sources", "graphs", "pass_api", "workflow", "store", "runtime"},
    "measure": {"model", "families", "data", "sources", "graphs", "pass_api", "workflow", "store", "engine", "runtime"},
}
"""Rooms by what they may use beside the ground; the others may use all of it."""
MAY_USE["serve"] = set(MAY_USE)
MAY_USE["testing"] = {*MAY_USE, "testing"} - {"runtime", "serve"}
MAY_USE["cli"] = {*MAY_USE, "cli"} - {"testing"}
MAY_USE["extras"] = {*MAY_USE, "extras"}
"""No room names an extra: `_extras` finds what they give. An extra may use another, as its own users do."""

ONLY = {("runtime", "graphs"): "olivelike.graphs.inspect"}
"""Of some rooms another may use one part only."""

NO_MODULES = {
    f"olivelike.{word}"
    for word in (
        "block",
        "cached_features",
        "components",
        "controlnet_inputs",
        "json",
        "lora_inputs",
        "operator",
        "parameter",
        "picture",
        "pixels_per_latent",
        "schedulers",
        "size",
        "t2i_adapter_inputs",
        "task",
    )
}
"""Texts in the code that look like names of modules."""

BY_SCAN = {"olivelike.extras"}
"""Packages that the ground looks for, and the name of an entry-point group."""

GROUPS = {"olivelike.targets"}
"""Names of entry-point groups that are no packages."""

LOOKED_UP = {"olivelike.passes", "olivelike.workflows"}
"""Found by the registry and by name, in `olivelike.workflow` alone."""


def modules() -> list[Path]:
    return [path for path in own_files("olivelike") if path.parent != PACKAGE or path.stem != "__main__"]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def used_modules(path: Path) -> set[str]:
    """Return the modules of olivelike that a module imports, or names in a text."""
    found: set[str] = set()
    for node in nodes_of(path):
        match node:
            case ast.ImportFrom(module="olivelike", names=names):
                found.update(f"olivelike.{alias.name}" for alias in names)
            case ast.ImportFrom(module=str(module)):
                found.add(module)
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"olivelike(\.[a-z_0-9]+)+", text):
                found.add(text)
    return {name for name in found if name.startswith("olivelike.")} - NO_MODULES - BY_SCAN


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_at_once(path: Path) -> set[str]:
    """Return what a module imports as it is imported itself, with the packages around that; not those around itself."""
    found: set[str] = set()
    statements: list[ast.stmt] = list(tree_of(path).body)
    for statement in statements:
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                statements += orelse
            case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
                statements += [*body, *orelse]
            case ast.ImportFrom(module=str(module), names=names):
                found.update((module, *(f"{module}.{alias.name}" for alias in names)))
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
    own = name_of(path)
    around = {name.rsplit(".", count)[0] for name in found for count in range(name.count(".") + 1)}
    return {name for name in around if not f"{own}.".startswith(f"{name}.")}


def test_a_room_uses_only_what_lies_below_it() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        if room == "__init__":
            continue
        for name in used_modules(path):
            used = name.split(".")[1]
            part = ONLY.get((room, used), "olivelike")
            allowed = (
                used == room
                or used in GROUND
                or (used in MAY_USE.get(room, set()) and f"{name}.".startswith(f"{part}."))
                or name in GROUPS
                or (name in LOOKED_UP and room == "workflow")
            )
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} uses {name}")
    assert not wrong, "\n".join(wrong)


def test_the_rooms_stand_on_one_another() -> None:
    settled: set[str] = set()
    while rest := {room: uses - settled - {room} for room, uses in MAY_USE.items() if room not in settled}:
        free = {room for room, uses in rest.items() if not uses}
        assert free, f"a circle among {sorted(rest)}"
        settled |= free


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Whichever comes first, each is imported whole; packages count, whose own file runs before theirs."""
    known = {name_of(path): path for path in modules()}
    rest = {name: imported_at_once(path) & known.keys() - {name} for name, path in known.items()}
    while free := {name for name, uses in rest.items() if not uses}:
        rest = {name: uses - free for name, uses in rest.items() if name not in free}
    assert not rest, f"a circle among {sorted(rest)}, or above one"


MOST_CIRCLES = 3
"""Groups of modules that name one another, in functions and for type checkers too; the number may only shrink."""


def test_few_modules_name_one_another() -> None:
    """Who changes one of a circle has all of it to read."""
    paths = {name_of(path): path for path in modules()}
    paths |= {f"olivelike.passes.{path.stem}": path for path in own_files("passes") if path.stem != "__init__"}
    uses = {name: named_modules(name, path, paths.keys()) - {name} for name, path in paths.items()}
    found = circles(uses)
    assert len(found) <= MOST_CIRCLES, "\n".join(" ".join(sorted(circle)) for circle in found)


def named_modules(own: str, path: Path, known: Collection[str]) -> set[str]:
    """Return the modules that a module imports anywhere: of a package, the module in it where there is one."""
    found: set[str] = set()
    for node in nodes_of(path):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                package = ".".join(filter(None, (own.rsplit(".", level)[0] if level else "", module)))
                inside = (f"{package}.{alias.name}" for alias in names)
                found.update(name if name in known else package for name in inside)
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
    return found & {*known}


def circles(uses: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that are reached from one another."""

    def reached(start: str) -> set[str]:
        found, todo = set(), [start]
        while todo:
            new = uses[todo.pop()] - found
            found |= new
            todo += new
        return found

    behind = {name: reached(name) for name in uses}
    return {frozenset(one for one in behind[name] if name in behind[one]) for name in uses if name in behind[name]}


def test_circles_are_found() -> None:
    uses = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e", "a"}}
    assert circles(uses) == {frozenset("bc"), frozenset("ef")}


def test_about_a_dozen_rooms() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(MAY_USE) - ({"extras"} - rooms)


@pytest.mark.parametrize("forbidden", ["store", "engine", "cli"])
def test_passes_know_nothing_of_store_or_engine(forbidden: str) -> None:
    for path in (ROOT / "passes").glob("*.py"):
        assert not {name for name in used_modules(path) if name.split(".")[1] == forbidden}, path


def test_no_room_has_a_single_file() -> None:
    folders = {path.parent for path in modules()} - {PACKAGE / "data"}
    lonely = [folder for folder in folders if len(list(folder.glob("*.py"))) + len(list(folder.glob("*/"))) < 3]
    assert not [folder for folder in lonely if not any(folder.glob("*/__init__.py"))]


def test_no_file_name_means_three_things() -> None:
    names = [path.name for path in modules() if path.name not in {"__init__.py", "extra.py"}]
    assert not {name for name in names if names.count(name) > 2}


NAMING_THE_UNET = {
    "olivelike/families/networks/unet.py",
    "olivelike/families/sd1.py",
    "olivelike/measure/clients/requirements.py",
    "olivelike/model/client_layouts.py",
    "olivelike/runtime/prompts/syntax.py",
    "olivelike/workflow/passes/new_pass.py",
    "olivelike/workflow/passes/registry.py",
}
"""Modules with the component's name in their code: its family and network, prompts, clients of Stable Diffusion,
templates for pass authors. All others ask `olivelike.families`; the list may only shrink."""


def test_the_denoiser_is_named_in_few_modules() -> None:
    paths = [path for path in (*modules(), *(ROOT / "passes").glob("*.py")) if "extras" not in path.parts]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert {name for name, text in texts.items() if re.search("[\"']unet[\"']", text)} <= NAMING_THE_UNET
    assert not [name for name, text in texts.items() if "is_xl" in text]
