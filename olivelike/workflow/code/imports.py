"""Reads from a module's source what it imports, without running it.

Versions of installed distributions: those that a pass's code imports, and those that it declares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from olivelike._installed import DISTRIBUTIONS, installed_version, packages_distributions
from olivelike.errors import MissingError

LOADERS = frozenset({"import_module", "__import__", "spec_from_file_location", "run_path", "run_module"})
"""Functions that load code under a name that may be computed."""
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_FLAG = "TYPE_CHECKING"


@dataclass(frozen=True)
class Import:
    """One import statement, or one call of `import_module` with a literal name."""

    level: int
    """Leading dots: 0 for an absolute import."""
    module: str
    names: tuple[str, ...]
    """Names that `from module import …` lists; each may be a submodule. Empty for `import module`."""


@dataclass(frozen=True)
class ModuleImports:
    """All imports of one module, those under `if TYPE_CHECKING:` left out."""

    imports: tuple[Import, ...]
    computed_line: int | None
    """Line of an import whose name is computed at run time."""


@lru_cache(maxsize=1024)
def read_imports(source: bytes, *, ours: bool = False) -> ModuleImports:
    """Return what the source text of a module imports, inside functions too. Raises `SyntaxError` if it is not Python.

    If the text is `ours`, olivelike's own, `TYPE_CHECKING` is that of `typing` without a look.
    """
    tree = ast.parse(source)
    flag = _Flag(frozenset({_FLAG}), frozenset({"typing"})) if ours else _flag(tree, source)
    found = list(_statements(tree.body, flag))
    computed = None
    # Looking at every expression costs ten times as much as looking at statements, and few modules need it.
    if any(name.encode() in source for name in LOADERS):
        literal, computed = _loader_calls(tree)
        found += literal
    return ModuleImports(tuple(found), computed)


@lru_cache(maxsize=256)
def read_exports(source: bytes) -> Mapping[str, tuple[str, str]]:
    """Return what the `__init__` of one of olivelike's packages hands on: module and name there, by name here."""
    found: dict[str, tuple[str, str]] = {}
    body = ast.parse(source).body
    for node in [*body, *(inner for block in body if isinstance(block, ast.If) for inner in block.body)]:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return found


def read_all(source: bytes) -> tuple[str, ...] | None:
    """Return the names of a module's `__all__`; `None` if they are not one list of texts."""
    found: list[ast.expr] = []
    mentions = 0
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                found.append(value)
            case ast.Name(id="__all__"):
                mentions += 1
    try:
        names = ast.literal_eval(found[0]) if len(found) == mentions == 1 else None
    except ValueError:
        return None
    return tuple(names) if isinstance(names, list | tuple | set) else None


@dataclass(frozen=True)
class _Flag:
    """How a module spells the flag that is true for type checkers alone."""

    names: frozenset[str]
    modules: frozenset[str]
    """Names under which it knows `typing`."""

    def is_tested_by(self, test: ast.expr) -> bool:
        match test:
            case ast.Name(id=name):
                return name in self.names
            case ast.Attribute(attr="TYPE_CHECKING", value=ast.Name(id=module)):
                return module in self.modules
        return False


def _flag(tree: ast.Module, source: bytes) -> _Flag:
    """Return the spellings that are surely those of `typing`: none if the module may give the name a value."""
    none = _Flag(frozenset(), frozenset())
    if _FLAG.encode() not in source:
        return none
    names: set[str] = set()
    modules: set[str] = set()
    uses = 0
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="typing", level=0, names=aliases) if any(a.name == _FLAG for a in aliases):
                names.update(alias.name for alias in aliases if alias.name == _FLAG and alias.asname is None)
                uses += 1
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return none
            case ast.Import(names=aliases):
                modules.update(alias.asname or alias.name for alias in aliases if alias.name == "typing")
            case ast.Name(id="TYPE_CHECKING", ctx=ast.Load()) | ast.Attribute(attr="TYPE_CHECKING", ctx=ast.Load()):
                uses += 1
    # A use of any other kind, even in a text or a comment, may be a way to change it.
    return _Flag(frozenset(names), frozenset(modules)) if uses == source.count(_FLAG.encode()) else none


def _statements(body: Iterable[ast.AST], flag: _Flag) -> Iterator[Import]:
    for node in body:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(0, alias.name, ())
            case ast.ImportFrom(module=module, names=names, level=level):
                yield Import(level, module or "", tuple(alias.name for alias in names))
            case ast.If(test=test, orelse=orelse) if flag.is_tested_by(test):
                yield from _statements(orelse, flag)
            case _:
                for block in _BLOCKS:
                    nested = getattr(node, block, None)
                    if isinstance(nested, list):
                        yield from _statements(nested, flag)


def literal_import(node: ast.AST) -> str | None:
    """Return the module that a call imports under a literal absolute name."""
    match node:
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name))],
            keywords=[],
        ) if not name.startswith("."):
            return name
    return None


def _loader_calls(tree: ast.Module) -> tuple[list[Import], int | None]:
    """Return the imports made by calls with a literal name, and the line of the first other use."""
    literal: list[Import] = []
    understood: set[ast.AST] = set()
    for node in ast.walk(tree):
        name = literal_import(node)
        if name is not None and isinstance(node, ast.Call):
            literal.append(Import(0, name, ()))
            understood.add(node.func)
    lines = [line for node in ast.walk(tree) if node not in understood for line in _loader_uses(node)]
    return literal, min(lines, default=None)


def _loader_uses(node: ast.AST) -> Iterator[int]:
    """Yield the line of a node that is, or renames, something that loads code."""
    match node:
        case ast.Name(id=name, lineno=line) | ast.Attribute(attr=name, lineno=line) if name in LOADERS:
            yield line
        case ast.alias(name=name, asname=str(), lineno=line) if name in LOADERS:
            yield line


NOT_INSTALLED = "not installed"
"""Stands for the version of a distribution that code would import if it were there."""

IDLE: Final = frozenset(
    {
        "diskcache", "filelock", "gguf", "huggingface_hub", "platformdirs", "psutil", "pydantic", "pydantic_core",
        "requests", "scipy",
    }
)  # fmt: skip
"""Modules on which no stored result of olivelike's own code depends: they fetch, lock and keep, check options, decode
what a format says to the bit, or are for schedulers at run time."""

_SAME = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")}
"""Distributions that bring the same module; only one of them is installed."""


def tool_versions(names: Iterable[str], imported: Iterable[str] = ()) -> dict[str, str]:
    """Return each distribution's version, by the name given; nothing is imported.

    Raises `MissingError` if some of `names` are not installed; the message has the command that installs them.

    Args:
        names: Distributions that must be there.
        imported: Distributions of modules that code imports, and may do without.
    """
    needed = {name: _version(name) for name in names}
    if missing := [name for name, version in needed.items() if version is None]:
        raise MissingError(f"not installed: {', '.join(missing)}; run `pip install {' '.join(missing)}`")
    found = {name: _version(name) for name in imported} | needed
    return {name: version or NOT_INSTALLED for name, version in sorted(found.items())}


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the installed distributions that bring a top-level module; none if no distribution did."""
    if module in DISTRIBUTIONS:
        return (DISTRIBUTIONS[module],)
    return _installed().get(module, ())


@cache
def _installed() -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(set(owners))) for name, owners in packages_distributions().items()}


@cache
def _version(name: str) -> str | None:
    """Return a distribution's version, if it is installed; several passes ask for the same ones."""
    return next(filter(None, map(installed_version, _SAME.get(name, (name,)))), None)
