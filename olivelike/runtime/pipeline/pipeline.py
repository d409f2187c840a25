"""`open_pipeline` and what it opens: prompts in, pictures out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._files import identity_at
from olivelike.errors import SourceError, UsageError
from olivelike.model.components import PREVIEW, SAFETY_CHECKER
from olivelike.model.guides import IMAGE_ENCODER
from olivelike.runtime.pipeline.conditioning import KeptTexts, encode
from olivelike.runtime.pipeline.denoiser_calls import DenoiserNetworks
from olivelike.runtime.pipeline.denoising import DenoisingCallbacks, Step, denoise
from olivelike.runtime.pipeline.guides_in_use import encode_image_prompt, guide_names, guide_networks, prepare_guides
from olivelike.runtime.pipeline.hires import enlarge_by, enlarge_latents, in_turn, second_pass
from olivelike.runtime.pipeline.latents import (
    BatchState,
    Start,
    begin_batch,
    from_latents,
    from_noise,
    from_picture,
    from_picture_with_hole,
    masked_channels,
    seed_of_attempt,
)
from olivelike.runtime.pipeline.masked_area import part_of_picture, with_masked_content
from olivelike.runtime.pipeline.networks import Networks, check_memory_limit, denoiser_name, shallow_name, weight_bytes
from olivelike.runtime.pipeline.pipeline_folder import (
    PipelineFolder,
    check_folder_target,
    open_folder,
    read_folder_target,
    target_settings,
    with_float8,
)
from olivelike.runtime.pipeline.request import RESAMPLED, Batch, Picture, Request, ResolvedRequest, Result, require_safe
from olivelike.runtime.pipeline.resolve_defaults import fitted_into_memory, resolve_defaults
from olivelike.runtime.pipeline.safety import Preprocessing, SafetyCheck, black, read_preprocessing
from olivelike.runtime.pipeline.vae import decode_latents, to_images
from olivelike.runtime.prompts.text_kinds import TextReader, open_text
from olivelike.runtime.sessions.engine_errors import memory_errors
from olivelike.runtime.sessions.session import Network, Session, check_dimensions

if TYPE_CHECKING:
    from threading import Event

    from PIL.Image import Image

    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pictures.upscaling import Upscaler
    from olivelike.runtime.pipeline.networks import Initializers
    from olivelike.runtime.sessions.session_settings import SessionSettings


def open_pipeline(
    path: str | Path,
    settings: SessionSettings | None = None,
    *,
    safety: bool = True,
    initializers: Initializers | None = None,
) -> Pipeline:
    """Open the networks of a folder that each picture begins with; threads open the others beside the drawing.

    Args:
        path: a folder as `olivelike run` writes it.
        settings: provider, device and options of the sessions; by default those of the folder's target, and the CPU
            for folders that name none.
        safety: whether the safety checker looks at each picture, where the folder has one.
        initializers: per component, arrays in place of initializers, as `swap_loras` returns them.

    Raises:
        SourceError: if a part is missing or damaged.
        SessionError: if a network can't be opened here as asked, or was optimised for another provider.
        UsageError: if a size is set for a dimension that no network has, or one network is above the memory limit.
    """
    pipeline = begin_pipeline(Path(path), settings, safety=safety, initializers=initializers)
    pipeline.wait()
    return pipeline


def begin_pipeline(
    path: Path,
    settings: SessionSettings | None = None,
    *,
    safety: bool = True,
    initializers: Initializers | None = None,
    request: Request | None = None,
) -> Pipeline:
    """Return a pipeline as `open_pipeline` does, while threads open its networks still: `wait` for them.

    With a `request` they are those that it begins with, guides and the denoiser that these lead among them.

    Raises what `open_pipeline` raises of what is known before networks are open.
    """
    folder = open_folder(path)
    target = read_folder_target(path)
    if settings is None:
        settings = target_settings(target)
    models = folder.models(safety=safety)
    check_dimensions(settings.dimensions, models.values())
    if target is not None:
        check_folder_target(target.name, settings, models)
        settings = with_float8(target.name, settings)
    return Pipeline(folder, settings, safety=safety, initializers=initializers or {}, request=request)


def _first_networks(folder: PipelineFolder, request: Request | None) -> list[str]:
    """Return the networks that drawing begins with, or that each request of a folder does."""
    encoders, denoiser = [part.component for part in folder.texts], folder.family.denoiser
    if request is None:
        return [*encoders, denoiser]
    shallow = [shallow_name(denoiser)] if request.skips_layers else []
    return [
        *encoders,
        denoiser_name(denoiser, guide_names(request, folder)),
        *guide_networks(request, folder),
        *shallow,
    ]


class Pipeline:
    """A folder's networks, drawn with by one thread at a time; `Networks` says when they are open."""

    def __init__(
        self,
        folder: PipelineFolder,
        settings: SessionSettings,
        *,
        safety: bool,
        initializers: Initializers,
        shared: Mapping[str, Network] | None = None,
        through: Callable[[str, Session], Session] = lambda _, session: session,
        request: Request | None = None,
    ) -> None:
        self.folder = folder
        self._settings = settings
        self._initializers = initializers
        self.checks_safety = safety and folder.is_checked
        """Whether a safety checker looks at each picture."""
        self._texts = KeptTexts()
        self._open_upscaler: tuple[tuple[Path, tuple[int, ...] | None], Upscaler] | None = None
        # What is cheap to know first, before gigabytes are read.
        self._preprocessing = self._read_preprocessing() if self.checks_safety else None
        self._first = _first_networks(folder, request)
        self._last = ["vae_decoder", *([SAFETY_CHECKER] if self.checks_safety else [])]
        for name in (*self._first, *self._last):
            folder.network(name)
        if settings.memory_limit is not None:
            check_memory_limit(folder, settings.memory_limit, safety=safety)
        self._networks = Networks(folder, settings, initializers, shared, through)
        self._networks.begin(self._first)

    def forget_texts(self) -> None:
        """Encode the texts of the next request, though they be those of one before, as for measurements."""
        self._texts.clear()
        if self.folder.family.refines_texts:
            self.denoiser.forget_calls()

    @property
    def denoiser(self) -> Network:
        """The denoiser that is open, or else the plain one."""
        return self._networks.any_denoiser()

    @property
    def provider(self) -> str:
        """The execution provider that networks ask first, or the OpenVINO device."""
        return self._networks.get(next(iter(self._networks), self._first[0])).session.provider

    def wait(self) -> None:
        """Return when the networks are open that each picture begins with, unless they are more than the memory limit.

        Raises `SourceError` or `SessionError` if one can't be opened.
        """
        for part in self.folder.texts:
            open_text(self.folder.path, part)
        if self._settings.memory_limit is None:
            for name in self._first:
                self._networks.get(name)
            self.denoiser.input(self.folder.family.sample)
        self._channels  # noqa: B018  (raises if there is no pipeline for it)

    def lora_ways(self, request: Request) -> tuple[str, ...]:
        """Return how components that have `lora_inputs.onnx` take the LoRAs for a request: a line for each."""
        reasons = self._networks.reasons()
        if guide_names(request, self.folder) and reasons.get(name := self.folder.family.denoiser) == "":
            reasons[name] = "the graph that pictures lead takes none"
        return tuple(
            f"{name}: merged; {reason}" if reason else f"{name}: as factors" for name, reason in reasons.items()
        )

    def with_initializers(self, initializers: Initializers, request: Request | None = None) -> Pipeline:
        """Return a pipeline with other arrays in place of initializers, as `open_pipeline` takes them.

        Networks that neither changes are shared, so that of the two pipelines one draws at a time; others are closed
        here before they are opened there. With a `request`, those are opened that it begins with.
        """
        pipeline = Pipeline(
            self.folder,
            self._settings,
            safety=self.checks_safety,
            initializers=initializers,
            shared=self._networks.hand_over(initializers),
            request=request,
        )
        pipeline.wait()
        return pipeline

    def resolve_defaults(self, request: Request) -> ResolvedRequest:
        """Check a request and fill in what it leaves open: seed, size and strength.

        Raises `UsageError` for a value that can't be had, an unknown scheduler among them, and `SourceError` if the
        folder lacks a network that it needs.
        """
        taken, latents = self._channels
        inpaints = taken != latents
        if inpaints and request.mask is None:
            raise UsageError(
                f"{self.folder.path} is for inpainting: give it an initial picture and a mask, or take another folder"
            )
        if isinstance(request, ResolvedRequest) and request.resolved_for is self.folder:
            return fitted_into_memory(request, self.folder)
        return resolve_defaults(request, self.folder)

    def generate(
        self, request: Request, *, on_step: Callable[[Step], None] | None = None, cancel: Event | None = None
    ) -> Result:
        """Make the pictures of a request.

        Args:
            request: what to make.
            on_step: called after each step, in this thread.
            cancel: looked at before each step.

        Raises:
            UsageError: for a value that can't be had.
            SafetyError: if pictures are flagged in all of the attempts that `retry_unsafe` allows.
            Interrupted: if `cancel` is set.
            SessionError: if a network can't be run, for lack of memory or another reason.
        """
        began = time.monotonic()
        resolved = self.resolve_defaults(request)
        batches = list(self._batches(resolved, on_step, cancel))
        pictures = tuple(picture for batch in batches for picture in batch.pictures)
        flagged = [picture.first_seed for picture in pictures if picture.flagged]
        require_safe(len(pictures), flagged, resolved.retry_unsafe)
        return Result(resolved, batches[0].scheduler, pictures, time.monotonic() - began)

    def batches(
        self, request: Request, *, on_step: Callable[[Step], None] | None = None, cancel: Event | None = None
    ) -> Iterator[Batch]:
        """Make the pictures of a request and hand them out batch by batch, flagged ones too.

        `generate` has the arguments and errors; `require_safe` refuses what it refuses.
        """
        return self._batches(self.resolve_defaults(request), on_step, cancel)

    def latents(self, request: Request, *, on_step: Callable[[Step], None] | None = None) -> Array:
        """Denoise the pictures of a request, in one batch, and decode none.

        Returns latents of shape (pictures, channels, height, width), float32. Raises `UsageError` for a value that
        can't be had, and `SessionError` if a network can't be run, for lack of memory or another reason.
        """
        resolved = with_masked_content(*part_of_picture(self.resolve_defaults(request)))
        callbacks = DenoisingCallbacks(1, 1, 1, on_step, None, self._tiny_decoder)
        with memory_errors(resolved.size, len(resolved.seeded_prompts)):
            return self._latents(resolved.seeded_prompts, resolved.variations, resolved, callbacks)[0]

    def _batches(
        self, request: ResolvedRequest, on_step: Callable[[Step], None] | None, cancel: Event | None
    ) -> Iterator[Batch]:
        drawn, put_back = part_of_picture(request)
        drawn = with_masked_content(drawn, put_back)
        prompts, varied, size = request.seeded_prompts, request.variations, request.batch_size
        firsts = range(0, len(prompts), size)
        for number, first in enumerate(firsts, 1):
            batch = prompts[first : first + size]
            began = time.monotonic()
            pictures: dict[int, Picture] = {}
            for attempt in range(1, request.retry_unsafe + 2):
                left = [place for place in range(len(batch)) if place not in pictures or pictures[place].flagged]
                if not left:
                    break
                callbacks = DenoisingCallbacks(
                    number, len(firsts), attempt, self._opening_the_last(on_step), cancel, self._tiny_decoder
                )
                chosen = [varied[first + place] for place in left] if varied else []
                made, scheduler = self._make([batch[place] for place in left], chosen, drawn, callbacks)
                pictures |= dict(zip(left, made, strict=True))
            ordered = tuple(pictures[place] for place in range(len(batch)))
            if put_back is not None:
                ordered = tuple(
                    picture if picture.flagged else replace(picture, image=put_back.apply(picture.image))
                    for picture in ordered
                )
            if request.upscaler is not None and request.hires is None:
                upscaler = self._upscaler(request.upscaler)
                ordered = tuple(replace(picture, image=upscaler.enlarge(picture.image)) for picture in ordered)
            yield Batch(number, len(firsts), ordered, time.monotonic() - began, scheduler)

    def _make(
        self,
        prompts: Sequence[tuple[str, int]],
        variations: Sequence[int],
        request: ResolvedRequest,
        callbacks: DenoisingCallbacks,
    ) -> tuple[list[Picture], str]:
        """Draw pictures with one batch of the denoiser, and check them; return them and the scheduler's class."""
        with memory_errors(request.size, len(prompts)):
            done, state = self._latents(prompts, variations, request, callbacks)
            pixels = decode_latents(done, self._decoder(), state.folder, singly=request.decode_singly)
        images = to_images(pixels, done, state.folder)
        flags = self._flags(images)
        pictures = [
            Picture(black(image) if flagged else image, prompt, seed, first, flagged, callbacks.attempt, varied)
            for (prompt, first), seed, varied, image, flagged in zip(
                prompts, state.seeds, variations or repeat(None), images, flags, strict=False
            )
        ]
        return pictures, state.schedule.name

    def _latents(
        self,
        prompts: Sequence[tuple[str, int]],
        variations: Sequence[int],
        request: ResolvedRequest,
        callbacks: DenoisingCallbacks,
    ) -> tuple[Array, BatchState]:
        """Denoise one batch; return what is to be decoded, and the state of the batch as it began."""
        seeds = [seed_of_attempt(seed, callbacks.attempt) for _, seed in prompts]
        folder = self.folder.in_tiles() if request.tiled_vae else self.folder
        state = begin_batch(request, folder, seeds, variations)
        texts = [prompt for prompt, _ in prompts]
        start = self._start(state)
        if request.hires is None:
            return self._denoised(texts, state, start, callbacks), state
        larger = second_pass(request, folder)
        second = begin_batch(larger, folder, seeds, variations, begun=True)
        first_callbacks, callbacks = in_turn(callbacks, (state.schedule.calls, second.schedule.calls))
        drawn = self._denoised(texts, state, start, first_callbacks)
        return self._denoised(texts, second, from_latents(second, self._enlarged(drawn, second)), callbacks), state

    def _denoised(
        self, prompts: Sequence[str], state: BatchState, start: Start, callbacks: DenoisingCallbacks
    ) -> Array:
        request, beside = state.request, guide_networks(state.request, self.folder)
        shown = IMAGE_ENCODER in beside
        image = encode_image_prompt(request, self.folder, self._networks.get(IMAGE_ENCODER)) if shown else None
        conditioning = encode(prompts, request, self.folder, self._text_encoders, self._texts, image)
        if self.folder.family.most_references and (request.references or request.mask is not None):
            from olivelike.runtime.pipeline.references import encode_references, reference_pixels

            pictures = reference_pixels(request, self.folder)
            start = replace(start, references=encode_references(pictures, self._networks.get("vae_encoder"), state))
        self._networks.close(part.component for part in self.folder.texts if part.closes and not self._has_room)
        denoiser = self._networks.denoiser(guide_names(request, self.folder))
        nets = {name: self._networks.get(name) for name in beside if name != IMAGE_ENCODER}
        guides = prepare_guides(request, self.folder, nets)
        shallow = self._networks.shallow() if request.skips_layers else None
        networks = DenoiserNetworks(denoiser, shallow, guides)
        return denoise(start, conditioning, state, networks, self._decoder, callbacks)

    def _text_encoders(self) -> list[tuple[TextReader, Network]]:
        return [(open_text(self.folder.path, part), self._networks.get(part.component)) for part in self.folder.texts]

    @cached_property
    def _has_room(self) -> bool:
        """Whether the device has twice the memory that weights take, so that no network need be closed for another."""
        from olivelike.runtime.sessions.devices import total_memory

        memory = total_memory(self._settings.provider, self._settings.asked_device)
        names = (*self._first, *self._last)
        return memory is not None and 2 * sum(weight_bytes(self.folder, name) for name in names) <= memory

    def _enlarged(self, latents: Array, state: BatchState) -> Array:
        """Return latents at the size of the batch that goes on with them."""
        path = state.request.upscaler
        if path is None:
            return enlarge_latents(latents, state)
        networks = self._decoder(), self._networks.get("vae_encoder")
        return enlarge_by(None if str(path) in RESAMPLED else self._upscaler(path), latents, state, networks)

    def _upscaler(self, path: Path) -> Upscaler:
        from olivelike.runtime.pictures.upscaling import Upscaler

        key = path, identity_at(path)
        if self._open_upscaler is None or self._open_upscaler[0] != key:
            self._open_upscaler = key, Upscaler(path, self._settings)
        return self._open_upscaler[1]

    def _start(self, state: BatchState) -> Start:
        if state.request.init_image is None:
            return from_noise(state, self._channels[1])
        taken, latents = self._channels
        encoder = self._networks.get("vae_encoder")
        if state.request.mask is None:
            return from_picture(state, encoder, latents)
        return from_picture_with_hole(state, encoder, latents, taken)

    def _read_preprocessing(self) -> Preprocessing:
        return read_preprocessing(self.folder.path / "feature_extractor" / "preprocessor_config.json")

    def _flags(self, images: Sequence[Image]) -> Sequence[bool | None]:
        if self._preprocessing is None:
            return [None] * len(images)
        return SafetyCheck(self._networks.get(SAFETY_CHECKER), self._preprocessing).flags(images)

    def _opening_the_last(self, on_step: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """Return what opens the networks of a picture's end beside its second step, and raises what that fails with."""

        def told(step: Step) -> None:
            self._networks.begin(self._last)
            self._networks.check()
            if on_step is not None:
                on_step(step)

        return told

    def _decoder(self) -> Network:
        return self._networks.get("vae_decoder")

    def _tiny_decoder(self) -> Network | None:
        """Open what shows steps: the decoder for previews, or that of a tiny VAE."""
        if self.folder.has(PREVIEW):
            return self._networks.get(PREVIEW)
        return self._decoder() if self.folder.has_tiny_vae else None

    @cached_property
    def _channels(self) -> tuple[int, int]:
        """The channels that the denoiser takes, and those of latents.

        Raises `SourceError` if no pipeline is known for them.
        """
        # Other exporters' folders may come without configs.
        latents = self.folder.latent_channels or self._decoder().input("latent_sample").dims[1]
        taken = self.folder.denoiser.get("in_channels") or self.denoiser.input(self.folder.family.sample).dims[1]
        usual = self.folder.family.latents.channels
        latents, taken = (usual if isinstance(number, str) else number for number in (latents, taken))
        if not self.folder.family.takes_masks:
            return latents, latents
        if taken not in (latents, masked_channels(latents)):
            raise SourceError(
                f"{self.folder.path}: its denoiser takes {taken} channels; pipelines are known for {latents}, and for "
                f"{masked_channels(latents)} in the case of inpainting"
            )
        return taken, latents
