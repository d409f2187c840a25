"""The request of `olivelike convert`, and the workflow that does it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import hold_paths
from olivelike._text import did_you_mean
from olivelike.engine.preparation import source_spec
from olivelike.engine.prepared import DEFAULTS
from olivelike.engine.run import run
from olivelike.errors import SourceError, UsageError
from olivelike.families import (
    COMPONENTS,
    COMPUTED,
    DENOISERS,
    LORA_COMPONENTS,
    TEXT_ENCODERS,
    denoiser_among,
    family_of_folder,
)
from olivelike.model.components import HALF_PASSES, PREVIEW, QUANTISING_PASSES, VAES
from olivelike.model.guides import GUIDES, IMAGE_ENCODER, GuideKind
from olivelike.model.targets import Target, find_target
from olivelike.runtime.sessions.devices import processor
from olivelike.sources import Checkpoint, available_components, open_source
from olivelike.sources.fit import lacking
from olivelike.workflow.long_form import parse_lora, parse_parts, require_names, text_guides, text_source
from olivelike.workflow.places import Place, absolute, file_ref
from olivelike.workflow.scaffold import workflow_text
from olivelike.workflow.workflow_file import Vae

if TYPE_CHECKING:
    from olivelike.engine.execute.events import Listener
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import ReportWriter
    from olivelike.engine.run_result import RunResult
    from olivelike.families.family import Family
    from olivelike.sources import PipelineSource, SourceSpec
    from olivelike.workflow import Guide

    Step = str | dict[str, dict[str, bool | list[str]]]
    """A pass by name, or with options."""

_CPUS: Final = ("cpu", "openvino")
"""Targets that most often mean a CPU."""
_MATRIX_UNITS: Final = "amx_int8"
"""As Linux names them among the features of a processor."""
_IN_BLOCKS: Final = frozenset({"weights8", "weights4"})
_IN_FLOATS: Final = frozenset({*VAES, PREVIEW})
"""Small networks that a picture's last bits come of: their weights have few bits in workflows alone."""
_LARGE: Final = 400_000_000
"""Numbers of a network's weights that take 1.6 GB as floats: T5-XXL, Qwen3-4B, OpenCLIP's bigG, the denoisers."""


@dataclass(frozen=True)
class ConvertRequest:
    """A user's words in place of a workflow; files are relative to the current folder."""

    source: str
    target: str
    output: Path
    loras: tuple[str, ...] = ()
    vae: str | None = None
    embeddings: tuple[str, ...] = ()
    precision: str | None = None
    """`fp32`, `fp16` or `bf16`; `w8` and `w4` have weights in 8 and 4 bits but for the VAE's, and the rest in the
    target's precision; `int8` and `fp8` compute the denoiser in 8 bits. By default the target's, with weights of 8 bits
    in large networks of pipelines whose denoiser is a transformer, on CPUs."""
    prediction: str | None = None
    layout: str | None = None
    preview: str | None = None
    guides: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What leads it beside the text, by keys of a workflow."""
    image_encoder: str | None = None
    variant: str | None = None
    """Name of one of several weight files of a folder or repository, such as `fp16`."""
    calibration: str | None = None
    """A text file with a prompt in each line, that `int8` and `fp8` draw."""
    scheduler_model: bool = False
    """Also write schedules as a graph."""
    parts: tuple[str, ...] = ()
    """`NAME=PATH` of networks, and of tokenizers, beside the file of a denoiser, such as `vae=ae.safetensors`."""
    distilled: bool | None = None
    """Whether a single file is of a distilled network or of its base, where its name does not tell."""
    license: str | None = None
    """Name of the source's licence, where none of its files says it."""

    def __post_init__(self) -> None:
        """Take text for paths too."""
        hold_paths(self, "output")

    def command(self, *, allow_pickle: bool = False) -> str:
        """Return the command line that says it."""
        words = [self.source, "--target", self.target, "--output", str(self.output)]
        words += [word for lora in self.loras for word in ("--lora", lora)]
        words += [word for embedding in self.embeddings for word in ("--embedding", embedding)]
        words += [word for part in self.parts for word in ("--part", part)]
        for kind in GUIDES.values():
            words += [word for guide in self.guides.get(kind.key, ()) for word in (kind.option, guide)]
        for option in (
            "vae",
            "preview",
            "precision",
            "prediction",
            "variant",
            "license",
            "layout",
            "image_encoder",
            "calibration",
        ):
            if (value := getattr(self, option)) is not None:
                words += [f"--{option.replace('_', '-')}", str(value)]
        switches = {"--scheduler-model": self.scheduler_model, "--allow-pickle": allow_pickle}
        switches |= {"--distilled": self.distilled is True, "--base": self.distilled is False}
        return shlex.join(["olivelike", "convert", *words, *(name for name, on in switches.items() if on)])


