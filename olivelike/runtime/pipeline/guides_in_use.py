"""Guides as a request uses them: control pictures, and pictures that are a prompt.

As diffusers' pipelines have them. ControlNets (https://arxiv.org/abs/2302.05543) run before the UNet in each step:
strengths, shares of the steps, guess mode, several at once by their sum (`MultiControlNetModel`). T2I-Adapters
(https://arxiv.org/abs/2302.08453) run once: `adapter_conditioning_scale` is the strength, and
`adapter_conditioning_factor` the share of the steps up to which they lead; several add up (`MultiAdapter`).
An IP-Adapter's image encoder (https://arxiv.org/abs/2308.06721) makes tokens of a picture, which the UNet attends to
beside the text; several pictures are more tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from olivelike._text import did_you_mean
from olivelike.errors import SourceError, UsageError
from olivelike.model.guides import (
    CONTROL_KINDS,
    GUIDES,
    IMAGE_ENCODER,
    IMAGE_STRENGTH,
    IMAGE_TOKENS,
    NO_IMAGE_TOKENS,
    STRENGTH,
    GuideKind,
    guide_kind,
)
from olivelike.runtime.pictures.pixels import to_shares, upright
from olivelike.runtime.pipeline.safety import Preprocessing
from olivelike.runtime.sessions.session import Call, Network, put

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Control, Request, ResolvedRequest
    from olivelike.runtime.sessions.session import Buffer

_FIRST_SHARE: Final = 0.1
"""Share of the outermost residual in guess mode; the shares grow evenly in logarithm to 1, that of the middle."""
_MOST_STRENGTH: Final = 10
"""Largest strength of a control picture, of either sign."""
_SIDE: Final = 224
_BICUBIC: Final = 3
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
"""Deviation of CLIP's training pictures; with `_MEAN`, defaults of `CLIPImageProcessor`."""
_MOST: Final = 16
"""Pictures of a prompt."""
_NOWHERE: Final[Mapping[str, Buffer]] = MappingProxyType({})


def check_guides(request: Request, folder: PipelineFolder) -> Request:
    """Check the pictures that lead; return the request with the name of each control picture's network.

    Raises `UsageError` for what can't be had, and `SourceError` if the folder's UNet does not take what they give.
    """
    request = _with_controls(request, folder)
    _check_prompt(request, folder)
    return request


def guide_names(request: Request, folder: PipelineFolder) -> list[str]:
    """Return which of `GUIDES` lead the UNet to a request's pictures."""
    used = {kind.name for kind in map(guide_kind, guide_networks(request, folder)) if kind is not None}
    return [name for name in GUIDES if name in used]


def guide_networks(request: Request, folder: PipelineFolder) -> list[str]:
    """Return the components of the networks that a request's pictures need beside the UNet."""
    controls = {folder.leading[control.net] for control in request.controls if control.net is not None}
    return [*sorted(controls), *([IMAGE_ENCODER] if request.ip_adapter_images else [])]


def check_control_sizes(size: tuple[int, int], request: Request, folder: PipelineFolder) -> None:
    """Check that pictures of a size can be led.

    Raises `UsageError` if a network of a control picture gives nothing for it, and `SourceError` if its config is that
    of another network.
    """
    for component in guide_networks(request, folder):
        kind = guide_kind(component)
        if kind is None or kind.in_each_step or kind.is_prompt:
            continue
        from olivelike.families.supported import check_network
        from olivelike.model.adapter_features import downscale_factor

        config = folder.config(component)
        try:
            check_network(component, kind.network[1], config)
        except SourceError as error:
            raise SourceError(f"{folder.path / component / 'config.json'}: {error}") from error
        unit = downscale_factor(config)
        if size[0] % unit or size[1] % unit:
            raise UsageError(
                f"size {size[0]}x{size[1]}: {kind.one} of this pipeline takes sides that are multiples of {unit} "
                "pixels; take such a size, or drop its control picture"
            )


