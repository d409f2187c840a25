"""The code that makes a result: a module, the local modules that it imports, and versions of the other ones.

Nothing is imported to compute it. Names are stable when a project moves: `olivelike.passes.float16` for installed
modules, `.sharpen` for modules of a plugin, `tint` for helpers beside it.

What decides a plugin's result and no import statement tells is looked for in its source. Python can always hide such a
thing; what is found is every ordinary way to load code, to run a program, to read a file, the environment or the
network. Where one is found, a result is not kept unless the pass has said what it reads: a step too many is slow, a
stale result is wrong.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from olivelike._untrusted import read_bytes
from olivelike.digest import digest_bytes, digest_file, digest_json
from olivelike.workflow.code.imports import IDLE, LOADERS, distributions_of, literal_import, read_imports
from olivelike.workflow.code.local_modules import ENGINE, LocalModule, LocalModules, Targets
from olivelike.workflow.code.once import once
from olivelike.workflow.passes.plugin_files import module_names, private_package
from olivelike.workflow.passes.registry import PassEntry

_MOST_BYTES = 1 << 30
"""Most bytes of a module; some of compiled code have 100 MB."""
ABSENT = "absent"
"""Stands for the digest of an imported module that is not there, such as an optional one."""

_REMEDIES: Mapping[Kind, str] = {
    "code": "code is loaded that only a run knows; name the module in an import statement",
    "program": "what another program or library answers is not known before a run, so its result can't be kept",
    "network": "what the network answers is not known before a run, so its result can't be kept",
    "files": "it may read files that its key does not hold; name those that decide the result in `files`, or "
    "write `files = ()` into {owner} if none does",
    "environment": "it reads the environment, which its key does not hold; name the variables that decide the "
    "result in `environment`, or write `environment = ()` into {owner} if none does",
}


@dataclass(frozen=True)
class CodeDigest:
    """Modules and libraries of a pass's code, with its digest."""

    digest: str | None
    """SHA-256 over `modules`; `None` if part of the code can't be known, so results must not be cached."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Digest of each local module, by stable name."""
    uncacheable: str | None = None
    """Why there is no digest."""
    tools: tuple[str, ...] = ()
    """Distributions of the modules that are not local, sorted."""

    def with_rule(self, name: str, rule: CodeDigest) -> CodeDigest:
        """Return the code together with that of a rule that a plugin adds."""
        if self.digest is None or rule.digest is None:
            reason = self.uncacheable or rule.uncacheable
            return CodeDigest(None, self.modules, reason, self.tools)
        theirs = {
            module if module.partition(".")[0] == ENGINE else f"rule {name}: {module}": digest
            for module, digest in rule.modules.items()
        }
        modules = dict(sorted({**self.modules, **theirs}.items()))
        tools = tuple(sorted({*self.tools, *rule.tools}))
        return CodeDigest(digest_json(["code/1", modules]), modules, None, tools)


def code_digest(entry: PassEntry, lent: Sequence[str] = ()) -> CodeDigest:
    """Digest the code of a pass as it is on disk now.

    `lent` are modules of olivelike whose objects the pass is handed.
    """
    said = {kind for kind in ("files", "environment") if getattr(entry.cls, kind) is not None}
    modules = [entry.cls.__module__, *lent]
    return _digest(modules, entry.plugin, said, entry.cls.__name__)


def module_code_digest(*modules: str, plugin: str | None = None) -> CodeDigest:
    """Digest the code of modules that are no pass: installed ones, or those of a plugin."""
    return _digest(modules, plugin, set())


@lru_cache(maxsize=1)
def engine_code() -> str:
    """Return the digest of all Python files of olivelike and of its passes, as they were when first asked for."""
    found: dict[str, str] = {}
    for package in (ENGINE, f"{ENGINE}.passes"):
        spec = find_spec(package)
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in root.rglob("*.py"):
                found[f"{package}/{path.relative_to(root).as_posix()}"] = digest_file(path)
    return digest_json(["engine/1", dict(sorted(found.items()))])


def plugin_modules(location: Path) -> Mapping[str, str]:
    """Return the digest of each module that a plugin file or folder consists of, as far as imports tell."""
    return {name: digest for name, digest in _plugin_walk(location).modules.items() if name.partition(".")[0] != ENGINE}


def plugin_sources(location: Path) -> tuple[Path, ...]:
    """Return the files of the modules that a plugin consists of."""
    return tuple(sorted(_plugin_walk(location).files))


def _plugin_walk(location: Path) -> _Walk:
    package = private_package(location)
    walk = _Walk(package, str(location))
    names = [location.stem] if location.is_file() else module_names(location)
    walk.follow([package, *(f"{package}.{name}" for name in names)])
    return walk


def _digest(modules: Sequence[str], plugin: str | None, said: set[str], owner: str = "") -> CodeDigest:
    """Digest modules; `owner` is the class of the first one whose result is to be kept."""
    question = ("code", tuple(modules), plugin, frozenset(said), owner)
    return once(question, lambda: _digested(modules, plugin, said, owner))


def _digested(modules: Sequence[str], plugin: str | None, said: set[str], owner: str) -> CodeDigest:
    walk = _Walk(modules[0], plugin)
    walk.follow(modules)
    found = dict(sorted(walk.modules.items()))
    tools = tuple(sorted(walk.tools))
    counting = [(file, item) for file, item in walk.found if item.kind not in said and walk.reaches(owner, file, item)]
    problems = [*walk.problems, *(_explained(file, item, owner) for file, item in counting)]
    if problems:
        return CodeDigest(None, found, problems[0], tools)
    return CodeDigest(digest_json(["code/1", found]), found, None, tools)


