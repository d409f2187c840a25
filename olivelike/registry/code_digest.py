"""The digest of a pass's code: its module and the local modules that it imports, transitively.

Nothing is imported to compute it. Names are stable when a project moves: `olivelike.passes.float16` for
installed modules, `.sharpen` for modules of a plugin, `tint` for helpers beside it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes, digest_json
from olivelike.registry.imports import read_imports
from olivelike.registry.local_modules import LocalModules
from olivelike.registry.plugin_files import private_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from olivelike.registry.entry import PassEntry
    from olivelike.registry.imports import Import
    from olivelike.registry.local_modules import LocalModule

ABSENT = "absent"
"""Stands for the digest of an imported module that is not there, such as an optional one."""


@dataclass(frozen=True)
class CodeDigest:
    """What code a pass consists of."""

    digest: str | None
    """SHA-256 over `modules`; `None` if part of the code can't be known, so results must not be cached."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Digest of each local module, by stable name."""
    uncacheable: str | None = None
    """Why there is no digest."""


def code_digest(entry: PassEntry) -> CodeDigest:
    """Digest the code of a pass as it is on disk now.

    A package that runs only because one of its modules is imported counts with its module-level imports;
    a module that is imported by name counts with those inside its functions too.
    """
    return _digest(entry.cls.__module__, entry.plugin)


def module_code_digest(module: str) -> CodeDigest:
    """Digest the code of an installed module that is no pass, such as `olivelike.output.materialize`."""
    return _digest(module, None)


def _digest(module: str, plugin: str | None) -> CodeDigest:
    walk = _Walk(module, plugin)
    try:
        walk.follow(module)
    except _UnknowableError as error:
        return CodeDigest(None, walk.modules, str(error))
    modules = dict(sorted(walk.modules.items()))
    return CodeDigest(digest_json(["code/1", modules]), modules)


class _UnknowableError(Exception):
    """Part of the code can't be found without running it."""


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
        self.modules: dict[str, str] = {}

    def follow(self, start: str) -> None:
        """Visit `start` and all that it reaches.

        Raises:
            _UnknowableError: if `start` has no source, or code is imported under a computed name.
        """
        queue = deque([(start, True)])
        done: set[tuple[str, bool]] = set()
        while queue:
            name, with_lazy = queue.popleft()
            if (name, with_lazy) in done or (name, True) in done or not self._local.is_local(name):
                continue
            done.add((name, with_lazy))
            module = self._local.find(name)
            if module is None:
                if name == start:
                    raise _UnknowableError(f"the source of module {name} can't be found")
                self.modules[self._stable(name)] = ABSENT
                continue
            queue.extend((parent, False) for parent in _parents(name))
            queue.extend((target, True) for target in self._visit(module, with_lazy=with_lazy))

    def _visit(self, module: LocalModule, *, with_lazy: bool) -> Iterator[str]:
        """Take the module's digest and return the absolute names that it imports."""
        if module.file is None:  # A namespace package has no code.
            return
        try:
            data = module.file.read_bytes()
        except OSError as error:
            raise _UnknowableError(f"{module.file} can't be read: {error.strerror}") from error
        if module.file.suffix == ".pyc":
            raise _UnknowableError(f"module {module.name} has no source, only {module.file}")
        is_source = module.file.suffix == ".py"
        if is_source:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.modules[self._stable(module.name)] = digest_bytes(data)
        if not is_source:
            return
        try:
            found = read_imports(data)
        except (SyntaxError, ValueError) as error:
            raise _UnknowableError(f"{module.file} is not valid Python: {error}") from error
        if found.computed_line is not None:
            raise _UnknowableError(
                f"{module.file}:{found.computed_line}: code is loaded under a name known only at run time; "
                "name the module in an import statement"
            )
        for item in found.imports:
            if with_lazy or not item.lazy:
                yield from self._targets(module, item)

    def _targets(self, importer: LocalModule, item: Import) -> Iterator[str]:
        """Return the module that a statement imports, and those of its names that are modules."""
        base = item.module
        if item.level:
            package = importer.name if importer.is_package else importer.name.rpartition(".")[0]
            for _ in range(item.level - 1):
                package = package.rpartition(".")[0]
            base = f"{package}.{base}" if base else package
        if not base:
            return
        yield base
        if self._local.is_local(base):
            submodules = (f"{base}.{name}" for name in item.names if name != "*")
            yield from (name for name in submodules if self._local.find(name) is not None)

    def _stable(self, name: str) -> str:
        """Return the name under which a module enters the digest."""
        if not self._private or name.partition(".")[0] != self._private:
            return name
        return name.removeprefix(self._private) or "."


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name
