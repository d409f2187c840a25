"""Finds in the source of a plugin what decides its result and no import statement tells.

Python can always hide such a thing; what is looked for here is every ordinary way to load code, to run a program, to
read a file, the environment or the network. Where one is found, a result is not kept unless the pass has said what
it reads: a step too many is slow, a stale result is wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from olivelike.workflow.code.imports import LOADERS, literal_import

Kind = Literal["code", "program", "network", "files", "environment"]


@dataclass(frozen=True)
class Unfollowable:
    """One place in the source."""

    kind: Kind
    line: int
    what: str
    """As it stands in the source, without calls: `os.environ`."""


_DOTTED: dict[str, Kind] = {
    **dict.fromkeys(
        ("importlib", "builtins", "runpy", "pkgutil", "imp", "zipimport", "code", "codeop", "pydoc", "marshal",
         "sys.modules", "sys.path", "sys.meta_path", "sys.path_hooks"),
        "code",
    ),
    **dict.fromkeys(
        ("subprocess", "ctypes", "cffi", "os.system", "os.popen", "os.startfile", "os.posix_spawn", "os.execv"),
        "program",
    ),
    **dict.fromkeys(
        ("socket", "urllib.request", "urllib3", "http.client", "ftplib", "requests", "httpx", "httpx2", "aiohttp",
         "huggingface_hub"),
        "network",
    ),
    **dict.fromkeys(
        ("importlib.resources", "pkgutil.get_data", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt",
         "numpy.fromfile", "numpy.memmap", "torch.load", "onnx.load", "onnx.load_model", "onnx_ir.load",
         "safetensors", "pandas.read_csv", "pandas.read_parquet", "os.listdir", "os.scandir", "os.walk", "os.open",
         "io.open", "glob", "linecache",
         "fileinput", "mmap", "sqlite3", "shelve", "zipfile", "tarfile"),
        "files",
    ),
    **dict.fromkeys(("os.environ", "os.environb", "os.getenv", "os.path.expandvars"), "environment"),
}  # fmt: skip
"""Modules, and names in modules, by what they reach; the longest name that fits counts."""
_HARMLESS = frozenset({"importlib.metadata", "importlib.invalidate_caches", "importlib.abc"})

_ANYWHERE: dict[str, Kind] = {
    **dict.fromkeys(
        (*LOADERS, "__builtins__", "__loader__", "__spec__", "__globals__", "__subclasses__", "exec_module",
         "load_module", "module_from_spec", "resolve_name", "source_to_code", "SourceFileLoader", "entry_points"),
        "code",
    ),
    **dict.fromkeys(
        ("__file__", "open", "FileIO", "read_text", "read_bytes", "iterdir", "glob", "rglob", "get_data"), "files"
    ),
    **dict.fromkeys(("environ", "getenv"), "environment"),
}  # fmt: skip
"""Names and attributes that tell enough wherever they stand."""
_NEVER_BARE = frozenset({"importlib", "pkgutil", "os", "sys"})
"""Modules that are handed to `getattr` or renamed only to hide what is taken from them."""
_NAMESPACES = frozenset({"importlib", "pkgutil", "sys"})
"""Modules whose import alone does nothing; what is taken from them does."""
_FUNCTIONS = frozenset({"exec", "eval", "compile"})
"""Built-in functions that run text; as attributes they are something else, such as `re.compile`."""
_TEXTS = frozenset({"__import__", "__builtins__", "import_module", "builtins", "importlib", "environ", "getenv"})
"""Texts by which `getattr` and dicts find the same things."""


@lru_cache(maxsize=256)
def find_unfollowable(source: bytes) -> tuple[Unfollowable, ...]:
    """Return what imports do not tell, in the order of lines."""
    tree = ast.parse(source)
    understood = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and literal_import(node) is not None
        for part in ast.walk(node.func)
    }
    aliases = dict(_aliases(tree))
    bases = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = {
        item
        for node in ast.walk(tree)
        if node not in understood
        for item in _found(node, aliases, is_base=node in bases)
    }
    return tuple(sorted(found, key=lambda item: (item.line, item.what)))


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield names that import statements bind, each with what it stands for."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    top = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (top, top)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)


def _found(node: ast.AST, aliases: dict[str, str], *, is_base: bool) -> Iterator[Unfollowable]:
    match node:
        case ast.Import(names=names, lineno=line):
            for alias in names:
                if alias.name not in _NAMESPACES:
                    yield from _judge(alias.name, line)
        case ast.ImportFrom(level=0, module=str(module), names=names, lineno=line):
            for alias in names:
                if alias.name == "*" and any(known.startswith(f"{module}.") for known in _DOTTED):
                    yield Unfollowable("code", line, f"from {module} import *")
                elif f"{module}.{alias.name}" == "importlib.import_module" and alias.asname is None:
                    continue  # Its calls are looked at.
                else:
                    yield from _judge(f"{module}.{alias.name}", line)
                    yield from _anywhere(alias.name, line)
        case ast.Attribute(attr=attribute, lineno=line):
            dotted = _dotted(node, aliases)
            if dotted is not None:
                yield from _judge(dotted, line)
            yield from _anywhere(attribute, line)
        case ast.Name(id=name, lineno=line):
            if name in _FUNCTIONS:
                yield Unfollowable("code", line, name)
            if aliases.get(name) in _NEVER_BARE and not is_base:
                yield Unfollowable("code", line, name)
            yield from _anywhere(name, line)
        case ast.Constant(value=str(text), lineno=line) if text in _TEXTS:
            yield Unfollowable("environment" if text in {"environ", "getenv"} else "code", line, repr(text))


def _judge(dotted: str, line: int) -> Iterator[Unfollowable]:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in _HARMLESS:
            return
        if name in _DOTTED:
            yield Unfollowable(_DOTTED[name], line, dotted)
            return


def _anywhere(name: str, line: int) -> Iterator[Unfollowable]:
    if name in _ANYWHERE:
        yield Unfollowable(_ANYWHERE[name], line, name)


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return what `a.b.c` stands for, `None` for anything that does not begin with an imported name."""
    match node:
        case ast.Name(id=name):
            return aliases.get(name)
        case ast.Attribute(value=value, attr=attribute):
            base = _dotted(value, aliases)
            return None if base is None else f"{base}.{attribute}"
    return None
