"""Models whose weights are at hand: of a checkpoint folder, of the tiny checkpoint, or random.

Graphs that torch's exporter made once on this machine are shared by all processes and sessions that test with them;
those of a shelf (`$OLIVELIKE_TESTING_SHELF`, and the one that ships) need no exporter at all.
"""

from __future__ import annotations

import atexit
import datetime as dt
import logging
import os
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_file
from olivelike.engine.keys import Key, pass_key
from olivelike.families.network import stored_values
from olivelike.graphs.shelf import BUILT_IN, Shelf
from olivelike.model import Architecture, Graph, Model, Tensor, Weights
from olivelike.model.tensor_file import read_tensor, stored_tensor
from olivelike.store import Action, Store
from olivelike.testing.checkpoints import make_checkpoint, random_parameter
from olivelike.workflow.passes import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnx_ir as ir

    from olivelike._untrusted import Json

    Array = np.ndarray[Any, Any]
    from collections.abc import Iterable

SHELF_VARIABLE = "OLIVELIKE_TESTING_SHELF"
"""Names a folder with graphs of test networks, which `olivelike shelf add --shelf` writes."""
_MOST_BYTES = 256 << 20
"""Most bytes of the shared folder; graphs of older code are collected first."""


def traced_graph(architecture: Architecture) -> Graph:
    """Return the graph that `convert` makes of an architecture.

    If no shelf has it, it is traced at most once on a machine for each state of the exporter's code and libraries:
    results lie in a store in the user's cache folder, under the key of the `convert` node.

    Raises:
        PassError: when the network can't be traced.
        StoreError: when the cache folder can't be written; `$XDG_CACHE_HOME` names another one.
    """
    known = _shelf().graph(architecture)
    if known is not None:
        return Graph(known)
    key = _key(architecture)
    store = Store.open(shared_folder())
    with store.lock(key.digest):
        graph = _stored(store, key)
        if graph is None:
            graph = _trace(store, key, architecture)
    return graph


def _shelf() -> Shelf:
    named = os.environ.get(SHELF_VARIABLE)
    return Shelf([BUILT_IN, *([Path(named)] if named else [])])


def lend_graphs(folder: Path, architectures: Iterable[Architecture]) -> None:
    """Put the graphs of architectures into another store, so that a run of its project finds `convert` done."""
    store = Store.open(folder)
    for architecture in architectures:
        _keep(store, _key(architecture), traced_graph(architecture), 0.0)


def shared_folder() -> Path:
    """Return the folder of the shared store; nothing in it is needed for long, so it may be removed at any time."""
    from platformdirs import user_cache_path

    return user_cache_path("olivelike", appauthor=False) / "testing"


def _key(architecture: Architecture) -> Key:
    entry = Registry.built_in().get("convert")
    key = pass_key(entry, entry.cls(), {"architecture": architecture.digest}, None)
    assert isinstance(key, Key), key
    return key


def _stored(store: Store, key: Key) -> Graph | None:
    action = store.get_action(key.digest)
    data = store.read_bytes(action.outputs["graph"]) if action is not None else None
    return Graph.from_bytes(data) if data is not None else None


def _trace(store: Store, key: Key, architecture: Architecture) -> Graph:
    from olivelike.graphs.export import export_component

    start = time.perf_counter()
    graph = export_component(architecture, logging.getLogger(__name__))
    _keep(store, key, graph, time.perf_counter() - start)
    store.gc(_MOST_BYTES)
    return graph


def _keep(store: Store, key: Key, graph: Graph, seconds: float) -> None:
    data = graph.to_bytes()
    digest = store.put_bytes(data)
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    store.put_action(Action(key.digest, key.inputs(), {"graph": digest}, {digest: len(data)}, {}, seconds, 0, created))


