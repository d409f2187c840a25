"""Networks that engines have compiled, kept for the next time in one folder that anybody may look at and clear.

An engine writes into a folder of its process's own. What is there once the network is open, and again when its session
ends, is published under a key by a rename, with a list of its files. A list that files do not agree with counts as
none: then the engine compiles anew. Each published folder is a hint, and losing it costs time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from olivelike._files import Lock, file_identity, try_lock
from olivelike._text import size
from olivelike._untrusted import Json, JsonView
from olivelike.digest import digest_json
from olivelike.errors import SessionError
from olivelike.runtime.sessions.provider_packages import plugin_modules
from olivelike.runtime.sessions.providers import CPU, OPENVINO, TENSORRT, require_provider
from olivelike.runtime.sessions.session import Session
from olivelike.runtime.sessions.session_settings import SessionSettings, set_options

_LOG: Final = logging.getLogger(__name__)
_LIST: Final = "whole.json"
_WORK: Final = "tmp"
"""Folder of the folders of live processes."""
_SETTLED_NS: Final = 2_000_000_000
"""A file that changed more recently can change again without a visible change of its times."""
_KEPT_TIMES: Final = 4
"""Bytes of a kept network of the CPU for each of its own, at most: float16 is widened, and matrices are there twice."""
_FOLDER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    OPENVINO: ("CACHE_DIR",),
    "OpenVINOExecutionProvider": ("cache_dir",),
    TENSORRT: ("trt_engine_cache_path", "trt_timing_cache_path"),
    "NvTensorRTRTXExecutionProvider": ("nv_runtime_cache_path",),
    "CoreMLExecutionProvider": ("ModelCacheDirectory",),
}
"""Options that take a folder, by provider. Others keep nothing between processes: WebGPU's has no such option."""
_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {TENSORRT: ("trt_engine_cache_enable", "trt_timing_cache_enable")}


def compiled_folder() -> Path:
    """Return the folder for what engines compile, among the user's cached files."""
    from platformdirs import user_cache_path

    return user_cache_path("olivelike", appauthor=False) / "compiled"


def open_keeping(
    path: Path, settings: SessionSettings, open_with: Callable[[SessionSettings], Session], part: str = ""
) -> Session:
    """Open a network with what was compiled of it before, and keep what is compiled now.

    Whatever is wrong with what was kept, or with its folder, costs no more than that and one warning.

    Args:
        path: The network's file.
        settings: They name the folder.
        open_with: Opens the network with other options.
        part: What is opened of it, if not the whole.
    """
    is_ours, device = is_kept_by_sessions(settings), _device_that_keeps(settings)
    identities = None if device is None else _identities(path)
    if device is None or identities is None or settings.compiled is None:
        return open_with(settings)
    source = {"path": str(path.absolute()), "identities": identities}
    key = digest_json(["compiled/2", path.name + part, identities, device, _version(settings), _choices(settings)])
    try:
        if is_ours:
            _require_room(settings.compiled, key, path.parent)
        kept = _Kept(settings.compiled, key, source)
    except OSError as error:
        _LOG.warning("%s: can't keep what is compiled there: %s", settings.compiled, error)
        return open_with(settings)
    try:
        options = {} if is_ours else folder_options(settings.provider.name, kept.folder)
        session = open_with(replace(set_options(settings, options), kept=kept.folder if is_ours else None))
    except SessionError:
        kept.forget()
        session = open_with(settings)  # Where the network itself is at fault, this says so again.
        wrong = "what was kept of %s could not be used, and is dropped" if kept.found else "can't keep %s there"
        _LOG.warning(f"%s: {wrong}", settings.compiled, path)
        return session
    except BaseException:
        kept.end()
        raise
    kept.publish()
    weakref.finalize(session, kept.end)
    return session


def is_kept_by_sessions(settings: SessionSettings) -> bool:
    """Return whether our sessions, and not an engine, write and read what is kept: that is so on the CPU."""
    if settings.provider.name != OPENVINO:
        return settings.is_cpu_alone
    require_provider(settings.provider)
    from olivelike.runtime.sessions.openvino_session import device_description

    return settings.device is None or device_description(settings)[0] == "CPU"


def folder_options(provider: str, folder: Path) -> dict[str, str]:
    """Return options with which a provider keeps what it compiles in a folder."""
    return {
        **dict.fromkeys(_SWITCHES.get(provider, ()), "1"),
        **dict.fromkeys(_FOLDER_OPTIONS.get(provider, ()), str(folder)),
    }


