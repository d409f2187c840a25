"""The networks of a folder: opened when they are asked for or by threads before, and closed for want of memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import size
from olivelike.errors import UsageError
from olivelike.model.components import DERIVED_FILES, MODEL_FILE, SAFETY_CHECKER, SHALLOW_FILE
from olivelike.model.guides import guided_file
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.runtime.sessions.open_session import import_engine, open_session
from olivelike.runtime.sessions.session import Network, Session, read_model_file

if TYPE_CHECKING:
    import numpy as np

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]
    Initializers = Mapping[str, Mapping[str, Array] | "LoraChange"]
    """By component: arrays in place of initializers, or what LoRAs change it by."""

_SHALLOW: Final = Path(SHALLOW_FILE).stem
_TAKING: Final = Path(LORA_INPUTS_FILE).stem
_WHOLE: Final = tuple(Path(file).stem for file in sorted(DERIVED_FILES - {SHALLOW_FILE}))


@dataclass(frozen=True, eq=False)
class LoraChange:
    """LoRAs for a component whose folder has `lora_inputs.onnx`: as factors for that, or merged for `model.onnx`."""

    feeds: Mapping[str, Array] | None
    """Values of that graph's inputs by name; `None` if the LoRAs can't be factors."""
    merge: Callable[[], Mapping[str, Array]]
    """Returns what initializers become."""
    reason: str = ""
    """Reason that keeps the LoRAs from being factors."""

    @cached_property
    def merged(self) -> Mapping[str, Array]:
        """Arrays in place of initializers, merged when they are first asked for."""
        return self.merge()


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

    A component that has a graph which takes the factors of LoRAs, `unet/lora_inputs`, is drawn with as that, with LoRAs
    and without: so neither opens anything, and no picture depends on those before. It is drawn with as the plain one
    where LoRAs can't be factors.
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
            initializers: Per component, arrays in place of initializers, or LoRAs.
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
        name = self._name(component)
        return self._get(name, self._folder.network(name))

    def denoiser(self, leaders: Collection[str] = ()) -> Network:
        """Return the denoiser that some of `GUIDES` lead, the plain one without any; another one is closed first.

        Raises what `get` raises.
        """
        if not leaders:
            return self.get(self._denoiser)
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
        """Open networks in threads, as far as they are not and as there is room beside those that are open.

        Where CUDA graphs are recorded they are opened here, one after another: while one is recorded, no thread may ask
        the driver for memory.
        """
        import_engine(self._settings)
        for name in map(self._name, components):
            path = self._folder.network(name)
            with self._lock:
                size = self._bytes(name)
                if name in self._entries or self._excess(size) > 0:
                    continue
                entry = self._entries[name] = _Entry(size)
            if self._settings.cuda_graph:
                self._open(entry, name, path)
                continue
            # No daemon: at exit Python would end it within the engine's code, and a signal then ends the process.
            threading.Thread(target=self._open, args=(entry, name, path), name=f"opens {name}").start()

    def check(self) -> None:
        """Raise what opening a network has failed with."""
        for name, entry in list(self._entries.items()):
            if entry.network.done() and entry.network.exception() is not None:
                self._result(name, entry)

    def close(self, components: Iterable[str]) -> None:
        """Close networks that are open; whoever asks for one again opens it."""
        with self._lock:
            self._close(name for component in components for name in self._alike(component))

    def hand_over(self, initializers: Initializers) -> dict[str, Network]:
        """Return those that stay open when these stand for initializers; others that are changed are closed."""
        kept, closed = {}, []
        for name, entry in list(self._entries.items()):
            component, _, graph = name.partition("/")
            changes = self._initializers.get(component), initializers.get(component)
            if not any(changes) or (graph == _TAKING and self._takes(component, changes[1])):
                kept[name] = self._result(name, entry)
            else:
                closed.append(name)
        with self._lock:
            self._close(closed)
        return kept

    def reasons(self) -> dict[str, str]:
        """Return why LoRAs are merged, by component that has a graph for factors; an empty text if they are not."""
        found = {name: change for name, change in self._initializers.items() if isinstance(change, LoraChange)}
        return {name: self._hindrance(name) or change.reason for name, change in found.items()}

    def _name(self, component: str) -> str:
        """Return the name of the graph that a component without guides is drawn with."""
        if "/" in component or component in self._entries:
            return component
        taking = f"{component}/{_TAKING}"
        is_there = self._folder.network(taking).is_file()
        return taking if is_there and self._takes(component, self._initializers.get(component)) else component

    def _takes(self, component: str, change: Mapping[str, Array] | LoraChange | None) -> bool:
        """Say whether a component that has a graph for factors is drawn with as that, with these LoRAs or none."""
        can_be_fed = change.feeds is not None if isinstance(change, LoraChange) else not change
        return can_be_fed and not self._hindrance(component)

    def _hindrance(self, component: str) -> str:
        """Say why LoRAs are no factors here; nothing if they may be."""
        if not self._settings.is_cpu_alone:
            return "factors are for ONNX Runtime's CPU"
        if component in self._folder.recorded.all_fed:
            return "inputs for them have no values of their own"
        if component == self._denoiser and self._folder.family.refines_texts:
            return "blocks that run once for a text take none"
        if component == self._denoiser and (self._folder.path / component / SHALLOW_FILE).is_file():
            return "the shallow part of deepcache takes none"
        return ""

    def _alike(self, name: str) -> tuple[str, ...]:
        """Return the names of what has the same weights, of which one is open."""
        if name in self._whole:
            return self._whole
        component, _, graph = name.partition("/")
        return (component, f"{component}/{_TAKING}") if graph in ("", _TAKING) else (name,)

    def _get(self, name: str, path: Path) -> Network:
        with self._lock:
            entry = self._entries.pop(name, None)
            begun = entry is not None
            if entry is None:
                self._close(self._alike(name))  # Before the next one is read.
                entry = _Entry(self._bytes(name))
                self._make_room(entry.bytes)
            self._entries[name] = entry
        if not begun:
            self._open(entry, name, path)
        network = self._result(name, entry)
        component, _, graph = name.partition("/")
        if graph == _TAKING:
            change = self._initializers.get(component)
            network.feed(change.feeds or {} if isinstance(change, LoraChange) else {})
        return network

    def _open(self, entry: _Entry, name: str, path: Path) -> None:
        try:
            component, _, graph = name.partition("/")
            change = self._initializers.get(component, {}) if graph != _TAKING else {}
            arrays = change.merged if isinstance(change, LoraChange) else change
            if name == shallow_name(self._denoiser) and arrays:
                own = {tensor.name for tensor in read_model_file(path).graph.initializer}
                arrays = {name: array for name, array in arrays.items() if name in own}
            session = self._through(component, self._session(name, path, arrays))
            entry.network.set_result(Network(component, session))
        except BaseException as error:  # noqa: BLE001  (raised to who asks for the network)
            entry.network.set_exception(error)

    def _session(self, name: str, path: Path, arrays: Mapping[str, Array]) -> Session:
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
