"""`calibrate`: a few pictures drawn in float, and what passed through the networks that are to be rounded to 8 bits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from olivelike.engine.execute.stored_tensors import TensorFiles
from olivelike.engine.kinds.joined import JoinedNode, JoinedTask
from olivelike.engine.kinds.kind import Estimate
from olivelike.engine.plan.node import CALIBRATION, Node
from olivelike.errors import SafetyError
from olivelike.model.components import SAFETY_CHECKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from olivelike._untrusted import Json, JsonView
    from olivelike.engine.calibration import Drawn, FloatPipeline, Observe
    from olivelike.engine.kinds.kind import Assignment, Done, NotedProgress, Task, Upstream, Workbench, Workplace
    from olivelike.engine.plan.inputs import Inputs
    from olivelike.sources import PipelineSource

_MEMORY = 1200 << 20
_FLOAT_BYTES = 4
_DECODING = frozenset({"vae_decoder", SAFETY_CHECKER})


@dataclass(frozen=True)
class CalibrateTask(JoinedTask):
    """Draw, and observe."""

    settings: JsonView
    """The fields of a `Calibration`."""
    observed: Sequence[str]
    """Components whose values are wanted."""

    def run(self, bench: Workbench) -> Done:
        """Make the observations of each network: `calibration.COMPONENT`; the networks are written for that alone."""
        from olivelike.engine.calibration import calibrate
        from olivelike.model.observations import to_bytes

        bench.progress(0, len(self.settings["prompts"]) * (self.settings["steps"] + 1), "writing networks to draw with")
        with bench.store.scratch() as scratch:
            found, facts = calibrate(self.pipeline(bench, bench.progress), self.observed, scratch)
        if facts["flagged"] and (self.settings["own_prompts"] or len(facts["flagged"]) == facts["pictures"]):
            raise SafetyError(
                f"the safety checker flags what {len(facts['flagged'])} prompts of the calibration draw, the first of "
                f"them {facts['flagged'][0]!r}; name others under `calibration: {{prompts: …}}`"
            )
        self.check_unchanged()
        return bench.keep({f"{CALIBRATION}.{name}": to_bytes(seen) for name, seen in found.items()}, facts)

    def pipeline(self, bench: Workbench, progress: NotedProgress) -> FloatPipeline:
        """Return what draws; `progress` is told of each step, and of each picture that is decoded."""
        from olivelike.engine.calibration import FloatPipeline

        files = TensorFiles(bench.store, self.weight_files)
        draw = partial(_draw, self.settings, progress)
        return FloatPipeline(self.read_models(bench), files, self.index, self.read_assets(bench), draw)


def _draw(said: JsonView, progress: NotedProgress, folder: Path, prefix: str, observe: Observe) -> Iterator[Drawn]:
    """Draw with a folder's networks.

    The runtime loads what only a run knows, plugins of providers, so its code is in no key.
    """
    import numpy as np

    from olivelike.engine.calibration import Drawn
    from olivelike.engine.observed_pictures import draw_observed
    from olivelike.runtime.pipeline.request import Request

    requests = [
        Request(
            (prompt,), steps=said["steps"], guidance_scale=said["guidance_scale"], seed=said["seed"] + number,
            size=None if said["size"] is None else tuple(said["size"]),
        )
        for number, prompt in enumerate(said["prompts"])
    ]  # fmt: skip
    told = _Told(progress, len(requests), said["steps"])
    drawn = draw_observed(folder, prefix, observe, requests, told.step)
    for prompt, picture in zip(said["prompts"], drawn, strict=True):
        told.decoded()
        yield Drawn(prompt, picture.flagged, picture.latents, np.asarray(picture.image.convert("RGB")))


class _Told:
    """Tells how far drawing is, in steps; decoding a picture is as good as one."""

    def __init__(self, progress: NotedProgress, pictures: int, steps: int) -> None:
        self._progress, self._pictures, self._steps = progress, pictures, steps
        self._denoised = self._decoded = 0

    def step(self, picture: int, step: int, of: int) -> None:
        """Tell that a step of a picture is done; before the first, `of` is 0."""
        self._steps = of or self._steps  # Some schedulers take one more than asked.
        self._denoised = picture * self._steps + step
        self._tell(f"picture {picture + 1} of {self._pictures}" + (f", step {step} of {of}" if of else ""))

    def decoded(self) -> None:
        """Tell that one more picture is decoded."""
        self._decoded += 1
        self._tell(f"decoded picture {self._decoded} of {self._pictures}")

    def _tell(self, note: str) -> None:
        self._progress(self._denoised + self._decoded, self._pictures * (self._steps + 1), note)


def drawn_by(node: Node) -> Json:
    """Return the fields of a node's `Calibration` as JSON values."""
    said = {} if node.calibration is None else asdict(node.calibration)
    # Lists, as records of runs have them: a plan compares the two.
    return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}


class CalibrateNode(JoinedNode):
    """A node that draws before networks are rounded; it joins their chains as they are in front of that."""

    task_type = CalibrateTask
    libraries = ("diffusers", "olivelike", "onnxruntime", "torch")
    """Libraries that draw."""

    def options(self, node: Node) -> Json:
        """Return what is drawn, and what is observed."""
        return drawn_by(node)

    def makes(self, node: Node, upstream: Upstream, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:  # noqa: ARG002
        """Return the observations of each network."""
        made = frozenset(f"{CALIBRATION}.{name}" for name in drawn_by(node)["components"])
        return made, made

    def estimate(self, node: Node, chain: Sequence[Node], source: PipelineSource) -> Estimate:  # noqa: ARG002
        """Return the size of the histograms, and the memory of open networks."""
        known = {name: source.checkpoint(name).elements for name in node.components if name in source.checkpoints}
        decoding = sum(elements for name, elements in known.items() if name in _DECODING)
        size = max(decoding, sum(known.values()) - decoding)  # They are never in memory together.
        return Estimate(4_000_000, _MEMORY + size * _FLOAT_BYTES)

    def task(self, place: Workplace, assignment: Assignment) -> Task:
        """Return what a worker is to do."""
        settings = self.options(assignment.node)
        return CalibrateTask(
            place, **self.joined_fields(assignment), observed=settings.pop("components"), settings=settings
        )