class LocalTensors:
    """Tensor access over files of this machine; new tensors go to a folder that is removed with the last user."""

    def __init__(self, files: Mapping[str, Path] | None = None) -> None:
        """Serve `files`: the path of each file with weights, by its SHA-256."""
        self.files = dict(files or {})
        self._folder: Path | None = None

    def read(self, tensor: Tensor) -> Array:
        """Return a tensor's values, in its shape and dtype."""
        return read_tensor(tensor, self.files)

    def file(self, path: Path) -> str:
        """Return the digest of a file, whose tensors may then be named in a table."""
        digest = digest_file(path)
        self.files[digest] = path
        return digest

    def write(self, array: Array) -> Tensor:
        """Keep a new tensor; return its table entry.

        Raises:
            PassError: for a dtype that safetensors does not have.
        """
        tensor, data = stored_tensor(array)
        if tensor.file not in self.files:
            self.files[tensor.file] = self._new_folder() / tensor.file
            self.files[tensor.file].write_bytes(data)
        return tensor

    def evaluate(self, value: ir.Value, weights: Weights) -> Array:
        """Return the values of a weight of a graph; raises as `TensorAccess.evaluate`."""
        from olivelike.engine.output.derivation import evaluate_weight

        return evaluate_weight(value, weights, self.read)

    def table(self, arrays: Mapping[str, Array]) -> Weights:
        """Keep arrays; return them as a weights facet."""
        return Weights({name: self.write(array) for name, array in arrays.items()})

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="olivelike-tensors-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def no_progress(done: int, total: int) -> None:
    """Receive progress, and tell nobody."""
    del done, total


_NOTHING = Model("")


@dataclass(frozen=True)
class LocalModel(Model):
    """A model, access to its weights, and what the last pass put into the run record."""

    tensors: LocalTensors = field(default_factory=LocalTensors, compare=False)
    facts: Json = field(default_factory=dict, compare=False)
    original: Model = field(default=_NOTHING, compare=False)
    """Architecture and weights as they were loaded, LoRAs and textual inversions added; by default the model's own.
    It stays what it is through `replace` and `run_pass`, however the weights change."""

    def __post_init__(self) -> None:
        if self.original.weights is None:
            object.__setattr__(self, "original", Model(self.component, self.architecture, self.weights))

    def parameter(self, name: str) -> Array:
        """Return the values of one parameter."""
        assert self.weights is not None, "the model has no weights"
        return self.tensors.read(self.weights[name])


def load_model(folder: str | Path, component: str, *, variant: str | None = None) -> LocalModel:
    """Return architecture and weights of one component of a checkpoint.

    Args:
        folder: A diffusers folder, or a checkpoint in one file.
        component: Such as `unet` or `vae_decoder`.
        variant: Which of several weight files, such as `fp16`.

    Raises:
        SourceError: when the folder lacks something.
    """
    from olivelike.sources import SourceSpec, open_source
    from olivelike.sources.names.adapt import read_network

    source = open_source(SourceSpec(path=Path(folder), variant=variant), [component])
    checkpoint = source.checkpoint(component)
    digests = {path: digest_file(path) for path in checkpoint.files}
    architecture, weights = read_network(checkpoint, digests)
    tensors = LocalTensors({digest: path for path, digest in digests.items()})
    return LocalModel(component, architecture, weights, tensors=tensors)


def random_model(architecture: Architecture, *, seed: int = 0) -> LocalModel:
    """Return seeded random weights, of a sane scale, for any architecture that `convert` knows."""
    from olivelike.graphs.export.torch_network import build_network

    tensors = LocalTensors()
    shapes = {name: tuple(value.shape) for name, value in stored_values(build_network(architecture)).items()}
    arrays = {name: random_parameter(name, shape, seed, architecture.component) for name, shape in shapes.items()}
    return LocalModel(architecture.component, architecture, tensors.table(arrays), tensors=tensors)


@cache
def tiny_model(component: str, *, seed: int = 0, graph: bool = False) -> LocalModel:
    """Return a component of the tiny SD 1.5 checkpoint: the real classes and structure at small widths.

    The checkpoint is made once in a process, and each component exported once on a machine: its graph stays in the
    user's cache folder until the exporter changes.

    Args:
        component: One of `text_encoder`, `unet`, `vae_encoder`, `vae_decoder`, `safety_checker`.
        seed: Of the weights; all seeds share one graph.
        graph: With its graph; the first time that takes half a minute for the UNet, seconds for the others.
    """
    if not graph:
        return load_model(tiny_checkpoint(seed), component)
    from olivelike.testing.models import traced_graph

    model = tiny_model(component, seed=seed)
    if seed:
        return model.replace(graph=tiny_model(component, graph=True).graph)
    return model.replace(graph=traced_graph(model.require("architecture")))


@cache
def tiny_checkpoint(seed: int = 0) -> Path:
    """Return the folder of the tiny checkpoint of this process; treat it as read-only."""
    folder = Path(tempfile.mkdtemp(prefix="olivelike-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_checkpoint(folder, seed=seed)
