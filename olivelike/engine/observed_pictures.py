"""A pipeline that shows, while it draws, what some outputs of its networks are that nobody else asks for.

Some pictures are denoised one after the other, then all of them are decoded and checked: so the UNet and what decodes
are never in memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from olivelike.graphs.inspect.quantised import rounded_to
from olivelike.model.components import SAFETY_CHECKER
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.runtime.pipeline.safety import SafetyCheck, black, read_preprocessing
from olivelike.runtime.pipeline.vae import decode_latents, to_images
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import BoundCall, Network, Session, empty
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from PIL.Image import Image

    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.sessions.session import Buffer

    Observe = Callable[[int, str, Mapping[str, np.ndarray[Any, Any]]], None]
    """Is told the number of a picture, a component, and its further outputs by name, after each run."""
    OnStep = Callable[[int, int, int], None]
    """Is told the number of a picture, and how many of its steps are done of how many."""

_AT_ONCE: Final = 8
"""Pictures from one opening of the UNet to the next: what each showed is held until it is known to count."""


_LEAST_SIDE: Final = 256
"""Pixels below which pictures that nobody gave a size are no smaller than those that the UNet was trained on."""


@dataclass(frozen=True)
class ObservedPicture:
    """A picture, and what it was decoded from."""

    image: Image
    """Black if it was flagged."""
    flagged: bool
    latents: np.ndarray[Any, Any]
    """Float32 of shape (channels, height, width)."""


def draw_observed(
    path: Path, prefix: str, observe: Observe, requests: Iterable[Request], on_step: OnStep
) -> Iterator[ObservedPicture]:
    """Draw pictures on the CPU.

    Raises `SourceError` if a part is missing or damaged, `SessionError` if a network can't be opened here, and
    `UsageError` for a value that can't be had.

    Args:
        path: A folder as `olivelike run` writes it.
        prefix: Begins the names of the outputs to show, whose shapes are fixed.
        observe: Called after each run of a network that has such outputs; the arrays are those of the next run too.
        requests: What to draw, a picture each, numbered from 0. Without a size they have `observed_size`.
        on_step: Called before the first step of a picture, with 0 of 0, and after each.

    Yields:
        Each picture, looked at by the safety checker where the folder has one, a few of them at a time.
    """
    folder, rest, first = open_folder(path), iter(requests), 0
    while some := [replace(one, size=one.size or observed_size(folder)) for one in islice(rest, _AT_ONCE)]:
        drawing = _Drawing(folder, prefix, observe, first)
        yield from drawing.decode(drawing.denoise(some, on_step))
        first += len(some)


def observed_size(folder: PipelineFolder) -> tuple[int, int]:
    """Return half the width and height that the UNet was trained on, where these are 256 at least.

    A step takes a fifth of the time there, and values hardly range less.
    """
    unit, trained = folder.size_unit, folder.default_size
    width, height = (side // 2 // unit * unit for side in trained)
    return (width, height) if min(width, height) >= _LEAST_SIDE else trained


class _Drawing:
    def __init__(self, folder: PipelineFolder, prefix: str, observe: Observe, first: int) -> None:
        self._folder, self._prefix, self._observe, self._first = folder, prefix, observe, first
        self._number = first
        """Number of the picture that networks are run for."""

    def denoise(self, requests: Sequence[Request], on_step: OnStep) -> list[np.ndarray[Any, Any]]:
        """Return the latents of each picture, with a first axis of 1; the networks go as this returns."""
        import numpy as np

        networks = {name: self._open(name) for name in self._folder.models(safety=False)}
        pipeline = Pipeline(self._folder, SessionSettings(), safety=False, initializers={}, shared=networks)
        found = []
        for number, request in enumerate(requests, self._first):
            self._number = number
            on_step(number, 0, 0)

            def tell(step: Step, number: int = number) -> None:
                on_step(number, step.number, step.total)

            found.append(np.asarray(pipeline.latents(request, on_step=tell)))
        return found

    def decode(self, drawn: Sequence[np.ndarray[Any, Any]]) -> Iterator[ObservedPicture]:
        """Yield the pictures that latents stand for."""
        folder, decoder = self._folder, self._open("vae_decoder")
        check = None
        if folder.is_checked:
            preprocessing = read_preprocessing(folder.path / "feature_extractor" / "preprocessor_config.json")
            check = SafetyCheck(self._open(SAFETY_CHECKER), preprocessing)
        for number, latents in enumerate(drawn, self._first):
            self._number = number
            (image,) = to_images(decode_latents(latents, decoder, folder), latents, folder)
            flagged = check is not None and check.flags([image])[0]
            yield ObservedPicture(black(image) if flagged else image, flagged, latents[0])

    def _open(self, component: str) -> Network:
        path, settings = self._folder.model(component), SessionSettings()
        graph = ir.load(path).graph
        if rounded_to(graph) == "fp8":  # for which the CPU has no fused operators
            settings = settings.unfused()
        shown = [value.name for value in graph.outputs if value.name and value.name.startswith(self._prefix)]
        if not shown:
            return Network(component, open_session(path, settings))
        # What is shown of a value is made as soon as the value is, which then goes, and other layouts pay for nothing.
        session = open_session(path, replace(settings, optimization="extended", written_order=True))

        def tell(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
            self._observe(self._number, component, arrays)

        return Network(component, _ObservedSession(session, shown, tell))


class _ObservedSession(Session):
    """A session without the outputs that it shows."""

    def __init__(
        self, session: Session, shown: Collection[str], observe: Callable[[Mapping[str, np.ndarray[Any, Any]]], None]
    ) -> None:
        outputs = {name: spec for name, spec in session.outputs.items() if name not in shown}
        super().__init__(session.network, session.inputs, outputs, session.provider, session.moves_inputs)
        self._session, self._observe = session, observe
        self._shown = {name: session.outputs[name] for name in shown}

    def _bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> BoundCall:
        shown = {name: empty(spec.dtype, tuple(map(int, spec.dims))) for name, spec in self._shown.items()}
        call = self._session.bind(inputs, {**outputs, **shown}, constant)
        return _ObservedCall(call, lambda: self._observe(shown))


class _ObservedCall:
    def __init__(self, call: BoundCall, tell: Callable[[], None]) -> None:
        self._call, self._tell = call, tell

    def run(self) -> None:
        """Run, and show."""
        self._call.run()
        self._tell()
