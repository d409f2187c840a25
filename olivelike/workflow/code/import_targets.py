"""Which modules an import statement reaches.

Of code that is not ours all is taken that a statement runs or hands out: the packages around a module, whole. Modules
of olivelike have no effect when they are imported, so a name counts with the module that defines it alone, not with
what the package around it hands on beside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from olivelike.workflow.code.imports import read_all, read_exports
from olivelike.workflow.code.local_modules import ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.workflow.code.imports import Import
    from olivelike.workflow.code.local_modules import LocalModule, LocalModules


class Targets:
    """Finds the modules behind import statements."""

    def __init__(self, local: LocalModules) -> None:
        self._local = local

    def of(self, importer: LocalModule, item: Import, source: bytes) -> Iterator[str]:
        """Return absolute names: of all local modules, and of the one that a statement names elsewhere.

        Args:
            importer: The module that the statement stands in.
            item: The statement.
            source: The importer's text.
        """
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
        data = module.file.read_bytes()
        if b"__all__" not in data:
            return
        names = read_all(data)
        for member in self._members(package):
            if names is None or member.rpartition(".")[2] in names:
                yield member

    def _members(self, package: str) -> Iterator[str]:
        """Yield the modules that lie directly in a package."""
        import pkgutil

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
        home = read_exports(package.file.read_bytes(), base).get(name)
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
