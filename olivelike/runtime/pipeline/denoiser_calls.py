"""The denoiser as steps call it: on all rows of a batch or on the prompts' alone, in one call or two, whole or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError
from olivelike.families.denoiser_forms import TOKENS, Inputs, taken_moment
from olivelike.model.components import CACHED_FEATURES
from olivelike.model.guides import IMAGE_STRENGTH
from olivelike.runtime.pipeline.guides_in_use import NO_GUIDES, Guide, GuideInputs, Guides, is_guide_input

if TYPE_CHECKING:
    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.conditioning import Conditioning
    from olivelike.runtime.pipeline.latents import Start
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.session import Call, Network

_FARTHEST: Final = 0.5
"""Farthest that features are foretold behind the last whole step, as a share of what lies between the last two."""
_STEADY, _ERRATIC = 0.15, 0.3
"""Changes between whole steps, as a share of the features: below the one they are foretold, from the other on not."""


@dataclass(frozen=True, eq=False)
class DenoiserNetworks:
    """The denoiser, and what of it runs in steps between full ones."""

    whole: Network
    shallow: Network | None = None
    """Outermost part, which `deepcache` cut out of it; `None` where each step is a full one."""
    guides: Guides = NO_GUIDES
    """Guides that lead beside the text; the whole denoiser takes their inputs."""


class DenoiserCalls:
    """Calls of the denoiser for one batch, with buffers that stay."""

    def __init__(
        self, networks: DenoiserNetworks, folder: PipelineFolder, start: Start, conditioning: Conditioning
    ) -> None:
        self._networks, self._folder, self._start = networks, folder, start
        pictures, terms = len(start.latents), conditioning.terms
        of_prompts = range(pictures) if terms is None else terms.pictures
        self._negatives = pictures if conditioning.guided else 0
        self._rows = [*range(self._negatives), *of_prompts]
        self._spans: list[_Span] = []
        self._shown: tuple[list[_Place], Inputs] | None = None

    def predict(
        self,
        scaled: Array,
        moment: Array,
        conditions: Inputs,
        *,
        guided: bool,
        reuse: bool = False,
        apart: bool = False,
        guides: Sequence[Guide] = (),
    ) -> Array:
        """Return what the denoiser predicts, in a buffer that the next call overwrites.

        Args:
            scaled: latents as the scheduler wants them, of shape (pictures, channels, height, width).
            moment: the timestep.
            conditions: what leads this step, for all rows.
            guided: also run on the negative prompts, where there are any.
            reuse: take the deep layers' features from the step before, if the rows and what leads them are the same.
            apart: call the denoiser for negative prompts, then for prompts, rather than for both at once.
            guides: those that are active in this step.

        Returns:
            A row for each negative prompt, if `guided`, and then for each prompt.
        """
        import numpy as np

        negatives, end = self._negatives, len(self._rows)
        halves = [slice(0 if guided else negatives, end)]
        if apart and guided and negatives:
            halves = [slice(0, negatives), slice(negatives, end)]
        places = [place for half in halves for place in _of_one_length(half, conditions.get(TOKENS))]
        before, self._shown = self._shown, (places, conditions)
        if before is None or before[0] != places:
            # Buffers may be those of the spans before: nothing is in them any more.
            alone, given = len(places) == 1, (self._networks, self._folder, self._start)
            self._spans = [_Span(*given, self._rows[place.rows], place, alone, negatives) for place in places]
        reuse = reuse and before is not None and before[0] == places and before[1] is conditions
        found = [span.run(scaled, moment, conditions, shallow=reuse, guides=guides) for span in self._spans]
        return found[0] if len(found) == 1 else np.concatenate(found)


@dataclass(frozen=True)
class _Place:
    """Rows that are beside each other."""

    rows: slice
    tokens: int | None = None
    """Number of their texts' tokens, for a denoiser that takes rows of one length."""

    def of(self, conditions: Inputs) -> dict[str, Array]:
        """Return what leads these rows."""
        leading = {name: value[self.rows] for name, value in conditions.items() if name != TOKENS}
        if self.tokens is not None:
            leading[_STATES] = leading[_STATES][:, : self.tokens]
        return leading


