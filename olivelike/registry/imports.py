"""Reads from a module's source what it imports, without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOADERS = frozenset({"import_module", "__import__", "spec_from_file_location", "run_path", "run_module"})
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Import:
    """One import statement, or one call of `import_module` with a literal name."""

    level: int
    """Leading dots: 0 for an absolute import."""
    module: str
    names: tuple[str, ...]
    """What `from module import …` lists; each may be a submodule."""
    lazy: bool
    """Inside a function: runs only if the function does."""


@dataclass(frozen=True)
class ModuleImports:
    """All imports of one module, those under `if TYPE_CHECKING:` left out."""

    imports: tuple[Import, ...]
    computed_line: int | None
    """Line of an import whose name is computed at run time."""


@lru_cache(maxsize=1024)
def read_imports(source: bytes) -> ModuleImports:
    """Return what the source text of a module imports.

    Raises:
        SyntaxError: if it is not Python.
    """
    tree = ast.parse(source)
    found = list(_statements(tree.body, lazy=False))
    computed = None
    # Looking at every expression costs ten times as much as looking at statements, and few modules need it.
    if any(name.encode() in source for name in _LOADERS):
        literal, computed = _loader_calls(tree)
        found += literal
    return ModuleImports(tuple(found), computed)


def _statements(body: Iterable[ast.AST], *, lazy: bool) -> Iterator[Import]:
    for node in body:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(0, alias.name, (), lazy)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield Import(level, module or "", tuple(alias.name for alias in names), lazy)
            case ast.If(
                test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=orelse
            ):
                yield from _statements(orelse, lazy=lazy)
            case _:
                inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for block in _BLOCKS:
                    nested = getattr(node, block, None)
                    if isinstance(nested, list):
                        yield from _statements(nested, lazy=inside)


def _loader_calls(tree: ast.Module) -> tuple[list[Import], int | None]:
    """Return the imports made by calls with a literal name, and the line of the first other use."""
    literal: list[Import] = []
    understood: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=(
                    ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module")
                ) as func,
                args=[ast.Constant(value=str(name))],
                keywords=[],
            ):
                literal.append(Import(0, name, (), lazy=True))
                understood.add(func)
    lines = [line for node in ast.walk(tree) if node not in understood for line in _loader_uses(node)]
    return literal, min(lines, default=None)


def _loader_uses(node: ast.AST) -> Iterator[int]:
    """Yield the line of a node that is, or renames, something that loads code."""
    match node:
        case ast.Name(id=name, lineno=line) | ast.Attribute(attr=name, lineno=line) if name in _LOADERS:
            yield line
        case ast.alias(name=name, asname=str(), lineno=line) if name in _LOADERS:
            yield line
