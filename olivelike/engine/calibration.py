"""Drawing a few pictures with networks in float, and noting what passes through them, or what another graph changes.

Each network is written to a folder of its own that goes away. For ranges it has an output for each value that is
wanted: its range, and a sample of its elements. So a run gives kilobytes, whatever the size of the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivelike.engine.output.materialize import materialize
from olivelike.engine.output.pipeline_files import component_config, index
from olivelike.errors import PassError
from olivelike.graphs.functions import with_functions
from olivelike.graphs.probes import PROBE, add_probes
from olivelike.model import Graph, Model
from olivelike.model.components import INDEX_FILE
from olivelike.model.observations import Observed, Observer

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike._untrusted import Json
    from olivelike.model.architecture import Config

    Array = np.ndarray[Any, Any]
    Observe = Callable[[int, str, Mapping[str, Array]], None]
    """Is told the number of a picture, from 0, a component, and what a run of it showed."""
    Draw = Callable[[Path, str, Observe], Iterator["Drawn"]]
    Observations = dict[str, dict[str, Observed]]
    """By component and value."""

_WHITE = 255


@dataclass(frozen=True)
class Drawn:
    """One picture."""

    prompt: str
    flagged: bool
    """Whether the safety checker objects to it."""
    latents: Array
    """Latents after the last step: (channels, height, width), float32."""
    pixels: Array
    """Decoded picture: (height, width, 3), uint8; black if flagged."""


@dataclass(frozen=True)
class FloatPipeline:
    """Networks that calibration draws with, as they are before any of them is rounded."""

    models: Mapping[str, Model]
    """With graph and weights, by component."""
    files: Mapping[str, Path]
    """Path of each file that weights lie in, by digest."""
    index: Config
    """The source's `model_index.json`."""
    assets: Mapping[str, bytes]
    """Content of the files beside the networks, by relative path."""
    draw: Draw
    """Draws with a folder; see `draw_observed` of the runtime, which is in no key."""

    def write(self, folder: Path, observed: Collection[str] = ()) -> None:
        """Write a pipeline for the CPU into an empty folder; networks that are observed show their values."""
        contents = {**self.assets, INDEX_FILE: index(self.index, sorted(self.models))}
        for component, model in self.models.items():
            graph = with_functions(model.require("graph").to_ir())
            if component in observed:
                add_probes(graph)
            self.write_network(folder, component, graph)
            if model.architecture is not None:
                contents[f"{component}/config.json"] = component_config(model.architecture)
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    def write_network(self, folder: Path, component: str, graph: ir.Model) -> None:
        """Write one network, with the component's weights."""
        weights = self.models[component].require("weights")
        (folder / component).mkdir(exist_ok=True)
        for path in (folder / component).glob("*.onnx*"):  # A session may still have it.
            path.unlink()
        materialize(Graph.from_ir(graph), weights, self.files, folder / component, lambda _, __: None)


def calibrate(pipeline: FloatPipeline, observed: Sequence[str], folder: Path) -> tuple[Observations, Json]:
    """Draw pictures, and return what was seen and what the run record should hold.

    Raises `PassError` if a value is not finite.

    Args:
        pipeline: What draws.
        observed: Components to observe.
        folder: An empty one, for the networks.
    """
    pipeline.write(folder, observed)
    watch = _Watch()
    pictures, left_out = 0, []
    for drawn in pipeline.draw(folder, PROBE, watch.observe):
        if drawn.flagged:
            left_out.append(drawn.prompt)
        watch.end_picture(pictures, keep=not drawn.flagged)
        pictures += 1
    facts = {
        "pictures": pictures,
        "flagged": left_out,
        "runs": watch.runs,
        "values": {n: len(seen) for n, seen in watch.seen.items()},
    }
    return {component: watch.results(component) for component in observed}, facts


class TrialDrawing:
    """Pictures of the pipeline with another graph of one network; `Context.drawing` of a pass.

    Pictures of that and of float are drawn from the same noise. Those that float's safety checker flags do not count.
    """

    def __init__(self, pipeline: FloatPipeline, component: str, digest: str, folder: Path) -> None:
        """Prepare for a component; nothing is written before it is asked for.

        Args:
            pipeline: What draws.
            component: Whose graph is tried.
            digest: Of all that decides what is drawn.
            folder: An empty one, for the networks.
        """
        self.digest = digest
        self._pipeline, self._component, self._folder = pipeline, component, folder
        self._float: list[Drawn] | None = None

    def compare(self, graph: ir.Model) -> dict[str, float | None]:
        """Draw with a graph in place of the component's.

        Returns `latents_error`, ‖difference‖ / ‖float's‖ of the final latents, and `psnr`, of the pictures in dB: each
        of the worst picture. An error that is not finite and the PSNR of equal pictures are `None`.
        """
        if self._float is None:
            self._pipeline.write(self._folder)
            self._float = self._draw()
        self._pipeline.write_network(self._folder, self._component, with_functions(graph))
        pairs = [(wanted, found) for wanted, found in zip(self._float, self._draw(), strict=True) if not wanted.flagged]
        errors = [_relative(found.latents, wanted.latents) for wanted, found in pairs]
        ratios = [_psnr(found.pixels, wanted.pixels) for wanted, found in pairs if not found.flagged]
        worst = max(errors) if all(map(math.isfinite, errors)) else math.inf
        # A picture that is flagged of late is black: as far off as one can be.
        ratio = min(ratios) if len(ratios) == len(pairs) else 0.0
        return {
            "latents_error": worst if math.isfinite(worst) else None,
            "psnr": ratio if math.isfinite(ratio) else None,
        }

    def _draw(self) -> list[Drawn]:
        return list(self._pipeline.draw(self._folder, PROBE, lambda *_: None))


def _relative(found: Array, wanted: Array) -> float:
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(found - wanted)) / size if size else math.inf


def _psnr(found: Array, wanted: Array) -> float:
    mean = float(np.mean(((found.astype(np.float64) - wanted) / _WHITE) ** 2))
    return -10 * math.log10(mean) if mean else math.inf


class _Watch:
    """Takes notes while networks run."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, Observer]] = {}
        self.runs: dict[str, int] = {}
        self._pictures: dict[int, dict[str, dict[str, Observer]]] = {}
        """Observers of pictures of which it is not yet known whether they count."""

    def observe(self, picture: int, component: str, shown: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Note what one run of a network showed, as it made a picture.

        Raises `PassError` for a value that is not finite.
        """
        observers = self._pictures.setdefault(picture, {}).setdefault(component, {})
        self.runs[component] = self.runs.get(component, 0) + 1
        for name, figures in shown.items():
            value = name.removeprefix(PROBE)
            if not np.isfinite(figures).all():
                raise PassError(
                    f"{component}: in run {self.runs[component]} of calibration, {value!r} has values that are not "
                    "finite, so that it has no range; find the step that is wrong with `verify` in front of it"
                )
            observers.setdefault(value, Observer()).add(float(figures[0]), float(figures[1]), figures[3:])

    def end_picture(self, picture: int, *, keep: bool) -> None:
        """Keep what was noted of a picture, or forget it."""
        noted = self._pictures.pop(picture, {})
        for component, observers in noted.items() if keep else ():
            kept = self.seen.setdefault(component, {})
            for name, observer in observers.items():
                kept.setdefault(name, Observer()).merge(observer)

    def results(self, component: str) -> dict[str, Observed]:
        """Return what was seen of a component."""
        if component not in self.runs:
            raise PassError(f"{component}: drawing never ran it, so that calibration saw nothing; leave it in float")
        return {name: observer.result() for name, observer in self.seen.get(component, {}).items()}
