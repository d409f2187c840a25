"""`verify_folder`: an output folder, its networks and its pictures, compared with the checkpoint behind it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import did_you_mean
from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.families import DENOISERS, TEXT_ENCODERS, TEXT_TO_PICTURE, TOKENIZERS
from olivelike.measure.report.page import VERIFICATION_FILE
from olivelike.measure.verify.folder_original import Originals, merged_loras, spec_of
from olivelike.model.client_layouts import is_package, several_targets
from olivelike.model.components import MODEL_FILE, PIPELINE, PIPELINE_FILE, PREVIEW, SHALLOW_FILE
from olivelike.model.guides import GUIDES, guided_file
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.reading import to_json
from olivelike.workflow.long_form import require_names, text_guides

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from olivelike._untrusted import Json, JsonView
    from olivelike.measure.report.recorded_runs import RecordedRun
    from olivelike.measure.verify.original import Verification
    from olivelike.measure.verify.picture_comparison import Likeness
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]
    Read = Callable[[str], Array]

PROMPT: Final = "a photo of an astronaut riding a horse"
"""Prompt of compared pictures by default."""
_SIDES = ("original", "optimised")


@dataclass(frozen=True)
class ComponentVerdict:
    """How far one network is from its original."""

    name: str
    verification: Verification
    limit: float
    """Largest relative error that was asked for."""

    @property
    def passed(self) -> bool:
        """Whether it is near enough."""
        return self.verification.within(self.limit)

    def to_json(self) -> Json:
        """Return figures, limit and verdict as JSON values."""
        return {**self.verification.to_json(), "limit": self.limit, "passed": self.passed}


@dataclass(frozen=True)
class FolderVerification:
    """How far an output folder is from the checkpoint that it was made of."""

    folder: Path
    against: JsonView
    """Origin of the checkpoint."""
    components: tuple[ComponentVerdict, ...]
    pictures: tuple[Likeness, ...]
    pictures_skipped: str | None
    """Why no pictures were compared, where they can't be made here."""
    failures: tuple[str, ...]
    """Sentences, one for each part that is further off than asked for."""
    not_compared: tuple[str, ...] = ()
    """Networks beside the source's, of which nothing said what they were made of."""

    @property
    def passed(self) -> bool:
        """Whether everything is near enough."""
        return not self.failures

    def to_json(self) -> Json:
        """Return figures and verdicts as JSON values."""
        return {
            "folder": str(self.folder),
            "against": dict(self.against),
            "components": {verdict.name: verdict.to_json() for verdict in self.components},
            "pictures": [one.to_json() for one in self.pictures],
            **({"pictures_skipped": self.pictures_skipped} if self.pictures_skipped else {}),
            **({"not_compared": list(self.not_compared)} if self.not_compared else {}),
            "passed": self.passed,
        }

    def save_pictures(self, folder: Path) -> None:
        """Write the pictures to a folder, `SEED-original.png` beside `SEED-optimised.png`.

        Raises `UsageError` if they can't be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for one in self.pictures:
                for side in _SIDES:
                    getattr(one, side).save(folder / _file(one, side))
        except OSError as error:
            raise UsageError(f"{folder}: the pictures can't be written: {error.strerror}") from error

    def write_card(self) -> Path:
        """Write the figures into the folder's `README.md`, its model card, and return its path.

        What people wrote in a card stays. Raises `UsageError` if it can't be written, or is not from olivelike.
        """
        from olivelike.measure.verify.model_card import write_card

        return write_card(self)

    def add_to_report(self, run: RecordedRun) -> Path:
        """Put figures and pictures into the report of a run, and return its path.

        Raises `UsageError` if it can't be written.
        """
        self.save_pictures(run.folder)
        shown = [{**one.to_json(), **{side: _file(one, side) for side in _SIDES}} for one in self.pictures]
        return run.add_to_report(VERIFICATION_FILE, {**self.to_json(), "pictures": shown})


def verify_folder(
    folder: str | Path,
    *,
    against: str | None = None,
    vae: str | None = None,
    guides: Mapping[str, Sequence[str]] = MappingProxyType({}),
    image_encoder: str | None = None,
    loras: Sequence[str] = (),
    components: Sequence[str] = (),
    samples: int = 2,
    seed: int = 0,
    threshold: float | None = None,
    pictures: int | None = None,
    prompt: str = PROMPT,
    steps: int = 20,
    min_psnr: float | None = None,
    min_ssim: float | None = None,
    providers: Sequence[str] = (),
    save: str | Path | None = None,
    allow_pickle: bool = False,
    found: Callable[[ComponentVerdict], None] = lambda _: None,
    begun: Callable[[str], None] = lambda _: None,
) -> FolderVerification:
    """Compare the networks and pictures of an output folder with torch's.

    Networks run on the CPU, whatever the target; their weights are read one at a time.

    Args:
        folder: What `run` wrote.
        against: What it was made of: a folder, a file or a hub id; by default what the folder names, if it is near.
        vae: The other VAE that was put into it.
        guides: Those that were put into it, in that order, by their keys in a workflow; others are not compared.
        image_encoder: That of an IP-Adapter, where it is not near its file.
        loras: Those that were merged into it, as `FILE` or `FILE:WEIGHT`.
        components: Networks to compare; by default all.
        samples: Random inputs for each network, of different sizes.
        seed: Of the first input and picture.
        threshold: Largest relative error; by default 1e-4; 2e-2 in float16, 0.16 in bfloat16.
        pictures: How many to compare; by default 1, or none where `components` are named.
        prompt: What the pictures show.
        steps: Of each picture.
        min_psnr: Least peak signal-to-noise ratio of a picture, in dB; by default any will do.
        min_ssim: Least structural similarity of a picture; likewise.
        providers: What the folder's pictures run on, as `NAME` or `NAME:KEY=VALUE,...`; by default its target.
        save: Where to write the pictures, side by side.
        allow_pickle: Whether files that are pickles may be read.
        found: Is told of each network as soon as it is compared.
        begun: Is told what is compared next: a network's name, or `pictures`.

    Raises:
        UsageError: for a number that can't be had, an unknown network, or a checkpoint or VAE that has to be named.
        SourceError: if a file is missing or damaged.
        SessionError: if pictures are asked for that can't be made here.
    """
    folder = Path(folder)
    save = None if save is None else Path(save)
    for name, value in (("--threshold", threshold), ("--min-psnr", min_psnr), ("--min-ssim", min_ssim)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} {value}: use a number above 0")
    record = OutputRecord.require(folder)
    if (several := several_targets(record.layout)) is not None:
        raise SourceError(f"{folder}: {several}")
    # Where a tiny VAE for previews comes from is not recorded; the pass `verify` compares it as it is made.
    beside = text_guides(guides, image_encoder, Path.cwd())
    unnamed = {
        PREVIEW,
        *(name for kind in GUIDES.values() for name in kind.components[len(beside.get(kind.key, ())) :]),
    }
    present = [name for name in networks_of(record) if name not in unnamed]
    left_out = () if components else tuple(name for name in networks_of(record) if name in unnamed - {PREVIEW})
    for name in components:
        if name not in present:
            hint = did_you_mean(name, present, "networks")
            raise UsageError(f"--component {name}: the folder has no such network; {hint}")
    settings = _settings(folder, providers)
    require_names({"--against": [against], "--vae": [vae]})
    specs = {key: tuple(one.spec() for one in some) for key, some in beside.items()}
    spec = replace(spec_of(folder, record, against, vae), guides=specs)
    limited = min_psnr is not None or min_ssim is not None
    needed = bool(pictures or providers or limited)
    reason = None if needed or pictures == 0 or components else _lack(folder, record)
    count = pictures if pictures is not None else 0 if components or reason else 1
    if limited and not count:
        raise UsageError("--min-psnr and --min-ssim: no picture is compared; say how many with --pictures")
    if count:
        reason = _absence(settings, needed=needed)
    if save is not None:
        _require_writable(save)
    # Torch comes with these: what can't be done is told before.
    from olivelike.measure.verify.original import LIMITS
    from olivelike.measure.verify.picture_comparison import compare_pictures

    chosen = [name for name in present if not components or name in components]
    wanted = [name for name in present if name in chosen or (count and name in TEXT_TO_PICTURE)]
    originals = Originals(spec, wanted, merged_loras(record, loras, allow_pickle), allow_pickle=allow_pickle)
    verdicts = []
    for name in chosen:
        begun(name)
        figures = verify_component(folder, record, name, originals, samples=samples, seed=seed)
        verdict = ComponentVerdict(name, figures, LIMITS[figures.precision] if threshold is None else threshold)
        found(verdict)
        verdicts.append(verdict)
    alike: list[Likeness] = []
    if count and reason is None:
        begun("pictures")
        alike = compare_pictures(folder, originals, [prompt] * count, seed=seed, steps=steps, settings=settings)
    failures = [f"{one.name} is further from torch than {one.limit:.0e}" for one in verdicts if not one.passed]
    failures += [
        f"the picture of seed {one.seed} is less like the original than asked for"
        for one in alike
        if (min_psnr is not None and one.psnr < min_psnr) or (min_ssim is not None and one.ssim < min_ssim)
    ]
    origin = to_json(originals.source.origin)
    result = FolderVerification(folder, origin, tuple(verdicts), tuple(alike), reason, tuple(failures), left_out)
    if save is not None:
        result.save_pictures(save)
    return result


def _settings(folder: Path, providers: Sequence[str]) -> SessionSettings:
    """Return what pictures of the folder run on: its own target, or what was asked for."""
    from olivelike.runtime.pipeline.pipeline_folder import read_folder_target, target_settings
    from olivelike.runtime.sessions.providers import require_provider
    from olivelike.runtime.sessions.session_settings import choose_providers

    chosen = choose_providers(target_settings(read_folder_target(folder)), providers)
    for choice in chosen.providers if providers else ():
        require_provider(choice.provider)
    return chosen


def _lack(folder: Path, record: OutputRecord) -> str | None:
    """Return which network the folder lacks for pictures, if it is made for something else."""
    if is_package(record.layout):
        return f"the folder is laid out for {record.layout}, whose reader draws"
    if (folder / PIPELINE_FILE).is_file():
        return f"{PIPELINE_FILE} draws by itself, with other noise"
    for names in (TEXT_ENCODERS, DENOISERS, ("vae_decoder",)):
        if not any((folder / name / MODEL_FILE).is_file() for name in names):
            return f"the folder has no {names[0]}/{MODEL_FILE}"
    return None


def _absence(settings: SessionSettings, *, needed: bool) -> str | None:
    """Return why pictures can't be made here, if a provider is absent; that is an error if they are needed."""
    from olivelike.runtime.sessions.devices import require_nvidia
    from olivelike.runtime.sessions.providers import require_provider

    try:
        for choice in settings.providers:
            require_provider(choice.provider)
        require_nvidia(settings.provider)
    except SessionError as error:
        if needed:
            raise
        return str(error)
    return None


