"""A pipeline's folder: which parts it has, and what their configs say.

The target that a folder was optimised for: what it sets for sessions, and which providers may run it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from olivelike._files import identity_at
from olivelike._text import did_you_mean_path, quoted
from olivelike._untrusted import JsonView, read_settings
from olivelike.errors import SessionError, SourceError
from olivelike.families import DENOISERS, TEXT_ENCODERS, denoiser_among, family_of_folder
from olivelike.families.denoiser_forms import FORMS, DenoiserForm, GuidanceInput
from olivelike.families.family import Family, LatentColours, TextPart
from olivelike.model.client_layouts import is_package
from olivelike.model.components import (
    INDEX_FILE,
    MODEL_FILE,
    PIPELINE_FILE,
    PREVIEW,
    SAFETY_CHECKER,
    SHALLOW_FILE,
    WEIGHT_FILE_SUFFIXES,
    latent_channels,
    pixels_per_latent,
    wrong_statistics,
)
from olivelike.model.few_steps import ENOUGH, FewSteps
from olivelike.model.guides import CONTROL_KINDS, GUIDE_COMPONENTS, GUIDES, guided_file
from olivelike.model.low_rank_inputs import LORA_INPUTS
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.model.targets import TargetChoice, known_target
from olivelike.runtime.schedulers.scheduler_names import FLOW
from olivelike.runtime.sessions.providers import CPU, Provider, find_provider, require_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings, with_fallback

_DECODER_CHANNELS: Final = (128, 256)
"""Widths of the first two levels of a VAE without a config."""
_FLOAT: Final = 4
_CONFIGS: Final = ("vae_decoder/config.json", "scheduler/scheduler_config.json")
_DEMOS: Final = ("demo", "demo_transformer")
_DEMO_SIDE: Final = 64
_DEMO_PROMPTS: Final = (
    "a red circle on a blue background", "a small yellow star on a black background, on the left",
    "a purple triangle on a green background",
)  # fmt: skip
_CHECKPOINTS: Final = frozenset({".safetensors", ".gguf", ".ckpt", ".pt", ".pth"})
_AGAIN: Final = "make the folder again with `olivelike run` or `olivelike convert`"
_MOST_OF_SIZE: Final = 1 << 16
_SHOWN: Final = 60
_SIZE: Final = f"a whole number from 1 to {_MOST_OF_SIZE}"
_NUMBER: Final = "a number"
_KINDS: Final = {
    "latent_channels": (_SIZE, (0,)),
    "z_dim": (_SIZE, (0,)),
    "dim_mult": (_SIZE, range(1, 17)),
    "sample_size": (_SIZE, (0, 2)),
    "patch_size": (_SIZE, (0, 2)),
    "block_out_channels": (_SIZE, range(1, 17)),
    "decoder_block_out_channels": (_SIZE, range(1, 17)),
    "scaling_factor": (_NUMBER, (0,)),
    "shift_factor": (_NUMBER, (0,)),
}
"""Key of a denoiser's or a VAE's config → kind of its values, and the lengths of a list of them; 0 is one alone."""


@dataclass(frozen=True)
class RecordedFacts:
    """Facts of an output's record that drawing asks for; the rest of the record is large."""

    target: TargetChoice | None = None
    """One that is known here."""
    sha256: str = ""
    """Digest of the checkpoint."""
    few_steps: FewSteps | None = None
    """Steps and guidance that the last distilling LoRA, or the checkpoint, is for."""
    any_size: frozenset[str] = frozenset()
    """Components that take latents of any size."""
    all_fed: frozenset[str] = frozenset()
    """Components whose graph for LoRAs has inputs without values of their own."""
    prompt_guide: str | None = None
    """Name that people call the guide by whose pictures are a prompt."""
    leading_names: Mapping[str, str] = field(default_factory=dict)
    """Component of a network that control pictures name → what people call it."""
    source_name: str = ""
    """What it was made from is called."""
    made_for: str = ""
    """Target and precisions, in words."""
    size: int = 0
    """Bytes of its files."""


def recorded_facts(folder: Path) -> RecordedFacts:
    """Return what a folder's record says, read once as long as it stays; nothing if there is none, or it is damaged.

    Raises `SourceError` if a later version of olivelike made the folder.
    """
    return _read_facts(folder, identity_at(f"{folder}/{RECORD_FILE}"))


