"""Drawing a few pictures with networks in float, and noting what passes through them.

Each network is written to a folder of its own that goes away, with an output for each value that is wanted: its range,
and a sample of its elements. So a run gives kilobytes, whatever the size of the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivelike.engine.output.materialize import materialize
from olivelike.engine.output.pipeline_files import component_config, index
from olivelike.errors import PassError
from olivelike.graphs.functions import with_functions
from olivelike.graphs.probes import PROBE, add_probes
from olivelike.model import Graph, Model
from olivelike.model.families import INDEX_FILE
from olivelike.model.observations import Observed, Observer

if TYPE_CHECKING:
    Observe = Callable[[str, Mapping[str, np.ndarray[Any, Any]]], None]
    Draw = Callable[[Path, str, Observe], Iterator[tuple[str, bool]]]
    Observations = dict[str, dict[str, Observed]]
    """By component and value."""


def calibrate(
    models: Mapping[str, Model],
    files: Mapping[str, Path],
    source_index: Mapping[str, Any],
    assets: Mapping[str, bytes],
    observed: Sequence[str],
    folder: Path,
    draw: Draw,
) -> tuple[Observations, dict[str, Any]]:
    """Draw pictures, and return what was seen and what the run record should hold.

    Args:
        models: The networks that drawing takes, with graph and weights.
        files: Path of each file that weights lie in, by digest.
        source_index: The source's `model_index.json`.
        assets: Content of the files beside the networks, by relative path.
        observed: Components to observe.
        folder: An empty one, for the networks.
        draw: Draws with them; see `draw_observed` of the runtime, which is in no key.

    Raises:
        PassError: if a value is not finite.
    """
    _write(models, files, source_index, assets, observed, folder)
    watch = _Watch()
    pictures, left_out = 0, []
    for prompt, flagged in draw(folder, PROBE, watch.observe):
        pictures += 1
        if flagged:
            left_out.append(prompt)
        watch.end_picture(keep=not flagged)
    facts = {
        "pictures": pictures,
        "flagged": left_out,
        "runs": watch.runs,
        "values": {n: len(seen) for n, seen in watch.seen.items()},
    }
    return {component: watch.results(component) for component in observed}, facts


def _write(
    models: Mapping[str, Model],
    files: Mapping[str, Path],
    source_index: Mapping[str, Any],
    assets: Mapping[str, bytes],
    observed: Sequence[str],
    folder: Path,
) -> None:
    """Write a pipeline whose networks show their values, for the CPU."""
    contents = {**assets, INDEX_FILE: index(source_index, sorted(models))}
    for component, model in models.items():
        graph = with_functions(model.require("graph").to_ir())
        if component in observed:
            add_probes(graph)
        (folder / component).mkdir()
        materialize(Graph.from_ir(graph), model.require("weights"), files, folder / component, lambda _, __: None)
        if model.architecture is not None:
            contents[f"{component}/config.json"] = component_config(model.architecture)
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


class _Watch:
    """Takes notes while networks run."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, Observer]] = {}
        self.runs: dict[str, int] = {}
        self._picture: dict[str, dict[str, Observer]] = {}

    def observe(self, component: str, shown: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Note what one run of a network showed.

        Raises:
            PassError: for a value that is not finite.
        """
        observers = self._picture.setdefault(component, {})
        self.runs[component] = self.runs.get(component, 0) + 1
        for name, figures in shown.items():
            value = name.removeprefix(PROBE)
            if not np.isfinite(figures).all():
                raise PassError(
                    f"{component}: in run {self.runs[component]} of calibration, {value!r} has values that are not "
                    "finite, so that it has no range; find the step that is wrong with `verify` in front of it"
                )
            observers.setdefault(value, Observer()).add(float(figures[0]), float(figures[1]), figures[3:])

    def end_picture(self, *, keep: bool) -> None:
        """Keep what was noted since the last picture, or forget it."""
        for component, observers in self._picture.items() if keep else ():
            kept = self.seen.setdefault(component, {})
            for name, observer in observers.items():
                kept.setdefault(name, Observer()).merge(observer)
        self._picture.clear()

    def results(self, component: str) -> dict[str, Observed]:
        """Return what was seen of a component."""
        if component not in self.runs:
            raise PassError(f"{component}: drawing never ran it, so that calibration saw nothing; leave it in float")
        return {name: observer.result() for name, observer in self.seen.get(component, {}).items()}
