"""The user's record of plugins that workflow files may run: kept per user, outside of every project.

A workflow that came from elsewhere names code under `plugins:`. That code runs only once the user said yes: to the
code as it is, or to whatever lies in a folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from olivelike._files import write_whole
from olivelike.digest import digest_json
from olivelike.errors import PluginError
from olivelike.model.records.reading import part_of_json, to_json
from olivelike.workflow.code.code_digest import plugin_modules
from olivelike.workflow.findings import Findings, Position

Answer = Literal["yes", "always", "no"]
"""`yes`: the code as it is now; `always`: whatever lies in the plugin's folder."""

_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True)
class ListedPlugin:
    """A plugin file or folder that a workflow file names."""

    path: Path
    listed_at: str
    """`file:line:column` in the workflow file."""

    @property
    def folder(self) -> Path:
        """The folder that its modules lie in."""
        return self.path if self.path.is_dir() else self.path.parent


Ask = Callable[[Sequence[ListedPlugin]], Answer]
"""Asks the user whether plugins may run."""


@dataclass(frozen=True)
class _Record:
    folders: tuple[str, ...]
    code: Mapping[str, str]
    """Digest of each plugin's code, by path."""


_NOTHING = _Record((), {})


class AllowedPlugins:
    """The record, read when it is asked."""

    def __init__(self, file: Path | None = None) -> None:
        """Use `file`, by default `allowed-plugins.json` in the user's folder for states of programs."""
        self._file = file or _default_file()

    def allows(self, plugin: ListedPlugin) -> bool:
        """Tell whether a plugin may run: its folder is allowed, or its code is and has not changed since.

        Raises `PluginError` if the record can be written by other users.
        """
        record = self._read()
        folders = map(Path, record.folders)
        if any(plugin.path.is_relative_to(folder) for folder in folders):
            return True
        allowed = record.code.get(str(plugin.path))
        return allowed is not None and allowed == plugin_code(plugin.path)

    def allow(self, plugins: Sequence[ListedPlugin]) -> None:
        """Allow the code of plugins as it is now. Raises `PluginError` if the record can't be written."""
        record = self._read()
        code = {str(plugin.path): plugin_code(plugin.path) for plugin in plugins}
        self._write(replace(record, code={**record.code, **code}))

    def allow_folders(self, folders: Sequence[Path]) -> None:
        """Allow whatever lies in folders, now and later. Raises `PluginError` if the record can't be written."""
        record = self._read()
        self._write(replace(record, folders=tuple(sorted({*record.folders, *map(str, folders)}))))

    def _read(self) -> _Record:
        try:
            with self._file.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS):
                    raise PluginError(
                        f"{self._file} says which plugins may run, and other users can write to it; remove it, or "
                        "give --allow-plugins for this command alone"
                    )
                record = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        except OSError as error:
            raise PluginError(
                f"{self._file} can't be read: {error.strerror}; remove it, or give --allow-plugins for this "
                "command alone"
            ) from error
        except (ValueError, RecursionError):
            return _NOTHING  # What is damaged allows nothing; the next yes writes it anew.
        return part_of_json(_Record, record) or _NOTHING

    def _write(self, record: _Record) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made for its owner alone.
            write_whole(self._file, json.dumps(to_json(record), indent=1, sort_keys=True).encode(), mode=0o600)
        except OSError as error:
            raise PluginError(
                f"{self._file} can't be written, so a yes can't be remembered: {error.strerror}; "
                "give --allow-plugins for this command alone"
            ) from error


def require_allowed(plugins: Sequence[tuple[str, Position]], ask: Ask | None, findings: Findings) -> None:
    """Let pass what the user named, installed or allowed; ask about the rest, where somebody can be asked.

    Raises `WorkflowError` for files and folders that are not allowed; nothing of them has run.
    """
    # What `--set` names is named on the command line, and a module by name is installed.
    files = [
        (Path(plugin), position)
        for plugin, position in plugins
        if position.document.path is not None and Path(plugin).is_absolute()
    ]
    if not files:
        return
    allowed = AllowedPlugins()
    listed = [(ListedPlugin(path, str(position)), position) for path, position in files]
    strange = [(plugin, position) for plugin, position in listed if not allowed.allows(plugin)]
    if not strange:
        return
    asked = [plugin for plugin, _ in strange]
    match ask(asked) if ask is not None else "no":
        case "yes":
            allowed.allow(asked)
        case "always":
            allowed.allow_folders([plugin.folder for plugin in asked])
        case _:
            for plugin, position in strange:
                findings.add(
                    position,
                    f"it would run the code of {plugin.path}, which you have not allowed; read that code, then "
                    "give --allow-plugins",
                )
            findings.raise_if_any()


def plugin_code(path: Path) -> str:
    """Return the digest of the code of a plugin, wherever it lies."""
    return digest_json(["plugin/1", dict(sorted(plugin_modules(path).items()))])


def _default_file() -> Path:
    from platformdirs import user_state_path

    return user_state_path("olivelike", appauthor=False) / "allowed-plugins.json"