def size_of_compiled(root: Path) -> tuple[int, int]:
    """Return how many bytes and files are kept; links to one file count once."""
    found = {file_identity(path.stat())[:2]: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    return sum(found.values()), len(found)


def clear_compiled(root: Path) -> int:
    """Remove what is kept, but for what live processes use; return the bytes that this frees."""
    before = size_of_compiled(root)[0]
    _sweep(root / _WORK)
    for path in root.iterdir() if root.is_dir() else ():
        if path.name != _WORK:
            shutil.rmtree(path)
    return before - size_of_compiled(root)[0]


class _Kept:
    """Compiled files of one network, in a folder of this process's own."""

    def __init__(self, root: Path, key: str, source: JsonView) -> None:
        self._root, self._published, self._source = root, root / key, dict(source)
        work = root / _WORK
        work.mkdir(parents=True, exist_ok=True)
        _sweep(work)
        self.folder = work / f"{os.getpid()}-{os.urandom(6).hex()}"
        self._lock: Lock | None = try_lock(self.folder.with_suffix(".lock"))
        try:
            self.folder.mkdir()
            if _is_whole(self._published):
                with contextlib.suppress(FileNotFoundError):  # Another process has just replaced it.
                    _link(self._published, self.folder)
            (self.folder / _LIST).unlink(missing_ok=True)
        except OSError:
            self.end(publish=False)
            raise
        self._seen = _states(self.folder)

    @property
    def found(self) -> bool:
        """Whether something was there before."""
        return bool(self._seen)

    def publish(self) -> None:
        """Let other processes have what is there now, if the engine wrote anything; all of it at once."""
        states = _states(self.folder)
        if not states or states == self._seen:
            return
        staged, old = self.folder.with_suffix(".new"), self.folder.with_suffix(".old")
        try:
            _link(self.folder, staged)
            listed = {"of": self._source, "files": _states(staged)}
            (staged / _LIST).write_text(json.dumps(listed), encoding="utf-8")
            with contextlib.suppress(FileNotFoundError):
                self._published.rename(old)
            staged.rename(self._published)
            self._seen = states
            self._drop_what_is_replaced()
        except OSError as error:
            if not self._published.is_dir():  # Else another process was first.
                _LOG.warning("%s: can't keep what is compiled there: %s", self._root, error)
        finally:
            for folder in (staged, old):
                shutil.rmtree(folder, ignore_errors=True)

    def _drop_what_is_replaced(self) -> None:
        """Remove what was kept of files that are gone, or that were written anew."""
        for path in self._root.iterdir():
            source = _listed(path).get("of")
            if path.name == _WORK or not isinstance(source, dict) or not isinstance(source.get("path"), str):
                continue
            same = source["path"] == self._source["path"]
            if (same and source != self._source) or not Path(source["path"]).exists():
                shutil.rmtree(path, ignore_errors=True)

    def forget(self) -> None:
        """Drop what was published, and what is here."""
        shutil.rmtree(self._published, ignore_errors=True)
        self.end(publish=False)

    def end(self, *, publish: bool = True) -> None:
        """Publish what the engine wrote since, and leave."""
        if publish:
            self.publish()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            with contextlib.suppress(OSError):  # Windows removes no file that another process looks at.
                self.folder.with_suffix(".lock").unlink(missing_ok=True)


def _sweep(work: Path) -> None:
    """Remove folders of processes that ended without leaving."""
    for path in work.glob("*.lock"):
        if (lock := try_lock(path)) is not None:
            for folder in (path.with_suffix(suffix) for suffix in ("", ".new", ".old")):
                shutil.rmtree(folder, ignore_errors=True)
            lock.release()
            with contextlib.suppress(OSError):  # Windows removes no file that another process looks at.
                path.unlink(missing_ok=True)


def _states(folder: Path) -> dict[str, list[int]]:
    """Return size and time of each file; an engine that writes into one again changes them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _LIST:
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = [status.st_size, status.st_mtime_ns]
    return found


def _listed(folder: Path) -> Json:
    """Return what is said of a published folder; nothing if that can't be read."""
    try:
        listed = json.loads((folder / _LIST).read_bytes())
    except (OSError, ValueError):
        return {}
    return listed if isinstance(listed, dict) else {}


def _is_whole(folder: Path) -> bool:
    try:
        return bool(_listed(folder).get("files") == _states(folder))
    except OSError:
        return False


def _link(source: Path, target: Path) -> None:
    """Give the files of a folder names in another one, or copy them where a disk knows no links."""

    def one(old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)

    shutil.copytree(source, target, copy_function=one, dirs_exist_ok=True)


def _device_that_keeps(settings: SessionSettings) -> list[str] | None:
    """Return names of the device, or `None` if nothing is to be kept.

    What options of a user name is left to the provider. Networks of the CPU take much space, and are kept for who asks.
    """
    from olivelike.runtime.sessions.devices import list_devices, processor

    provider = settings.provider
    if is_kept_by_sessions(settings):
        return [CPU, *processor()] if settings.keep_compiled else None
    known = folder_options(provider.name, Path())
    if not known or known.keys() & settings.options.keys():
        return None
    require_provider(provider)
    if provider.name == OPENVINO:
        from olivelike.runtime.sessions.openvino_session import device_description

        return list(device_description(settings))
    return [str(settings.device), *(device.name for device in list_devices(provider))]


def _require_room(root: Path, key: str, network: Path) -> None:
    """Raise `OSError` if nothing is kept yet, and the disk has no room for a network of the CPU."""
    if (root / key).is_dir():
        return
    root.mkdir(parents=True, exist_ok=True)
    needed = _KEPT_TIMES * sum(file.stat().st_size for file in network.iterdir() if file.is_file())
    if (free := shutil.disk_usage(root).free) < needed:
        raise OSError(f"{network.name} may take {size(needed)} there, and {size(free)} are free")


def _identities(path: Path) -> list[Any] | None:
    """Return what changes when a network is written anew; `None` if it was written just now."""
    with os.scandir(path.parent) as entries:
        stats = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    newest = max(max(found.st_mtime_ns, found.st_ctime_ns) for _, found in stats)
    settled = time.time_ns() - newest >= _SETTLED_NS
    return [[name, *file_identity(found)] for name, found in stats] if settled else None


def _version(settings: SessionSettings) -> list[str]:
    """Return the names and versions of the packages that compile."""
    if settings.provider.name == OPENVINO:
        return ["openvino", version("openvino")]
    import onnxruntime

    return ["onnxruntime", onnxruntime.__version__, *(" ".join(item) for item in sorted(plugin_modules().items()))]


def _choices(settings: SessionSettings) -> list[Any]:
    """Return what settings say of how a network is compiled."""
    return [
        [[choice.provider.name, dict(choice.options)] for choice in settings.providers],
        dict(settings.session_config),
        dict(settings.dimensions),
        settings.optimization,
        list(settings.custom_operators),
    ]
