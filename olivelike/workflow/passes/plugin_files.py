"""Loads plugin files from anywhere on disk, without putting their folders on `sys.path`.

Each plugin becomes a package with a private name, so two plugins may have files of one name. A helper module
beside the plugin can be imported by its plain name or relatively; installed modules win over helpers.
"""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes
from olivelike.errors import PluginError
from olivelike.workflow.places import absolute, exists

if TYPE_CHECKING:
    from types import CodeType, ModuleType

PRIVATE_PREFIX = "_olivelike_plugin_"
"""Every plugin's private package name starts with this."""

_NOT_PLUGINS = ("_", "test_", "conftest.")
_LONGEST_SHOWN = 200


def resolve_plugin(text: str, folder: Path) -> str:
    """Return what `Registry.load` takes for an entry of `plugins:`.

    Raises `PluginError` if the file or folder does not exist.

    Args:
        text: a `.py` file, a folder, or a dotted module name.
        folder: where relative paths start.
    """
    location = absolute(text, folder)
    if (exists(location) and location.is_dir()) or location.suffix == ".py" or any(mark in text for mark in "/\\~"):
        if not exists(location):
            raise PluginError(f"plugin '{_short(text)}' does not exist at {_short(str(location))}; correct the path")
        return str(location.resolve())
    return text


_loading = threading.RLock()


def load_plugin_modules(location: Path) -> tuple[str, list[ModuleType]]:
    """Import a plugin afresh: a `.py` file, or every module of a folder but tests and private ones.

    Returns the private package name, and the modules. Raises `PluginError` if anything in it can't be imported.
    """
    folder = location if location.is_dir() else location.parent
    package = private_package(location)
    names = [location.stem] if location.is_file() else module_names(folder)
    # Forgetting what was imported and importing it are one step: runs of other combinations load it too.
    with _loading, explain_import(str(location), folder, "fix it, or take it out of `plugins:`"):
        _FINDER.add(str(folder), package)
        modules = [_import_package(package, folder, run_init=location.is_dir())]
        modules += [importlib.import_module(f"{package}.{name}") for name in names]
    return package, modules


def private_package(location: Path) -> str:
    """Return the package name under which the plugin at `location` is loaded."""
    return PRIVATE_PREFIX + digest_bytes(str(location).encode())[:16]


def sibling_spec(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Find a module by its last name part in plugin folders, without importing anything."""
    for folder in folders:
        spec = FileFinder(folder, (_FreshLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec(
            name
        )
        if spec is not None:
            return spec
    return None


def installed_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Find a module as Python would, plugin folders left out, without importing it."""
    for finder in sys.meta_path:
        if finder is not _FINDER:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


class _FreshLoader(SourceFileLoader):
    """Compiles from source every time: a `.pyc` is trusted by whole seconds, and an edit can be faster."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _PluginFinder:
    """Finds the modules of plugins; the folder that was loaded last is asked first."""

    def __init__(self) -> None:
        self._folders: list[str] = []

    def add(self, folder: str, package: str) -> None:
        """Serve a folder, and forget what was imported from it before, or what its helpers would hide."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._folders = [folder, *(known for known in self._folders if known != folder)]
        for name, module in list(sys.modules.items()):
            loader = getattr(module, "__loader__", None)
            if isinstance(loader, _FreshLoader) or name == package:
                top = name.partition(".")[0]
                if top == package or (not top.startswith(PRIVATE_PREFIX) and sibling_spec(top, [folder]) is not None):
                    del sys.modules[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for modules in plugin folders; the import system calls this."""
        if path is not None:
            return sibling_spec(fullname, [entry for entry in path if self._serves(entry)])
        spec = sibling_spec(fullname, self._folders)
        return None if spec is None or installed_spec(fullname, None) is not None else spec

    def _serves(self, entry: str) -> bool:
        return any(Path(entry).is_relative_to(folder) for folder in self._folders)


_FINDER = _PluginFinder()


def module_names(folder: Path) -> list[str]:
    """Return the modules that a plugin folder offers: all but private ones and tests."""
    return sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith(_NOT_PLUGINS))


def _import_package(package: str, folder: Path, *, run_init: bool) -> ModuleType:
    """Make the private package; run the folder's `__init__.py` if the plugin is that folder."""
    init = folder / "__init__.py"
    if run_init and init.is_file():
        spec = ModuleSpec(package, _FreshLoader(package, str(init)), origin=str(init), is_package=True)
        spec.has_location = True
    else:
        spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    module = module_from_spec(spec)
    sys.modules[package] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)
    return module


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


@contextmanager
def explain_import(subject: str, folder: Path | None, remedy: str) -> Iterator[None]:
    """Guard the import of a plugin.

    Raises `PluginError` for anything that the plugin raises.

    Args:
        folder: the plugin's own folder; the error is placed at the innermost frame in it.
    """
    try:
        yield
    except PluginError:
        raise
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else subject
        text = (error.text or "").strip()
        shown = f"\n  {text}" if text else ""
        raise PluginError(f"{place}: syntax error: {error.msg}; {remedy}{shown}") from error
    # Foreign code may raise anything, even SystemExit; all of it is the plugin's fault.
    except (Exception, SystemExit) as error:
        place = _innermost_place(error, folder) or subject
        if isinstance(error, ModuleNotFoundError) and error.name:
            top = error.name.partition(".")[0]
            remedy = f"install the distribution that has {top!r}, put {top}.py beside the plugin, or {remedy}"
        raise PluginError(f"{place}: {type(error).__name__}: {error}; {remedy}") from error


def _innermost_place(error: BaseException, folder: Path | None) -> str | None:
    """Return `file:line` of the innermost frame that is the plugin's own."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and Path(frame.filename).is_file()
    ]
    if folder is not None:
        frames = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    else:
        machinery = (str(Path(__file__).parent), str(Path(traceback.__file__).parent / "importlib"))
        frames = [frame for frame in frames if not frame.filename.startswith(machinery)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