_STATES: Final = "encoder_hidden_states"


def _of_one_length(rows: slice, tokens: Array | None) -> list[_Place]:
    """Return rows as places whose texts are of one length each; as one, if all may be together."""
    if tokens is None:
        return [_Place(rows)]
    own = tokens[rows].tolist()
    ends = [end for end in range(1, len(own) + 1) if end == len(own) or own[end] != own[end - 1]]
    return [
        _Place(slice(rows.start + first, rows.start + end), own[first])
        for first, end in zip([0, *ends], ends, strict=False)
    ]


def _reach(before: Array, last: Array) -> Array:
    """Return how far each row's features are foretold: what changes much follows no line, as where steps add noise."""
    import numpy as np

    change, whole = (
        np.linalg.norm(values.astype(np.float32).reshape(len(last), -1), axis=1) for values in (last - before, last)
    )
    reach: Array = _FARTHEST * ((_ERRATIC - change / whole) / (_ERRATIC - _STEADY)).clip(0.0, 1.0)
    return reach.reshape(-1, *(1 for _ in last.shape[1:]))


class _Span:
    """Rows that go through the denoiser in one call."""

    def __init__(
        self,
        networks: DenoiserNetworks,
        folder: PipelineFolder,
        start: Start,
        rows: list[int],
        place: _Place,
        alone: bool,
        negatives: int,
    ) -> None:
        """Take rows, as the pictures that they belong to, and their place among all.

        `alone` says that no other span has the same buffers; `negatives`, how many of all rows are of negative prompts.
        """
        own = max(min(negatives, place.rows.stop) - place.rows.start, 0)
        pictures = len(start.latents)
        self._plain = rows == [*range(pictures)] * (len(rows) // pictures)
        self._guides = GuideInputs(networks.guides, own)
        self._networks, self._start, self._rows, self._place = networks, start, rows, place
        self._family, self._form = folder.family, folder.form
        self._pictures = self._form.shown(start.references) if self._form.shown and start.references else None
        self._alone = alone
        self._held: dict[Network, tuple[Inputs, Call]] = {}
        self._led_by: Inputs | None = None
        self._features: list[tuple[float, Array]] = []
        """Timesteps of the last two whole steps, each with what went up into the last layers."""
        self._reach: Array | None = None
        """Distance behind the last of them at which they are foretold, by row; `None` behind the only one."""

    def run(self, scaled: Array, moment: Array, conditions: Inputs, *, shallow: bool, guides: Sequence[Guide]) -> Array:
        network = self._networks.shallow if shallow and self._networks.shallow is not None else self._networks.whole
        call = self._call(network, conditions)
        sample, timestep = call.inputs[self._family.sample], call.inputs["timestep"]
        packed, size = self._form.pack(scaled), scaled.shape[2:]
        if self._plain:
            # Both halves of the guided batch are the same latents: one write each, no tensor in between.
            for first in range(0, len(sample), len(packed)):
                sample[first : first + len(packed), : packed.shape[1]] = packed
        else:
            sample[:, : packed.shape[1]] = packed[self._rows]
        told = taken_moment(self._family, moment)
        timestep[...] = told if timestep.dtype.kind == "f" else told.round()
        if network is self._networks.shallow:
            call.inputs[CACHED_FEATURES][...] = self._features_at(float(moment))
        if self._networks.guides.controls:
            leading = self._place.of(conditions)
            self._guides.fill(call, sample[:, : scaled.shape[1]], moment, leading, guides)
        call.run()
        prediction, *features = call.outputs.values()
        if features:
            now = float(moment)
            # PNDM has a timestep twice.
            before = [kept for kept in self._features if kept[0] != now][-1:] if self._led_by is conditions else []
            self._led_by, self._features = conditions, [*before, (now, features[0].copy())]
            self._reach = _reach(*(kept for _, kept in self._features)) if before else None
        prediction = self._form.output(prediction, *size)
        return prediction if self._alone else prediction.copy()

    def _features_at(self, moment: float) -> Array:
        """Return features on the line through those of the last two whole steps; those of the only one, if it is."""
        import numpy as np

        (first, before), (second, last) = self._features[0], self._features[-1]
        if self._reach is None:
            return last
        ahead = np.minimum(self._reach, (moment - second) / (second - first))
        found: Array = last + (last.astype(np.float32) - before) * ahead
        return found

    def _call(self, network: Network, conditions: Inputs) -> Call:
        """Return the network's call with what leads these rows, which stays until something else does."""
        import numpy as np

        held = self._held.get(network)
        if held is not None and held[0] is conditions and self._alone:
            return held[1]
        leading = self._place.of(conditions)
        height, width = self._start.latents.shape[2:]
        leading |= self._form.grid_inputs(height, width, leading)
        if self._pictures is not None:
            leading |= {name: np.concatenate([leading[name], more]) for name, more in self._pictures[1].items()}
        if network is self._networks.shallow:
            leading = {name: value for name, value in leading.items() if name in network.session.inputs}
        call = self._prepare(network, leading) if held is None else held[1]
        for name, value in leading.items():
            call.inputs[name][...] = value
        call = network.hold(call, tuple(leading))
        self._held[network] = conditions, call
        return call

    def _prepare(self, network: Network, leading: dict[str, Array]) -> Call:
        """Return a network's call for these rows, with what an inpainting denoiser takes beside the latents."""
        import numpy as np

        start, shallow, sample = self._start, self._networks.shallow, self._family.sample
        _, channels, height, width = start.latents.shape
        batch, more = len(self._rows), 0 if start.channels is None else start.channels.shape[1]
        taken, given = (self._packed(batch, number, height, width) for number in (channels + more, channels))
        behind = 0 if self._pictures is None else len(self._pictures[0])
        if behind:
            taken, given = ((shape[0], shape[1] + behind, *shape[2:]) for shape in (taken, given))
        moments = network.input("timestep").dims
        sizes = dict(zip(network.input(sample).dims, taken, strict=True))
        inputs: dict[str, tuple[int, ...]] = {
            sample: taken,
            "timestep": tuple(sizes.get(dim, 1) if isinstance(dim, str) else 1 for dim in moments),
            **{name: tuple(value.shape) for name, value in leading.items()},
        }
        outputs: dict[str, tuple[int, ...]] = {next(iter(network.session.outputs)): given}
        if shallow is not None:
            own = dict(zip(shallow.input(sample).dims, taken, strict=True))
            features = tuple(_size(dim, own) for dim in shallow.input(CACHED_FEATURES).dims)
            (inputs if network is shallow else outputs)[CACHED_FEATURES] = features
        if self._networks.guides.controls:
            inputs |= {
                name: tuple(_size(dim, sizes) for dim in spec.dims)
                for name, spec in network.session.inputs.items()
                if is_guide_input(name)
            }
        if self._networks.guides.image_strength is not None:
            inputs[IMAGE_STRENGTH] = (1,)
        if unknown := [name for name in network.session.inputs if name not in inputs]:
            raise SourceError(
                f"{network.component}/model.onnx: takes {', '.join(unknown)}, which this pipeline has nothing for"
            )
        call = network.prepare(inputs, outputs, shared=[name for name in inputs if is_guide_input(name)])
        self._guides.prepare(call)
        if self._pictures is not None:
            call.inputs[sample][:, -behind:] = self._pictures[0]
        if start.channels is not None:
            call.inputs[sample][:, channels:] = np.asarray(start.channels)[self._rows]
        return call

    def _packed(self, *shape: int) -> tuple[int, ...]:
        """Return the shape that the denoiser takes latents of a shape in."""
        import numpy as np

        packed: tuple[int, ...] = self._form.pack(np.broadcast_to(np.float32(0), shape)).shape
        return packed


def _size(dim: int | str, sizes: Mapping[int | str, int]) -> int:
    """Return a dimension's size: `unet_sample_height/2` is half of that, rounded up."""
    if isinstance(dim, int):
        return dim
    name, _, share = dim.partition("/")
    return -(-sizes[name] // int(share or 1))
