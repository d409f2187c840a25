"""A pipeline that shows, while it draws, what some outputs of its networks are that nobody else asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from olivelike.graphs.inspect.quantised import rounded_to
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.sessions.session import BoundCall, Network, Session, open_session
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch

    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.request import Picture, Request

    Observe = Callable[[str, Mapping[str, np.ndarray[Any, Any]]], None]
    """Is told a component, and its further outputs by name, after each run."""


def draw_observed(
    path: Path, prefix: str, observe: Observe, requests: Iterable[Request]
) -> Iterator[tuple[Picture, np.ndarray[Any, Any]]]:
    """Draw pictures on the CPU.

    Args:
        path: A folder as `olivelike run` writes it.
        prefix: Begins the names of the outputs to show, whose shapes are fixed.
        observe: Called after each run of a network that has such outputs; the arrays are those of the next run too.
        requests: What to draw, a picture each.

    Yields:
        Each picture, looked at by the safety checker where the folder has one, and the latents behind its last step,
        of shape (channels, height, width), float32.

    Raises:
        SourceError: if a part is missing or damaged.
        SessionError: if a network can't be opened here.
        UsageError: for a value that can't be had.
    """
    pipeline = _open(path, prefix, observe)
    for request in requests:
        latents: list[np.ndarray[Any, Any]] = []

        def keep(step: Step, latents: list[np.ndarray[Any, Any]] = latents) -> None:
            latents[:] = step.preview.latents.numpy()[:1]

        (picture,) = pipeline.generate(request, on_step=keep).pictures
        yield picture, latents[0].astype("float32")


def _open(path: Path, prefix: str, observe: Observe) -> Pipeline:
    folder, settings = open_folder(path), SessionSettings()
    networks = {}
    for component, model in folder.models(safety=True).items():
        in_float8 = rounded_to(ir.load(model).graph) == "fp8"  # for which the CPU has no fused operators
        session = open_session(model, settings.unfused() if in_float8 else settings)
        if shown := [name for name in session.outputs if name.startswith(prefix)]:
            session = _ObservedSession(session, shown, lambda arrays, name=component: observe(name, arrays))  # type: ignore[misc]
        networks[component] = Network(component, session)
    return Pipeline(folder, settings, safety=True, initializers={}, shared=networks)


class _ObservedSession(Session):
    """A session without the outputs that it shows."""

    def __init__(
        self, session: Session, shown: Collection[str], observe: Callable[[Mapping[str, np.ndarray[Any, Any]]], None]
    ) -> None:
        outputs = {name: spec for name, spec in session.outputs.items() if name not in shown}
        super().__init__(
            session.network, session.inputs, outputs, session.provider, session.tensor_device, session.moves_inputs
        )
        self._session, self._observe = session, observe
        self._shown = {name: session.outputs[name] for name in shown}

    def _bind(
        self, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor], constant: Collection[str]
    ) -> BoundCall:
        import torch

        shown = {name: torch.empty(*spec.dims, dtype=getattr(torch, spec.dtype)) for name, spec in self._shown.items()}
        call = self._session.bind(inputs, {**outputs, **shown}, constant)
        return _ObservedCall(call, lambda: self._observe({name: tensor.numpy() for name, tensor in shown.items()}))


class _ObservedCall:
    def __init__(self, call: BoundCall, tell: Callable[[], None]) -> None:
        self._call, self._tell = call, tell

    def run(self) -> None:
        """Run, and show."""
        self._call.run()
        self._tell()