def _with_controls(request: Request, folder: PipelineFolder) -> Request:
    if not request.controls:
        return request
    names = folder.leading
    if not names:
        first, *others = CONTROL_KINDS
        under = ", ".join(f"or {kind.one} under `{kind.key}:`" for kind in others)
        raise UsageError(
            f"{folder.path} has no {first.title}, which a control picture needs; name one under `{first.key}:`, "
            f"{under}, in its workflow and run it again"
        )
    request = replace(request, controls=tuple(_checked(control, names) for control in request.controls))
    folder.led_denoiser(used := guide_names(request, folder))
    if request.control_guess and not any(GUIDES[name].in_each_step for name in used):
        guessing = " or ".join(f"{kind.title}s" for kind in CONTROL_KINDS if kind.in_each_step)
        there = " and ".join(f"{GUIDES[name].title}s" for name in used if not GUIDES[name].is_prompt)
        raise UsageError(f"control_guess is about {guessing}, and only {there} lead; drop it")
    if request.inpaint_area == "masked":
        raise UsageError(
            "inpaint_area masked draws a part of the picture, and a control picture leads all of it; take inpaint_area "
            "whole"
        )
    return request


def _checked(control: Control[Image], names: Mapping[str, str]) -> Control[Image]:
    there = [kind.title for kind in dict.fromkeys(map(guide_kind, names.values())) if kind is not None]
    titles = " and ".join(f"{title}s" for title in there)
    if control.net is None and len(names) > 1:
        raise UsageError(
            f"the pipeline has {len(names)} {titles}; say which one a control picture is for: {', '.join(names)}"
        )
    net = control.net or next(iter(names))
    if net not in names:
        by_component = {component: name for name, component in names.items()}
        if net not in by_component:
            raise UsageError(f"the pipeline has no {' or '.join(there)} {net!r}; {did_you_mean(net, names, titles)}")
        net = by_component[net]
    if not abs(control.strength) <= _MOST_STRENGTH:
        raise UsageError(
            f"the strength of a control picture, {control.strength:g}, is no number from {-_MOST_STRENGTH} to "
            f"{_MOST_STRENGTH}; 1 is what its network was trained for"
        )
    if not 0 <= control.start < control.end <= 1:
        raise UsageError(
            f"a control picture leads from {control.start:g} to {control.end:g}: these are no two shares of the steps, "
            "the first below the second, both between 0 and 1"
        )
    if control.preprocessor != "none":
        from olivelike.runtime.pictures.preprocessors import check_preprocessor

        check_preprocessor(control.preprocessor)
    return replace(control, net=net)


def _check_prompt(request: Request, folder: PipelineFolder) -> None:
    if not request.ip_adapter_images:
        return
    if len(request.ip_adapter_images) > _MOST:
        raise UsageError(f"{len(request.ip_adapter_images)} pictures are a prompt; take at most {_MOST}")
    if not folder.has(IMAGE_ENCODER):
        raise UsageError(
            f"{folder.path} has no IP-Adapter, which a picture as a prompt needs; name one as `ip_adapter:` in its "
            "workflow and run it again"
        )
    folder.led_denoiser(guide_names(request, folder))


@dataclass(frozen=True, eq=False)
class Guide:
    """A control picture in use."""

    kind: GuideKind
    control: Control[Image]
    network: Network
    pixels: Array
    """Picture of shape (1, channels, height, width), from 0 to 1."""
    is_pooled: bool = False
    """Whether its residuals are means over the picture, which lead prompts alone."""
    features: Mapping[str, Array] = field(default_factory=dict)
    """Residuals that are the same in each step, by input of the UNet: one row, float32, times the strength."""

    def is_active(self, step: int, steps: int) -> bool:
        """Say whether it leads a step, counted from 0, of so many: from beginning to end of it."""
        return step / steps >= self.control.start and (step + 1) / steps <= self.control.end


@dataclass(frozen=True, eq=False)
class Guides:
    """All that leads the UNet in a batch beside the text; it then takes what their networks give."""

    controls: Sequence[Guide] = ()
    guess: bool = False
    """Whether control pictures lead prompts alone, by shares that grow towards the middle."""
    image_strength: float | None = None
    """Strength of pictures that are a prompt; `None` without any."""


NO_GUIDES: Final = Guides()


def prepare_guides(request: ResolvedRequest, folder: PipelineFolder, networks: Mapping[str, Network]) -> Guides:
    """Prepare the pictures that lead a request, at its size; `networks` are by component.

    Networks that give the same in each step run here.
    """
    strength = request.ip_adapter_scale if request.ip_adapter_images else None
    return Guides(
        [_prepared(one, request, folder, networks) for one in request.controls], request.control_guess, strength
    )