def convert(
    request: ConvertRequest,
    options: Options = DEFAULTS,
    listener: Listener = lambda _: None,
    report: ReportWriter | None = None,
) -> RunResult:
    """Optimise one checkpoint for a target, without a workflow file.

    Args:
        request: What to convert, for what, and where to write it.
        options: Where the store is and what the run may use; what selects nodes does not count.
        listener: Receives every event.
        report: As for `run`.

    Raises:
        UsageError: for an unknown target, or nothing to do.
        OlivelikeError: as `run`.
    """
    place, chosen = draft(request, options)
    return run(place, chosen, listener, report)


def draft(request: ConvertRequest, options: Options = DEFAULTS) -> tuple[Place, Options]:
    """Return the workflow that `convert` runs, with its text, and the options that it runs with.

    Raises `UsageError` for an unknown target, or nothing to do, and `SourceError` for a source that is missing or
    damaged.
    """
    here = Path.cwd()
    command = request.command(allow_pickle=options.allow_pickle)
    chosen = replace(options, command=command, fail_fast=not options.keep_going)
    return Place(here / "convert.yaml", here, draft_workflow(request, chosen, here)), chosen


def networks_of(
    source: str, components: Sequence[str] | None = None, *, allow_pickle: bool = False
) -> list[Checkpoint]:
    """Return the networks of a pipeline that `convert` can trace, from configs and headers alone.

    Raises `UsageError` for a component that the source does not have, or none at all, and `SourceError` for a source
    that is missing or damaged.

    Args:
        source: A folder, a checkpoint in one file, or a hub id.
        components: Such as `unet`; by default all.
        allow_pickle: Read pickled files too.
    """
    spec = source_spec(text_source(source, Path.cwd()), None)
    available = available_components(spec, allow_pickle=allow_pickle)
    names = [name for name in COMPONENTS if name in available]
    for name in components or ():
        if name not in names:
            raise UsageError(f"{source} has no component {name!r}; {did_you_mean(name, names, 'components')}")
    opened = open_source(spec, list(components or names), allow_pickle=allow_pickle)
    found = [checkpoint for checkpoint in opened.checkpoints.values() if checkpoint.graph is None]
    if not found:
        raise UsageError(f"{source} has graphs of its own, so nothing of it is traced; name a checkpoint")
    return found


def draft_workflow(request: ConvertRequest, options: Options, folder: Path) -> str:
    """Return the workflow that does what is asked, as the text of a file.

    Raises `UsageError` for an unknown target, or nothing to do, and `SourceError` for a source that is missing or
    damaged. Its paths are relative to `folder`, the project's.
    """
    here = Path.cwd()
    target = find_target(request.target)
    require_names(
        {
            "SOURCE": [request.source], "--vae": [request.vae], "--preview": [request.preview],
            "--embedding": request.embeddings,
        }
    )  # fmt: skip
    source = text_source(request.source, here)
    vae = text_source(request.vae, here) if request.vae else None
    parts = {**source.parts, **parse_parts(request.parts, here)}
    if parts and vae is not None and vae.path is not None and vae.path.is_file():
        parts, vae = {"vae": vae.path, **parts}, None
    source = source.model_copy(update={"variant": request.variant, **parts})
    preview = text_source(request.preview, here) if request.preview else None
    guides = text_guides(request.guides, request.image_encoder, here)
    spec = source_spec(source, vae, preview, guides)
    available = available_components(spec, allow_pickle=options.allow_pickle)
    components = [name for name in COMPONENTS if name in available]
    opened = open_source(spec, components, allow_pickle=options.allow_pickle)
    _require_parts(request, spec, opened)
    quantising = QUANTISING_PASSES.get(request.precision or "")
    named = None if quantising else request.precision
    precision = named or target.precision
    quantised = COMPUTED.get(request.precision or "", components)
    checkpoints = [opened.checkpoint(name) for name in components]
    family = _family(opened)
    compact = request.precision is None and target.name in _CPUS and family.compact_on_cpu

    def rounding(one: Checkpoint) -> Step | None:
        if one.component not in quantised or one.component in _IN_FLOATS:
            return None
        name = quantising or _compact(one, compact)
        whole = name in _IN_BLOCKS and one.component == family.denoiser and family.compact_on_cpu
        if not (name and whole and target.name == "cpu"):
            return name
        rounded: dict[str, bool | list[str]] = {"int8_compute": True}
        if name == QUANTISING_PASSES["w8"] and _MATRIX_UNITS in processor():
            rounded["int8_rows"] = True
            if name in family.blocks and (further := family.blocks[name].exact_by_rows):
                rounded["exact_blocks"] = [*family.blocks[name].exact, *further]
        return {name: rounded}

    chains = {one.component: _chain(one, target, precision, rounding(one)) for one in checkpoints}

    def place(path: Path | None, text: str) -> str:
        return text if path is None else _relative(path, folder)

    calibration = None
    if request.calibration is not None:
        if request.precision not in COMPUTED:
            raise UsageError("--calibration is for --precision int8 and fp8; name one of them, or drop it")
        calibration = {"prompts": _relative(absolute(request.calibration, here), folder)}
    said = place(source.path, request.source)
    said_of_it = ("prediction", "distilled", "variant", "license")
    more = {key: value for key in said_of_it if (value := getattr(request, key)) is not None}
    more |= {name: _relative(path, folder) for name, path in parts.items()}
    loras = [parse_lora(text, here) for text in request.loras]
    embeddings = [file_ref(text, here) for text in request.embeddings]
    return workflow_text(
        {
            "name": request.output.name or "converted",
            "source": {"path" if source.path else "hub": said, **more} if more else said,
            "vae": place(vae.path, request.vae) if vae and request.vae else None,
            "preview": place(preview.path, request.preview) if preview and request.preview else None,
            **{kind.key: _written_guides(kind, guides.get(kind.key, ()), place) for kind in GUIDES.values()},
            "loras": [{"file": place(lora.file.path, str(lora.file)), "weight": lora.weight} for lora in loras],
            "embeddings": [place(file.path, str(file)) for file in embeddings],
            "target": {"provider": target.name, "precision": named} if named else target.name,
            "calibration": calibration,
            "components": chains,
            "layout": request.layout,
            "scheduler_model": request.scheduler_model or None,
            "output": _relative(absolute(request.output, here), folder),
        }
    )