@lru_cache(maxsize=4096)
def _read_facts(folder: Path, _identity: tuple[int, ...] | None) -> RecordedFacts:
    """Read them once; a record has the derivations of all weights, and takes milliseconds to read."""
    record = OutputRecord.read(folder)
    if record is None:
        return RecordedFacts()
    merged = ((one, one.weights.get(denoiser_among(one.weights) or "", one.weight)) for one in reversed(record.loras))
    distilled = (one.origin.few_steps for one, weight in merged if weight >= ENOUGH)
    adapter = next(iter(record.source.guide_files.values()), None)
    return RecordedFacts(
        record.target if record.target.plugin or known_target(record.target.name) else None,
        record.source.sha256 or "",
        next((found for found in distilled if found is not None), record.source.few_steps),
        frozenset(
            name
            for name, component in record.components.items()
            if any(one.name == "convert" and one.options.get("any_size") for one in component.passes)
        ),
        frozenset(
            name
            for name, component in record.components.items()
            if any(one.name == LORA_INPUTS and not one.options.get("defaults", True) for one in component.passes)
        ),
        adapter.stem if adapter is not None else None,
        record.source.leading_names,
        record.source.name,
        record.made_for,
        record.size,
    )


@dataclass(frozen=True)
class PipelineFolder:
    """A folder as `olivelike run` writes it, with its configs as they are on disk."""

    path: Path
    index: JsonView
    denoiser: JsonView
    vae: JsonView
    scheduler: JsonView
    vae_tile: int | None = None
    """Latents along a side of the largest picture that the VAE takes whole; `None` for any."""

    @cached_property
    def family(self) -> Family:
        """Facts of its family, which hold where its configs say nothing."""
        return family_of_folder(self.index, [name for name in TEXT_ENCODERS if self.has(name)], self.denoiser)

    @property
    def form(self) -> DenoiserForm:
        """Form in which its denoiser takes texts, latents and guidance."""
        return FORMS[self.family.name]

    @property
    def guidance_input(self) -> GuidanceInput | None:
        """The denoiser's input for the guidance, if it has one, as LCM's do."""
        return self.form.guidance_input(self.denoiser)

    @property
    def takes_guidance(self) -> bool:
        """Whether the guidance is an input of the denoiser, which then needs no negative prompt."""
        return self.guidance_input is not None

    @property
    def takes_negative_prompt(self) -> bool:
        """Whether guidance leads away from a negative prompt."""
        return self.family.takes_negatives and not self.takes_guidance

    @property
    def texts(self) -> tuple[TextPart, ...]:
        """Text encoders in the order in which their outputs are joined; of several, those that are there."""
        parts = self.family.texts
        return parts if len(parts) == 1 else tuple(part for part in parts if self.has(part.component))

    @property
    def latent_channels(self) -> int | None:
        """Channels of what the VAE's graph takes and makes; `None` if its config does not say."""
        return latent_channels(self.vae)

    @property
    def vae_factor(self) -> int:
        """Pixels per latent, along one side."""
        return pixels_per_latent(self.vae)

    @property
    def size_unit(self) -> int:
        """Divisor of each side of a picture: latents are cut into patches, or the graph doubles sizes on its way up."""
        if isinstance(patch := self.denoiser.get("patch_size"), int):
            # Some have squares that are packed for their patches.
            return self.vae_factor * max(patch, self.family.latents.packing)
        levels = len(self.denoiser.get("block_out_channels", self.family.widths))
        unit = 2 ** (levels - 1) if levels else self.family.sizes.unit // self.family.latents.factor
        return int(self.vae_factor * unit)

    @property
    def is_of_flow(self) -> bool:
        """Whether its family was trained for flow matching."""
        return self.family.published.scheduler in FLOW

    def patches(self, size: tuple[int, int]) -> int:
        """Return how many squares of `size_unit` pixels a picture of this width and height has."""
        return (size[0] // self.size_unit) * (size[1] // self.size_unit)

    @property
    def recorded(self) -> RecordedFacts:
        """Facts of its record; none, for folders that others made."""
        return recorded_facts(self.path)

    @cached_property
    def least_unit(self) -> int:
        """Divisor of each side if the denoiser is of `any_size`, which its record says."""
        any_size = self.family.denoiser in self.recorded.any_size
        return int(self.vae_factor if any_size else self.size_unit)

    @cached_property
    def prompt_guide(self) -> str | None:
        """Name that people call the guide by whose pictures are a prompt, if there is one."""
        kind = next((kind for kind in GUIDES.values() if kind.is_prompt and self.has(kind.components[0])), None)
        return None if kind is None else self.recorded.prompt_guide or kind.name

    @cached_property
    def leading(self) -> dict[str, str]:
        """Component of each network that control pictures name, by what people call it, which the record has."""
        there = [name for kind in CONTROL_KINDS for name in kind.components if self.has(name)]
        names = self.recorded.leading_names if there else {}
        return {names.get(component, component): component for component in there}

    @property
    def default_size(self) -> tuple[int, int]:
        """Width and height that the denoiser was trained on, or the VAE, for a denoiser that takes any size."""
        sides = self.denoiser.get("sample_size")
        pixels = None if self.family.widths else self.vae.get("sample_size")
        if sides is None and isinstance(pixels, int):
            return pixels, pixels
        sides = sides or self.family.sizes.default // self.family.latents.factor
        height, width = (sides, sides) if isinstance(sides, int) else sides
        return width * self.vae_factor, height * self.vae_factor

    @property
    def examples(self) -> tuple[str, ...]:
        """Captions of the kind that a shipped demo was trained on (docs/demo.md); none of other pipelines."""
        is_demo = self.recorded.source_name in _DEMOS and max(self.default_size) <= _DEMO_SIDE
        return _DEMO_PROMPTS if is_demo else ()

    @property
    def scaling_factor(self) -> float:
        """Divisor of latents before the VAE decodes them."""
        return float(self.vae.get("scaling_factor") or self.family.latents.scaling)

    @property
    def shift_factor(self) -> float:
        """Number that is subtracted from latents before they are scaled behind the VAE's encoder."""
        shift = self.vae.get("shift_factor")
        return float(self.family.latents.shift if shift is None else shift)

    @property
    def colours(self) -> LatentColours | None:
        """Colours of latents, as far as the VAE's are those of its family: one of another scale has others."""
        latents = self.family.latents
        same = self.has_tiny_vae or self.latents_mean_and_std or math.isclose(self.scaling_factor, latents.scaling)
        return latents.colours if same else None

    def for_previews(self) -> PipelineFolder:
        """Return the folder with what its decoder for previews says of itself as its VAE."""
        return replace(self, vae=self.config(PREVIEW))

    def in_tiles(self) -> PipelineFolder:
        """Return the folder with a VAE that takes at once what the denoiser was trained on, the smaller side of it."""
        return replace(self, vae_tile=min(self.default_size) // self.vae_factor)

    def decoder_memory(self, size: tuple[int, int], pictures: int) -> int:
        """Return the bytes that the VAE's decoder takes at least: two tensors at full size, before its last layers."""
        channels: int = sum((list(self.vae.get("block_out_channels") or _DECODER_CHANNELS) * 2)[:2])
        return pictures * size[0] * size[1] * channels * _FLOAT

    @property
    def has_tiny_vae(self) -> bool:
        """Whether the VAE is an `AutoencoderTiny`, which encodes a picture as latents, not as a distribution."""
        return "encoder_block_out_channels" in self.vae

    @property
    def latents_mean_and_std(self) -> tuple[list[float], list[float]] | None:
        """Per channel, what some SDXL VAEs add after scaling."""
        mean, std = self.vae.get("latents_mean"), self.vae.get("latents_std")
        return (mean, std) if mean is not None and std is not None else None

    def has(self, component: str) -> bool:
        """Say whether there is a network of that name."""
        return (self.path / component / MODEL_FILE).is_file()

    @property
    def inpaints(self) -> bool:
        """Whether the denoiser takes a mask and the masked picture, as far as its config says."""
        taken, made = (self.denoiser.get(key, self.family.latents.channels) for key in ("in_channels", "out_channels"))
        return self.family.takes_masks and isinstance(taken, int) and isinstance(made, int) and taken > made

    @property
    def is_checked(self) -> bool:
        """Whether there is a safety checker, or should be: one that the index names can't just be taken away."""
        entry = self.index.get(SAFETY_CHECKER)
        named = isinstance(entry, list) and all(isinstance(part, str) for part in entry)
        return named or self.has(SAFETY_CHECKER)

    def models(self, *, safety: bool) -> dict[str, Path]:
        """Return the model files of the networks that are there, with or without the safety checker."""
        names = [part.component for part in self.texts]
        names += [self.family.denoiser, "vae_decoder", "vae_encoder", PREVIEW]
        names += [*GUIDE_COMPONENTS, *([SAFETY_CHECKER] if safety else [])]
        return {name: self.model(name) for name in names if self.has(name)}

    def model(self, component: str) -> Path:
        """Return the model file of a component. Raises `SourceError` if it is not there."""
        path = self.path / component / MODEL_FILE
        if not path.is_file():
            raise SourceError(
                f"{self.path}: has no {component}/{MODEL_FILE}, which this needs; add {component} to "
                f"`components:` of its workflow, and {_AGAIN}"
            )
        return path

    def network(self, name: str) -> Path:
        """Return the file of a component, or of another graph of its: `vae_decoder`, `unet/shallow`.

        Raises `SourceError` if a component is not there.
        """
        component, _, graph = name.partition("/")
        return self.path / component / f"{graph}.onnx" if graph else self.model(component)

    @property
    def has_shallow_denoiser(self) -> bool:
        """Whether steps between whole ones have a graph."""
        return (self.path / self.family.denoiser / SHALLOW_FILE).is_file()

    def shallow_denoiser(self) -> Path:
        """Return the file of the denoiser's shallow part. Raises `SourceError` if it is not there."""
        name = self.family.denoiser
        path = self.path / name / SHALLOW_FILE
        if not path.is_file():
            raise SourceError(
                f"{self.path}: has no {name}/{SHALLOW_FILE}, which steps between whole ones run; put `deepcache` "
                f"behind the other steps of `{name}` in its workflow and run it again, or let each step be whole"
            )
        return path

    def led_denoiser(self, leaders: Collection[str]) -> Path:
        """Return the file of the denoiser that some of `GUIDES` lead; without any, the plain one.

        Raises `SourceError` if it is not there.
        """
        if not leaders:
            return self.model(self.family.denoiser)
        path = self.path / self.family.denoiser / guided_file(leaders)
        if not path.is_file():
            asked = [(f"{kind.title}s", f"`{kind.key}:`") for name, kind in GUIDES.items() if name in leaders]
            titles, keys = (" and ".join(words) for words in zip(*asked, strict=True))
            raise SourceError(
                f"{self.path}: has no {path.parent.name}/{path.name}, which {titles} lead; name one under {keys} in "
                "its workflow, and run that again"
            )
        return path

    def config(self, component: str) -> JsonView:
        """Return the `config.json` of a component; empty if there is none."""
        return read_settings(self.path / component / "config.json", _AGAIN, absent={})


def open_folder(path: Path) -> PipelineFolder:
    """Read the index and the configs of a pipeline's folder, again where one of them or the record has changed.

    Raises `SourceError` if it is no such folder, a part that every picture needs is missing, or a file is damaged.
    """
    networks = (f"{component}/{MODEL_FILE}" for component in (*DENOISERS, "vae_decoder", *TEXT_ENCODERS))
    files = (INDEX_FILE, RECORD_FILE, *_CONFIGS, *(f"{name}/config.json" for name in DENOISERS), *networks)
    return _open_folder(path, tuple(identity_at(f"{path}/{name}") for name in files))


@lru_cache(maxsize=4096)
def _open_folder(path: Path, _stamps: tuple[object, ...]) -> PipelineFolder:
    if (wrong := _not_a_pipeline(path)) is not None:
        raise SourceError(wrong)
    index = read_settings(path / INDEX_FILE, _AGAIN)
    name = next((name for name in DENOISERS if (path / name / MODEL_FILE).is_file()), DENOISERS[0])
    files = (f"{name}/config.json", _CONFIGS[0])
    denoiser, vae = (read_settings(path / file, _AGAIN, absent={}) for file in files)
    for file, config in zip(files, (denoiser, vae), strict=True):
        _check_facts(path / file, config)
    scheduler = read_settings(path / _CONFIGS[1], _AGAIN, unbounded=True)
    folder = PipelineFolder(path, index, denoiser, vae, scheduler)
    for component in (folder.family.denoiser, "vae_decoder", *(part.component for part in folder.texts)):
        folder.model(component)
    if not folder.texts:
        raise SourceError(f"{path}: has neither text_encoder nor text_encoder_2; {_AGAIN}")
    return folder


def _check_facts(file: Path, config: JsonView) -> None:
    """Refuse a size or a factor that is none; a key that is absent, or null, says nothing."""
    for key, (kind, lengths) in _KINDS.items():
        value = config.get(key)
        count, values = (len(value), value) if isinstance(value, list) else (0, [value])
        if value is not None and not (count in lengths and all(_is(kind, one) for one in values)):
            several = "" if len(lengths) == 1 else f", or a list of {lengths[-1]} of them at most,"
            shown = json.dumps(value)[:_SHOWN]
            raise SourceError(f"{file}: has `{key}: {shown}`, where {kind}{several} makes sense; {_AGAIN}")
    if wrong := wrong_statistics(config):
        raise SourceError(f"{file}: has {wrong}; {_AGAIN}")


def _is(kind: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return kind == _NUMBER or (isinstance(value, int) and 1 <= value <= _MOST_OF_SIZE)


def _not_a_pipeline(path: Path) -> str | None:
    """Say why nothing can be made with what a path names, and what to do; `None` if it is an optimised folder."""
    if path.is_file():
        if path.suffix.lower() in _CHECKPOINTS:
            return f"{path}: is a checkpoint, not an optimised folder; {_convert_first(path, path.stem)}"
        return f"{path}: is a file; name a folder that `olivelike run` or `olivelike convert` wrote"
    if not path.is_dir():
        places = dict.fromkeys((path.parent, path.parent / "models"))
        pipelines = (one.parent for place in places for one in place.glob(f"*/{INDEX_FILE}"))
        hint = did_you_mean_path(path, "name one that `olivelike run` wrote", pipelines)
        return f"{path}: no such folder; {hint}"
    if (path / PIPELINE_FILE).is_file():
        return (
            f"{path}: is a pipeline in one file, {PIPELINE_FILE}, which draws in ONNX Runtime by itself: "
            "docs/one-file.md has programs; this command takes an output of the layout diffusers"
        )
    if not (path / INDEX_FILE).is_file():
        record = OutputRecord.read(path)
        if record is not None and is_package(record.layout):
            return (
                f"{path}: is laid out for {record.layout}, which docs/packages.md is about; this command takes an "
                "output of the layout diffusers"
            )
        inside = sorted(one.parent for one in path.glob(f"*/{INDEX_FILE}"))
        hint = f"did you mean {inside[0]}?" if inside else "name one that `olivelike run` wrote"
        return f"{path}: has no {INDEX_FILE}, so it is no pipeline; {hint}"
    there = [path / name for name in DENOISERS if (path / name).is_dir()]
    if not any((one / MODEL_FILE).is_file() for one in there) and any(
        file.suffix in WEIGHT_FILE_SUFFIXES for one in there for file in one.iterdir()
    ):
        advice = _convert_first(path, path.resolve().name)
        return f"{path}: is a checkpoint of diffusers, not an optimised folder; {advice}"
    return None


def _convert_first(path: Path, name: str) -> str:
    source, made = quoted(path), quoted(f"models/{name}")
    return f"optimise it first: olivelike convert {source} -t cpu -o {made}, then olivelike generate {made} PROMPT"


def read_folder_target(folder: Path) -> TargetChoice | None:
    """Return the target of an output folder; `None` if nothing says which, as in folders that others made.

    Raises `SourceError` if a later version of olivelike made the folder.
    """
    return recorded_facts(folder).target


def target_settings(target: TargetChoice | None) -> SessionSettings:
    """Return the settings that a target asks for; what TensorRT leaves goes to CUDA."""
    if target is None:
        return SessionSettings()
    return SessionSettings(
        with_fallback([ProviderChoice(_own_provider(target), _texts(target.options))]),
        device=target.device_id or None,
        session_config=_entries(target.session_options),
        run_config=_entries(target.run_options),
    )


def _own_provider(target: TargetChoice) -> Provider:
    """Return a target's provider; where its plugin is not installed, one that says so as it is opened."""
    if target.plugin and known_target(target.name) is None:
        return Provider(target.name, target.plugin.partition(" ")[0])
    return find_provider(target.name)


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items()}


def _entries(options: Mapping[str, object]) -> dict[str, str]:
    """Return configuration entries, where ONNX Runtime has 1 and 0 for true and false."""
    return _texts({key: int(value) if isinstance(value, bool) else value for key, value in options.items()})


def check_folder(path: Path, settings: SessionSettings) -> None:
    """Check that a folder's networks can be opened as asked, before anything heavy is imported.

    Raises `SourceError` if it is no pipeline's folder, and `SessionError` if a provider is not installed, or nothing
    runs operators of a network.
    """
    models = open_folder(path).models(safety=False)
    target = read_folder_target(path)
    for choice in settings.providers:
        try:
            require_provider(choice.provider)
        except SessionError as error:
            if target is None or choice.provider != _own_provider(target):
                raise
            raise SessionError(f"{error}; to use the folder on this machine, {_other_way(models)}") from error
    if target is not None:
        check_folder_target(target.name, settings, models)


def check_folder_target(target: str, settings: SessionSettings, models: Mapping[str, Path]) -> None:
    """Check that the asked providers run networks that were optimised for a target.

    Another provider than the target's may do: what counts is whether every operator has a kernel on one of the asked
    providers, or on the CPU. Files are read, without weights, only if the provider is not the target's. `models` are
    ONNX files by the name of their component. Raises `SessionError` if an operator has no kernel; the message says
    which, and what to do.
    """
    if settings.provider.target == target or settings.provider == _known_provider(target):
        return
    from olivelike.runtime.sessions.load_failure import operators_without_kernel

    left = {component: operators_without_kernel(path, settings) for component, path in models.items()}
    if refused := "; ".join(f"{component}: {operators}" for component, operators in left.items() if operators):
        name = settings.provider.short_name
        raise SessionError(
            f"the folder was optimised for {target}, and on {name} nothing runs operators of it ({refused}); "
            f"optimise it for {name} ({_remedy(models, name)}), or run it with --provider {target}"
        )


def _known_provider(target: str) -> Provider | None:
    known = known_target(target)
    return None if known is None else find_provider(known.name)


def with_float8(target: str, settings: SessionSettings) -> SessionSettings:
    """Return settings with which the CPU runs a folder of a target: float8 as it is written.

    ONNX Runtime would fuse what is rounded to it into operators that take none.
    """
    on_cpu = settings.provider.name == CPU
    known = known_target(target) if on_cpu else None
    return settings.unfused() if on_cpu and (known is None or known.rounded == "fp8") else settings


def _other_way(models: Mapping[str, Path]) -> str:
    """Return how the CPU runs a folder whose target is not installed: as it is, or optimised anew."""
    from olivelike.runtime.sessions.load_failure import operators_without_kernel

    cpu = SessionSettings((ProviderChoice(find_provider("cpu")),))
    if any(operators_without_kernel(path, cpu) for path in models.values()):
        return f"optimise it for cpu ({_remedy(models, 'cpu')})"
    return "run it with --provider cpu"


def _remedy(models: Mapping[str, Path], target: str) -> str:
    """Return the command that makes a folder for another target: that of `convert` if it may have made this one.

    A workflow of `convert` is named after its output; one in a file may be, too.
    """
    by_workflow = f"olivelike run WORKFLOW --set target={target}"
    folder = next(path.parent.parent for path in models.values())
    record = OutputRecord.read(folder)
    if record is None or record.workflow != folder.resolve().name:
        return by_workflow
    source = record.source.found_from(folder) or record.source.name
    converted = f"olivelike convert {quoted(source)} -t {target} -o {quoted(f'{folder}_{target}')}"
    return f"{converted}, or if a workflow file made it: {by_workflow}"