def _prepared(
    control: Control[Image], request: ResolvedRequest, folder: PipelineFolder, networks: Mapping[str, Network]
) -> Guide:
    from olivelike.model.adapter_features import downscale_factor, given_features
    from olivelike.runtime.pictures.preprocessors import preprocessed

    assert control.net is not None
    component, (width, height) = folder.leading[control.net], request.size
    kind, network, config = guide_kind(component), networks[component], folder.config(component)
    assert kind is not None
    image = preprocessed(control.image, control.preprocessor)
    mode = "L" if network.input(kind.picture).dims[1] == 1 else "RGB"
    unit = folder.vae_factor if kind.in_each_step else downscale_factor(config)
    pixels = to_shares(image, request.size, unit, mode)
    if kind.in_each_step:
        return Guide(kind, control, network, pixels, is_pooled=bool(config.get("global_pool_conditions")))
    shapes: dict[str, tuple[int, ...]] = {
        kind.input(number, one.connection): (1, one.channels, -(-height // one.scale), -(-width // one.scale))
        for number, one in enumerate(given_features(config))
    }
    call = network.prepare({kind.picture: pixels.shape}, shapes)
    call.inputs[kind.picture][...] = pixels
    call.run()
    features = {name: call.outputs[name].astype("float32") * control.strength for name in shapes}
    return Guide(kind, control, network, pixels, features=features)


def is_guide_input(name: str) -> bool:
    """Say whether an input of a UNet is a residual of a guide."""
    return any(kind.is_given(name) for kind in CONTROL_KINDS)


class GuideInputs:
    """Writing of what guides give into the inputs of the UNet's call, for rows that go through it at once.

    Args:
        guides: all that lead.
        negatives: how many of the rows, the first ones, are of negative prompts.
    """

    def __init__(self, guides: Guides, negatives: int) -> None:
        self._image_strength = guides.image_strength
        self._kinds = list(dict.fromkeys(guide.kind for guide in guides.controls))
        running = [guide for guide in guides.controls if guide.kind.in_each_step]
        self._guess = guides.guess or (bool(running) and running[0].is_pooled)  # As `MultiControlNetModel`: the first.
        self._skipped = negatives if self._guess else 0
        self._written: dict[str, tuple[Mapping[str, Buffer], list[Guide]]] = {}

    def prepare(self, unet: Call) -> None:
        """Put what stays the same into a new call."""
        if self._image_strength is not None:
            unet.inputs[IMAGE_STRENGTH].fill(self._image_strength)

    def fill(
        self, unet: Call, sample: Array, moment: Array, leading: Mapping[str, Array],
        guides: Sequence[Guide],
    ) -> None:  # fmt: skip
        """Put the residuals of a step into the inputs of the UNet's call.

        Args:
            unet: its shared inputs are what guides give.
            sample: latents of all rows, as the UNet takes them.
            moment: the timestep.
            leading: what else leads the rows, by the names of inputs.
            guides: those that are active in this step.
        """
        for kind in self._kinds:
            residuals = {name: buffer for name, buffer in unet.shared.items() if kind.is_given(name)}
            mine = [guide for guide in guides if guide.kind is kind]
            if kind.in_each_step:
                self._fill_anew(residuals, sample, moment, leading, mine)
            elif not self._is_written(unet, kind, mine):
                _fill_once(residuals, mine)
                self._written[kind.name] = unet.shared, mine

    def _is_written(self, unet: Call, kind: GuideKind, guides: list[Guide]) -> bool:
        before = self._written.get(kind.name)
        return before is not None and before[0] is unet.shared and before[1] == guides

    def _fill_anew(
        self, residuals: Mapping[str, Buffer], sample: Array, moment: Array,
        leading: Mapping[str, Array], guides: Sequence[Guide],
    ) -> None:  # fmt: skip
        import numpy as np

        rows = slice(self._skipped, len(sample))
        if not guides or rows.start >= rows.stop:
            for buffer in residuals.values():
                put(buffer, 0)
            return
        own = sample[rows], moment, {name: value[rows] for name, value in leading.items()}
        shares = [self._shares(guide, len(residuals)) for guide in guides]
        if len(guides) == 1 and not rows.start and set(shares[0]) == {1} and _fits(guides[0].network, residuals):
            self._run(guides[0], residuals, *own, into=residuals)
            return
        sums = {name: np.zeros(buffer.shape, buffer.dtype) for name, buffer in residuals.items()}
        for guide, each in zip(guides, shares, strict=True):
            call = self._run(guide, residuals, *own)
            for (name, total), share in zip(sums.items(), each, strict=True):
                given = call.outputs[name]
                total[rows] += given if share == 1 else (given.astype(np.float32) * share).astype(given.dtype)
        for name, buffer in residuals.items():
            put(buffer, sums[name])

    def _run(
        self, guide: Guide, residuals: Mapping[str, Buffer], sample: Array, moment: Array,
        leading: Mapping[str, Array], into: Mapping[str, Buffer] = _NOWHERE,
    ) -> Call:  # fmt: skip
        import numpy as np

        network, rows = guide.network, len(sample)
        known = network.session.inputs
        given = {
            "sample": sample, **{name: value for name, value in leading.items() if name in known},
            guide.kind.picture: np.broadcast_to(guide.pixels, (rows, *guide.pixels.shape[1:])),
        }  # fmt: skip
        shapes = {name: value.shape for name, value in given.items()}
        shapes |= {name: (1,) * len(network.input(name).dims) for name in ("timestep", STRENGTH) if name in known}
        sizes = {
            name: (rows, value.shape[1], *((1, 1) if guide.is_pooled else value.shape[2:]))
            for name, value in residuals.items()
        }
        call = network.prepare(shapes, sizes, into=into)
        for name, value in given.items():
            call.inputs[name][...] = value
        timestep = call.inputs["timestep"]
        timestep[...] = moment if timestep.dtype.kind == "f" else moment.round()
        if STRENGTH in call.inputs:
            call.inputs[STRENGTH].fill(guide.control.strength)
        call.run()
        return call

    def _shares(self, guide: Guide, count: int) -> list[float]:
        """Return what each residual is multiplied by here; the middle's is the last."""
        own = 1.0 if STRENGTH in guide.network.session.inputs else guide.control.strength
        if not self._guess or guide.is_pooled:
            return [own] * count
        return [own * _FIRST_SHARE ** (1 - number / (count - 1)) for number in range(count)]


def _fits(network: Network, residuals: Mapping[str, Buffer]) -> bool:
    """Say whether what a network gives has the dtypes that the UNet takes, so that it may be written there."""
    return all(network.output(name).dtype == buffer.dtype.name for name, buffer in residuals.items())


def _fill_once(residuals: Mapping[str, Buffer], guides: Sequence[Guide]) -> None:
    """Put sums of features into all rows, zeros where none lead."""
    for name, buffer in residuals.items():
        given = [guide.features[name] for guide in guides]
        put(buffer, sum(given[1:], given[0]) if given else 0)


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """Tokens of pictures, and of none, each of shape (1, tokens, width)."""

    tokens: Array
    negative: Array
    """For negative prompts."""


def encode_image_prompt(request: ResolvedRequest, folder: PipelineFolder, network: Network) -> ImagePrompt:
    """Return the tokens of a request's pictures; `network` is the image encoder."""
    import numpy as np

    side = folder.config(IMAGE_ENCODER).get("image_size", _SIDE)
    preprocessing = Preprocessing(side, (side, side), _BICUBIC, 1 / 255, (_MEAN, _DEVIATION))
    pixels = [preprocessing.pixels(upright(image)) for image in request.ip_adapter_images]
    names = [name for name in (IMAGE_TOKENS, NO_IMAGE_TOKENS) if name in network.session.outputs]
    found = [_encode(network, one, names) for one in pixels]
    tokens = np.concatenate([one[0] for one in found], axis=1)
    # Where no output says it, no picture is one of zeros, behind the preprocessing.
    nothing = found[0][1] if len(names) > 1 else _encode(network, np.zeros_like(pixels[0]), names)[0]
    return ImagePrompt(tokens, np.tile(nothing, (1, len(pixels), 1)))


def _encode(network: Network, pixels: Array, names: Sequence[str]) -> list[Array]:
    outputs: dict[str, tuple[int, ...]] = {}
    for name in names:
        _, tokens, width = network.output(name).dims
        outputs[name] = (1, int(tokens), int(width))
    call = network.prepare({"pixel_values": pixels.shape}, outputs)
    call.inputs["pixel_values"][...] = pixels
    call.run()
    return [call.outputs[name].copy() for name in names]  # The buffers are used again.