def _require_parts(request: ConvertRequest, spec: SourceSpec, source: PipelineSource) -> None:
    """Refuse a transformer in a file without what draws a picture with it, which stands in files of their own."""
    family = _family(source)
    if not spec.is_file or family.published.flow is None or not (absent := lacking(source)):
        return
    classes = {text.component: text.class_name for text in family.texts} | {"vae": family.published.vae_class}
    listed = ", ".join(f"--part {name}=FILE (of {classes[name]})" for name in absent)
    raise SourceError(
        f"{request.source}: this is the {family.denoiser} of {family.title}, and {len(absent)} of the files that make "
        f"pictures with it {'is' if len(absent) == 1 else 'are'} missing; name {listed}"
    )


def _written_guides(
    kind: GuideKind, guides: Sequence[Guide], place: Callable[[Path | None, str], str]
) -> str | dict[str, str] | list[str | dict[str, str]] | None:
    """Return what a workflow says of the guides of a kind; `place` writes a path, or the text in its absence."""

    def written(guide: Guide) -> str | dict[str, str]:
        if isinstance(guide, Vae):
            return place(guide.path, guide.hub or "")
        file, encoder = place(guide.file.path, str(guide.file)), guide.image_encoder
        return file if encoder is None else {"file": file, IMAGE_ENCODER: place(encoder.path, encoder.hub or "")}

    found = [written(guide) for guide in guides]
    return found if kind.is_list else next(iter(found), None)


def save_workflow(request: ConvertRequest, options: Options, path: Path) -> None:
    """Write the workflow that does what is asked to a new file.

    Raises `UsageError` if the file is there already, or can't be written.
    """
    path = absolute(path, Path.cwd())
    project = path.parent.parent if path.parent.name == "workflows" else path.parent
    text = draft_workflow(request, options, project)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"--save-workflow {path}: the file is there already; name another one") from None
    except OSError as error:
        raise UsageError(f"--save-workflow {path}: can't be written: {error.strerror}") from error


def _family(source: PipelineSource) -> Family:
    """Return the family of a source, by what its index and its denoiser say."""
    configs = {name: one.config for name, one in source.checkpoints.items()}
    denoiser = denoiser_among(configs)
    return family_of_folder(source.index, configs, configs[denoiser] if denoiser else {})


def _compact(checkpoint: Checkpoint, compact: bool) -> str | None:
    """Return the pass that makes a network small that is large as floats."""
    return QUANTISING_PASSES["w8"] if compact and checkpoint.elements >= _LARGE else None


def _chain(checkpoint: Checkpoint, target: Target, precision: str, quantising: Step | None) -> list[Step]:
    if precision == "bf16" and target.bfloat16_operators and checkpoint.component not in (*TEXT_ENCODERS, *DENOISERS):
        precision = "fp16"  # Convolutions and norms of images are not among them.
    narrower: list[Step] = [HALF_PASSES[precision]] if precision in HALF_PASSES else []
    narrower += [quantising] if quantising else []
    if checkpoint.graph is not None:
        return ["fuse", *narrower]
    merge = ["merge_lora"] if checkpoint.component in LORA_COMPONENTS else []
    return [*merge, "convert", "fuse", *narrower]


def _relative(path: Path, folder: Path) -> str:
    """Return a path as a workflow of a project says it: relative if it lies in the project, with forward slashes."""
    try:
        return f"./{path.relative_to(folder).as_posix()}"
    except ValueError:
        return str(path)