def _require_writable(folder: Path) -> None:
    """Check, before minutes are spent, that pictures can be written to a folder, or that it can be made."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"--save: {there} is no folder, or may not be written")


def _file(one: Likeness, side: str) -> str:
    return f"{one.seed}-{side}.png"


def networks_of(record: OutputRecord) -> list[str]:
    """Return the networks of a folder; tokenizers are none."""
    return [component for component in record.components if component not in (*TOKENIZERS, PIPELINE)]


def verify_component(
    folder: Path, record: OutputRecord, component: str, originals: Originals, *, samples: int = 2, seed: int = 0
) -> Verification:
    """Compare a network, as it is on disk, with its original; weights are read one at a time.

    Raises `SourceError` if a file of either is missing or damaged, and `PassError` if the graph has an operator that
    can't be run on its own.

    Args:
        originals: What the folder was made of.
        samples: Number of random inputs, of different sizes.
        seed: Of the first input.
    """
    import onnx
    import onnx_ir as ir

    from olivelike.engine.output.initializers import Initializers
    from olivelike.graphs.inspect.borders import take_out
    from olivelike.measure.verify.evaluation import Evaluation
    from olivelike.measure.verify.original import Original, precision_of

    def load(path: Path) -> ir.Model:
        model: ir.Model = ir.from_proto(onnx.load(path, load_external_data=False))
        return model

    def prepared(path: Path, model: ir.Model) -> Evaluation:
        return Evaluation(model, initializer=Initializers(path).read)

    path = folder / record.model_file(component)
    architecture, read = originals.network(component)
    original = Original(architecture, read, samples=samples, seed=seed)
    model, only, shallow = load(path), None, None
    if PIPELINE in record.components:
        try:
            model = take_out(model, component)
        except ValueError as error:
            raise SourceError(f"{path}: {error}; run the workflow again") from error
        only = [str(value.name) for value in model.graph.outputs]
    elif (part := path.with_name(SHALLOW_FILE)).is_file():
        shallow = prepared(part, load(part))
    found = original.compare(prepared(path, model), precision_of(model), only=only, shallow=shallow)
    for some in _guided(path, originals) if component in DENOISERS else ():
        other = path.with_name(guided_file(some))
        graph = load(other)
        attends = any(GUIDES[name].is_file for name in some)
        original = Original(
            *(originals.image_prompt() if attends else originals.network(component)),
            samples=samples, seed=seed, residuals=_residuals(graph, some),
        )  # fmt: skip
        found = found.joined(original.compare(prepared(other, graph), precision_of(graph)), other.name)
    return found


def _guided(path: Path, originals: Originals) -> Iterator[tuple[str, ...]]:
    """Yield the kinds of guides of each graph beside a UNet's; without those whose weights nothing named."""
    for count in range(1, len(GUIDES) + 1):
        for some in combinations(GUIDES, count):
            named = all(kind.key in originals.source.guide_files for name in some if (kind := GUIDES[name]).is_file)
            if named and path.with_name(guided_file(some)).is_file():
                yield some


def _residuals(graph: ir.Model, some: Sequence[str]) -> dict[str, list[int | str]]:
    """Return the shapes of a UNet's inputs for what some kinds of guides give."""
    kinds = [GUIDES[name] for name in some if GUIDES[name].gives]
    return {
        str(value.name): [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
        for value in graph.graph.inputs
        if value.shape is not None and any(kind.is_given(str(value.name)) for kind in kinds)
    }
