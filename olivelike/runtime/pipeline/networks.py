"""The networks of a folder: opened when they are asked for or by threads before, and closed for want of memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import size
from olivelike.errors import UsageError
from olivelike.model.components import DERIVED_FILES, MODEL_FILE, SAFETY_CHECKER, SHALLOW_FILE
from olivelike.model.guides import guided_file
from olivelike.runtime.sessions.open_session import import_engine, open_session
from olivelike.runtime.sessions.session import Network, Session, read_model_file

if TYPE_CHECKING:
    import numpy as np

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Initializers = Mapping[str, Mapping[str, np.ndarray[Any, Any]]]

_SHALLOW: Final = Path(SHALLOW_FILE).stem
_WHOLE: Final = tuple(Path(file).stem for file in sorted(DERIVED_FILES - {SHALLOW_FILE}))


@dataclass(eq=False)
class _Entry:
    """A network that is open, or being opened."""

    bytes: int
    """Size of its weights' files."""
    network: Future[Network] = field(default_factory=Future)


def denoiser_name(denoiser: str, leaders: Collection[str]) -> str:
    """Return the name of the denoiser that some of `GUIDES` lead."""
    return f"{denoiser}/{Path(guided_file(leaders)).stem}" if leaders else denoiser


def shallow_name(denoiser: str) -> str:
    """Return the name of a denoiser's shallow part, which has some of its weights and is changed by what changes it."""
    return f"{denoiser}/{_SHALLOW}"


