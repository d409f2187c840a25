"""Modules of a pass's own code: those that an import statement reaches, and their files.

Nothing is imported to tell. Of code that is not ours all is taken that a statement runs or hands out: the packages
around a module, whole. Modules of olivelike have no effect when they are imported, so a name counts with the module
that defines it alone, not with what the package around it hands on beside it.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._untrusted import read_bytes
from olivelike.workflow.code.imports import Import, distributions_of, read_all, read_exports
from olivelike.workflow.passes.plugin_files import installed_spec, sibling_spec

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ENGINE = "olivelike"
"""Top-level name of olivelike's own modules."""


@dataclass(frozen=True)
class LocalModule:
    """A module that is part of a pass's code."""

    name: str
    file: Path | None
    """`None` for a namespace package."""
    search: tuple[str, ...] | None
    """Folders with the submodules; `None` unless it is a package."""

    @property
    def is_package(self) -> bool:
        """Whether relative imports start at the module itself."""
        return self.search is not None

    @property
    def is_engine(self) -> bool:
        """Whether it belongs to olivelike itself."""
        return self.name.partition(".")[0] == ENGINE


class LocalModules:
    """The code around one pass: its own top-level package, what lies beside a plugin, and olivelike.

    The standard library and installed distributions are not local: they count by version. A module on the import
    path that no distribution installed, such as one in the current folder, is local too.
    """

    def __init__(self, own: str, folder: Path | None) -> None:
        """Describe a pass's surroundings.

        Args:
            own: top-level name of the pass's own package.
            folder: folder of the plugin, in which `own` and its helpers lie; `None` for an installed pass.
        """
        self._own = own
        self._folder = folder
        self._found: dict[str, LocalModule | None] = {}
        self._local_tops: dict[str, bool] = {own: True, ENGINE: True}

    def is_local(self, name: str) -> bool:
        """Tell whether a module would be local code; true too for one that does not exist."""
        top = name.partition(".")[0]
        if top not in self._local_tops:
            is_local = self._stands_in if top in sys.stdlib_module_names else self._is_local_top
            self._local_tops[top] = is_local(top)
        return self._local_tops[top]

    def find(self, name: str) -> LocalModule | None:
        """Find a local module, or `None` if there is none of that name."""
        if name not in self._found:
            self._found[name] = self._locate(name)
        return self._found[name]

    def _stands_in(self, top: str) -> bool:
        """Tell whether a file beside the plugin has the name of one of Python's modules that is not there."""
        return top in self._beside and installed_spec(top, None) is None

    @cached_property
    def _beside(self) -> set[str]:
        return {path.stem for path in self._folder.iterdir()} if self._folder is not None else set()

    def _is_local_top(self, top: str) -> bool:
        if self._own == ENGINE:
            return False
        spec = installed_spec(top, None)
        if spec is None:
            return True
        origin = spec.origin or next(iter(_search(spec) or ()), "")
        if not {"site-packages", "dist-packages"} & set(Path(origin).parts):
            return True  # Also what was installed as editable: its version stays when its code changes.
        return not distributions_of(top)

    def _locate(self, name: str) -> LocalModule | None:
        parent_name, _, last = name.rpartition(".")
        if name.partition(".")[0] == ENGINE:
            return _locate_engine(name)
        if not parent_name:
            return self._locate_top(name)
        parent = self.find(parent_name)
        if parent is None or parent.search is None:
            return None
        if self._beside_plugin(parent.search):
            return _local(name, sibling_spec(last, parent.search))
        return _local(name, installed_spec(name, parent.search))

    def _locate_top(self, name: str) -> LocalModule | None:
        if self._folder is None:
            return _local(name, installed_spec(name, None))
        if name == self._own:
            init = self._folder / "__init__.py"
            return LocalModule(name, init if init.is_file() else None, (str(self._folder),))
        return _local(name, installed_spec(name, None) or sibling_spec(name, [str(self._folder)]))

    def _beside_plugin(self, search: tuple[str, ...]) -> bool:
        return self._folder is not None and all(Path(entry).is_relative_to(self._folder) for entry in search)