def _explained(file: Path, item: Unfollowable, owner: str) -> str:
    remedy = _REMEDIES[item.kind].format(owner=f"class {owner}" if owner else "the class")
    return f"{file}:{item.line}: {item.what}: {remedy}"


class _Walk:
    """Follows imports breadth first; `modules` grows by one digest per module."""

    def __init__(self, module: str, plugin: str | None) -> None:
        location = Path(plugin) if plugin is not None else None
        if location is not None and location.is_absolute():
            self._private = private_package(location)
            self._local = LocalModules(self._private, location if location.is_dir() else location.parent)
        else:
            self._private = ""
            self._local = LocalModules(module.partition(".")[0], None)
        self._targets = Targets(self._local)
        self.modules: dict[str, str] = {}
        self.files: set[Path] = set()
        """Files of the modules that are not olivelike's."""
        self.tools: set[str] = set()
        self.problems: list[str] = []
        """Why some of the code can't be known."""
        self.found: list[tuple[Path, Unfollowable]] = []
        """Other things in it that may decide a result."""
        self._start = module
        self._own_file: Path | None = None
        """File of the first module."""
        self._is_shared = False
        """Whether another module imports it."""

    def reaches(self, owner: str, file: Path, item: Unfollowable) -> bool:
        """Tell whether a class of the first module may reach a place; not what only another class beside it does."""
        return self._is_shared or file != self._own_file or item.alone_in in ("", owner)

    def follow(self, starts: Sequence[str]) -> None:
        """Visit `starts` and all that they reach."""
        queue = deque(starts)
        done: set[str] = set()
        while queue:
            name = queue.popleft()
            if name in done:
                continue
            done.add(name)
            module = self._local.find(name)
            if module is not None:
                queue.extend(self._visit(module))
            elif name in starts:
                self.problems.append(f"the source of module {name} can't be found")
            else:
                self.modules[self._stable(name)] = ABSENT

    def _visit(self, module: LocalModule) -> Iterator[str]:
        """Take the module's digest and return the absolute names of local modules that it imports."""
        if module.file is None:  # A namespace package has no code.
            return
        try:
            data = read_bytes(module.file, _MOST_BYTES)
        except OSError as error:
            self.problems.append(f"{module.file} can't be read: {error.strerror}")
            return
        if module.file.suffix == ".pyc":
            self.problems.append(f"module {module.name} has no source, only {module.file}")
        is_source = module.file.suffix == ".py"
        if is_source:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.modules[self._stable(module.name)] = digest_bytes(data)
        if not module.is_engine:
            self.files.add(module.file)
        if module.name == self._start:
            self._own_file = module.file
        elif module.file == self._own_file:
            self._is_shared = True
        if is_source:
            yield from self._imports(module, module.file, data)

    def _imports(self, module: LocalModule, file: Path, data: bytes) -> Iterator[str]:
        try:
            read = read_imports(data, ours=module.is_engine)
            if not module.is_engine:
                self.found += [(file, item) for item in find_unfollowable(data)]
        except (SyntaxError, ValueError, RecursionError) as error:
            self.problems.append(f"{file} is not valid Python: {error}")
            return
        if read.computed_line is not None:
            self.problems.append(f"{file}:{read.computed_line}: {_REMEDIES['code']}")
        for item in read.imports:
            for target in self._targets.of(module, item, data):
                self._is_shared |= target == self._start != module.name
                if self._local.is_local(target):
                    yield target
                else:
                    self._note_tool(target.partition(".")[0], idle_counts=not module.is_engine)

    def _note_tool(self, top: str, *, idle_counts: bool) -> None:
        # Options are in the key as what pydantic made of them.
        if top in {"pydantic", "pydantic_core"} or (top in IDLE and not idle_counts):
            return
        if top in sys.stdlib_module_names:
            return
        self.tools.update(distributions_of(top))

    def _stable(self, name: str) -> str:
        """Return the name under which a module enters the digest."""
        if not self._private or name.partition(".")[0] != self._private:
            return name
        return name.removeprefix(self._private) or "."


Kind = Literal["code", "program", "network", "files", "environment"]


@dataclass(frozen=True)
class Unfollowable:
    """One place in the source."""

    kind: Kind
    line: int
    what: str
    """As it stands in the source, without calls: `os.environ`."""
    alone_in: str = ""
    """The class in whose methods it stands, if nothing else in the file names that; empty otherwise."""


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
    owners = dict(_owners(tree))
    found = {
        replace(item, alone_in=owners.get(node, ""))
        for node in ast.walk(tree)
        if node not in understood
        for item in _found(node, aliases, is_base=node in bases)
    }
    return tuple(sorted(found, key=lambda item: (item.line, item.what)))


def _owners(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield what stands in methods of classes that nothing else in a file names, each with the class."""
    names = Counter(_names(tree))
    if names["__init_subclass__"]:
        return
    for cls in tree.body:
        if not isinstance(cls, ast.ClassDef) or cls.decorator_list or cls.keywords:
            continue
        if names[cls.name] > Counter(_names(cls))[cls.name]:
            continue
        for method in cls.body:
            if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                yield from ((node, cls.name) for statement in method.body for node in ast.walk(statement))


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that is used, and every text, since that can be one; not those of definitions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name
            case ast.alias(name=name, asname=asname):
                yield from filter(None, (name, asname))
            case ast.FunctionDef(name="__init_subclass__" as name):
                yield name


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