class Networks:
    """Networks by name: `vae_decoder`, `unet`, …, `unet/shallow`.

    Any thread may ask. A network that is being opened is waited for, and what it failed with is raised to who asks.
    """

    def __init__(
        self,
        folder: PipelineFolder,
        settings: SessionSettings,
        initializers: Initializers,
        opened: Mapping[str, Network] | None = None,
        through: Callable[[str, Session], Session] = lambda _, session: session,
    ) -> None:
        """Hold networks of a folder; none is opened yet.

        Args:
            folder: Has their files.
            settings: Of their sessions, and how much memory they may take.
            initializers: Per component, arrays in place of initializers.
            opened: Those that are open already.
            through: Returns what a component's session is called through, to look at its calls.
        """
        self._folder = folder
        self._denoiser = folder.family.denoiser
        self._whole = (self._denoiser, *(f"{self._denoiser}/{stem}" for stem in _WHOLE))
        """The denoiser as it is, and as pictures lead it: one is open, for all have the same weights."""
        self._settings = settings
        self._initializers = initializers
        self._limit = settings.memory_limit
        self._through = through
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        """The one that was asked for last at the end."""
        for name, network in (opened or {}).items():
            self._entries[name] = entry = _Entry(self._bytes(name))
            entry.network.set_result(network)

    def __contains__(self, name: str) -> bool:
        """Say whether a network is open."""
        entry = self._entries.get(name)
        return entry is not None and entry.network.done() and entry.network.exception() is None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of those that are open."""
        return iter([name for name in list(self._entries) if name in self])

    def get(self, component: str) -> Network:
        """Return a component's network.

        Raises `SourceError` if the folder has none, and `SessionError` if it can't be opened here.
        """
        return self._get(component, self._folder.network(component))

    def denoiser(self, leaders: Collection[str] = ()) -> Network:
        """Return the denoiser that some of `GUIDES` lead, the plain one without any; another one is closed first.

        Raises what `get` raises.
        """
        return self._get(denoiser_name(self._denoiser, leaders), self._folder.led_denoiser(leaders))

    def any_denoiser(self) -> Network:
        """Return the denoiser that is open, or else the plain one. Raises what `get` raises."""
        with self._lock:
            found = next((self._entries[name] for name in self._whole if name in self._entries), None)
        return self.denoiser() if found is None else found.network.result()

    def shallow(self) -> Network:
        """Return the denoiser's shallow part. Raises what `get` raises."""
        return self._get(shallow_name(self._denoiser), self._folder.shallow_denoiser())

    def begin(self, components: Iterable[str]) -> None:
        """Open networks in threads, as far as they are not and as there is room beside those that are open."""
        import_engine(self._settings)
        for name in components:
            path = self._folder.network(name)
            with self._lock:
                size = self._bytes(name)
                if name in self._entries or self._excess(size) > 0:
                    continue
                entry = self._entries[name] = _Entry(size)
            # No daemon: at exit Python would end it within the engine's code, and a signal then ends the process.
            threading.Thread(target=self._open, args=(entry, name, path), name=f"opens {name}").start()

    def check(self) -> None:
        """Raise what opening a network has failed with."""
        for name, entry in list(self._entries.items()):
            if entry.network.done() and entry.network.exception() is not None:
                self._result(name, entry)

    def close(self, names: Iterable[str]) -> None:
        """Close networks that are open; whoever asks for one again opens it."""
        with self._lock:
            self._close(names)

    def unchanged_by(self, initializers: Initializers) -> dict[str, Network]:
        """Return those that stay open when these arrays stand for initializers."""
        changed = self._initializers.keys() | initializers.keys()
        kept = {name: entry for name, entry in list(self._entries.items()) if name.partition("/")[0] not in changed}
        return {name: self._result(name, entry) for name, entry in kept.items()}

    def _get(self, name: str, path: Path) -> Network:
        with self._lock:
            entry = self._entries.pop(name, None)
            begun = entry is not None
            if entry is None:
                if name in self._whole:
                    self._close(self._whole)  # Before the next one is read.
                entry = _Entry(self._bytes(name))
                self._make_room(entry.bytes)
            self._entries[name] = entry
        if not begun:
            self._open(entry, name, path)
        return self._result(name, entry)

    def _open(self, entry: _Entry, name: str, path: Path) -> None:
        try:
            component = name.partition("/")[0]
            arrays = self._initializers.get(component, {})
            if name == shallow_name(self._denoiser) and arrays:
                own = {tensor.name for tensor in read_model_file(path).graph.initializer}
                arrays = {name: array for name, array in arrays.items() if name in own}
            session = self._through(component, self._session(name, path, arrays))
            entry.network.set_result(Network(component, session))
        except BaseException as error:  # noqa: BLE001  (raised to who asks for the network)
            entry.network.set_exception(error)

    def _session(self, name: str, path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Session:
        if name not in self._whole or not self._folder.family.refines_texts:
            return open_session(path, self._settings, arrays)
        from olivelike.runtime.sessions.text_part import open_in_two

        return open_in_two(path, self._settings, arrays)

    def _result(self, name: str, entry: _Entry) -> Network:
        try:
            return entry.network.result()
        except BaseException:
            with self._lock:
                if self._entries.get(name) is entry:
                    del self._entries[name]  # Whoever asks again may have mended it.
            raise

    def _bytes(self, name: str) -> int:
        return 0 if self._limit is None else weight_bytes(self._folder, name)

    def _excess(self, more: int) -> int:
        """Return the bytes above the limit with so many more; 0 or less where they fit."""
        return 0 if self._limit is None else sum(entry.bytes for entry in self._entries.values()) + more - self._limit

    def _make_room(self, wanted: int) -> None:
        """Close what was not asked for since the longest time, until so many bytes more are within the limit."""
        while self._excess(wanted) > 0 and (names := list(self)):
            self._close(names[:1])

    def _close(self, names: Iterable[str]) -> None:
        if [name for name in names if self._entries.pop(name, None)]:
            gc.collect()


def weight_bytes(folder: PipelineFolder, name: str) -> int:
    """Return the bytes of a network's weights, as its files have them."""
    component, _, part = name.partition("/")
    model = folder.path / component / (f"{part}.onnx" if part else MODEL_FILE)
    data = (file for file in model.parent.iterdir() if file.suffix not in (".onnx", ".json"))
    return sum(file.stat().st_size for file in (model, *data) if file.is_file())


def least_memory_limit(folder: PipelineFolder, *, safety: bool) -> tuple[int, str]:
    """Return the bytes of the largest network that each picture needs, and its name."""
    encoders = [part.component for part in folder.texts]
    checker = [SAFETY_CHECKER] if safety and folder.is_checked else []
    names = (*encoders, folder.family.denoiser, "vae_decoder", *checker)
    return max((weight_bytes(folder, name), name) for name in names)


def check_memory_limit(folder: PipelineFolder, limit: int, *, safety: bool) -> None:
    """Refuse a limit below what one network needs. Raises `UsageError` with the figures."""
    least, name = least_memory_limit(folder, safety=safety)
    if least > limit:
        raise UsageError(
            f"a memory limit of {size(limit)} is below the {size(least)} of {name}, which has to be open to draw; "
            f"allow more, or convert {folder.path} with fewer bits"
        )