class Targets:
    """Finds the modules behind import statements."""

    def __init__(self, local: LocalModules) -> None:
        self._local = local

    def of(self, importer: LocalModule, item: Import, source: bytes) -> Iterator[str]:
        """Return absolute names: of all local modules, and of the one that a statement names elsewhere."""
        base = _absolute(importer, item)
        if not base:
            return
        if not self._local.is_local(base):
            yield base
        elif base.partition(".")[0] == ENGINE and item.names and "*" not in item.names:
            for name in item.names:
                yield from self._engine_name(base, name)
        else:
            yield from self._whole(base, source)
            for name in item.names:
                yield from self._submodules(base) if name == "*" else self._named(f"{base}.{name}", source)

    def _whole(self, name: str, source: bytes) -> Iterator[str]:
        """Yield a module, the packages around it, and what can be reached through them as attributes."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            inner = ".".join(parts[:length])
            yield inner
            yield from (sub for sub in self._members(inner) if _mentions(source, sub.rpartition(".")[2]))

    def _named(self, name: str, source: bytes) -> Iterator[str]:
        """Yield what `from package import name` gives if it is a module."""
        if self._local.find(name) is not None:
            yield from self._whole(name, source)

    def _submodules(self, package: str) -> Iterator[str]:
        """Yield what `from package import *` imports: the modules in `__all__`; all of them if it is computed."""
        module = self._local.find(package)
        if module is None or module.file is None or module.file.suffix != ".py":
            return
        data = read_bytes(module.file)
        if b"__all__" not in data:
            return
        names = read_all(data)
        for member in self._members(package):
            if names is None or member.rpartition(".")[2] in names:
                yield member

    def _members(self, package: str) -> Iterator[str]:
        """Yield the modules that lie directly in a package."""
        module = self._local.find(package)
        if module is not None and module.search is not None and not module.is_engine:
            yield from (f"{package}.{info.name}" for info in pkgutil.iter_modules(module.search))

    def _engine_name(self, base: str, name: str) -> Iterator[str]:
        """Yield the module of olivelike that defines what `from base import name` gives."""
        module = self._local.find(f"{base}.{name}")
        if module is not None:
            yield module.name
            return
        package = self._local.find(base)
        if package is None or not package.is_package or package.file is None:
            yield base
            return
        home = read_exports(read_bytes(package.file)).get(name)
        if home is None or home[0].partition(".")[0] != ENGINE:
            yield base
        else:
            yield from self._engine_name(*home)


def _absolute(importer: LocalModule, item: Import) -> str:
    if not item.level:
        return item.module
    package = importer.name if importer.is_package else importer.name.rpartition(".")[0]
    for _ in range(item.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{item.module}" if item.module else package


def _mentions(source: bytes, name: str) -> bool:
    return re.search(rb"\b%s\b" % re.escape(name.encode()), source) is not None


@cache
def _locate_engine(name: str) -> LocalModule | None:
    """Find a module of olivelike itself; many passes share them, and they do not move during a process."""
    parent_name, _, _ = name.rpartition(".")
    parent = _locate_engine(parent_name) if parent_name else None
    if parent_name and (parent is None or parent.search is None):
        return None
    return _local(name, installed_spec(name, parent.search if parent else None))


def _local(name: str, spec: ModuleSpec | None) -> LocalModule | None:
    if spec is None:
        return None
    search = _search(spec)
    file = Path(spec.origin) if spec.origin is not None and spec.has_location else None
    return LocalModule(name, file, search)


def _search(spec: ModuleSpec) -> tuple[str, ...] | None:
    """Return a package's folders; those of a namespace package as found, without asking for its parent."""
    search = spec.submodule_search_locations
    return None if search is None else tuple(getattr(search, "_path", search))
