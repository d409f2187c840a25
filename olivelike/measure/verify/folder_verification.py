"""`verify_folder`: an output folder, its networks and its pictures, compared with the checkpoint behind it.

The original of an output folder: its checkpoint, LoRAs merged, and how to compare with it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import did_you_mean
from olivelike.digest import digest_file
from olivelike.engine.plan.adapters import fetch
from olivelike.engine.preparation import source_spec
from olivelike.errors import PassError, SessionError, SourceError, UsageError
from olivelike.measure.bench.engines import EngineAbsent, recorded_checkpoint
from olivelike.measure.report.page import VERIFICATION_FILE
from olivelike.model.families import (
    MODEL_FILE,
    PIPELINE,
    PIPELINE_FILE,
    PREVIEW,
    TEXT_ENCODERS,
    TEXT_TO_PICTURE,
    TOKENIZERS,
)
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.reading import to_json
from olivelike.model.tensor_file import read_tensor
from olivelike.sources import PipelineSource, SourceSpec, open_source
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.merge import changes
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files.pickled import read_pickle_table
from olivelike.sources.names.adapt import read_network
from olivelike.workflow.long_form import parse_lora, text_source

if TYPE_CHECKING:
    import numpy as np

    from olivelike.measure.report.recorded_runs import RecordedRun
    from olivelike.measure.verify.original import Verification
    from olivelike.measure.verify.picture_comparison import Likeness
    from olivelike.model import Architecture
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]
    Read = Callable[[str], Array]

PROMPT: Final = "a photo of an astronaut riding a horse"
"""What compared pictures show by default."""
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

    def to_json(self) -> dict[str, Any]:
        """Return figures, limit and verdict as JSON values."""
        return {**self.verification.to_json(), "limit": self.limit, "passed": self.passed}


@dataclass(frozen=True)
class FolderVerification:
    """How far an output folder is from the checkpoint that it was made of."""

    folder: Path
    against: Mapping[str, Any]
    """Where the checkpoint came from."""
    components: tuple[ComponentVerdict, ...]
    pictures: tuple[Likeness, ...]
    pictures_skipped: str | None
    """Why no pictures were compared, where they can't be made here."""
    failures: tuple[str, ...]
    """What is further off than asked for, a sentence each."""

    @property
    def passed(self) -> bool:
        """Whether everything is near enough."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return figures and verdicts as JSON values."""
        return {
            "folder": str(self.folder),
            "against": dict(self.against),
            "components": {verdict.name: verdict.to_json() for verdict in self.components},
            "pictures": [one.to_json() for one in self.pictures],
            **({"pictures_skipped": self.pictures_skipped} if self.pictures_skipped else {}),
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

    def add_to_report(self, run: RecordedRun) -> Path:
        """Put figures and pictures into the report of a run, and return its path.

        Raises `UsageError` if it can't be written.
        """
        self.save_pictures(run.folder)
        shown = [{**one.to_json(), **{side: _file(one, side) for side in _SIDES}} for one in self.pictures]
        return run.add_to_report(VERIFICATION_FILE, {**self.to_json(), "pictures": shown})


def verify_folder(
    folder: Path,
    *,
    against: str | None = None,
    vae: str | None = None,
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
    save: Path | None = None,
    allow_pickle: bool = False,
    found: Callable[[ComponentVerdict], None] = lambda _: None,
) -> FolderVerification:
    """Compare the networks and pictures of an output folder with torch's.

    Networks run on the CPU, whatever the target; their weights are read one at a time.

    Args:
        folder: What `run` wrote.
        against: What it was made of: a folder, a file or a hub id; by default what the folder names, if it is near.
        vae: The other VAE that was put into it.
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

    Raises:
        UsageError: for a number that can't be had, an unknown network, or a checkpoint or VAE that has to be named.
        SourceError: if a file is missing or damaged.
        SessionError: if pictures are asked for that can't be made here.
    """
    for name, value in (("--threshold", threshold), ("--min-psnr", min_psnr), ("--min-ssim", min_ssim)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} {value}: use a number above 0")
    record = OutputRecord.require(folder)
    # Where a tiny VAE for previews comes from is not recorded; the pass `verify` compares it as it is made.
    present = [name for name in networks_of(record) if name != PREVIEW]
    for name in components:
        if name not in present:
            hint = did_you_mean(name, present, "networks")
            raise UsageError(f"--component {name}: the folder has no such network; {hint}")
    settings = _settings(folder, providers)
    spec = spec_of(folder, record, against, vae)
    limited = min_psnr is not None or min_ssim is not None
    needed = bool(pictures or providers or limited)
    reason = None if needed or pictures == 0 or components else _lack(folder)
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
        figures = verify_component(folder, record, name, originals, samples=samples, seed=seed)
        verdict = ComponentVerdict(name, figures, LIMITS[figures.precision] if threshold is None else threshold)
        found(verdict)
        verdicts.append(verdict)
    alike: list[Likeness] = []
    if count and reason is None:
        alike = compare_pictures(folder, originals, [prompt] * count, seed=seed, steps=steps, settings=settings)
    failures = [f"{one.name} is further from torch than {one.limit:.0e}" for one in verdicts if not one.passed]
    failures += [
        f"the picture of seed {one.seed} is less like the original than asked for"
        for one in alike
        if (min_psnr is not None and one.psnr < min_psnr) or (min_ssim is not None and one.ssim < min_ssim)
    ]
    origin = to_json(originals.source.origin)
    result = FolderVerification(folder, origin, tuple(verdicts), tuple(alike), reason, tuple(failures))
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


def _lack(folder: Path) -> str | None:
    """Return which network the folder lacks for pictures, if it is made for something else."""
    if (folder / PIPELINE_FILE).is_file():
        return f"{PIPELINE_FILE} draws by itself, with other noise"
    for names in (TEXT_ENCODERS, ("unet",), ("vae_decoder",)):
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


class Originals:
    """The networks of a checkpoint, each as an architecture and a way to read its parameters."""

    def __init__(
        self,
        spec: SourceSpec,
        components: Iterable[str],
        loras: Sequence[WeightedLora] = (),
        *,
        allow_pickle: bool = False,
    ) -> None:
        """Open a checkpoint; weights stay where they are.

        Raises `SourceError` if the source or one of its files is missing or damaged.
        """
        self.source: PipelineSource = open_source(spec, components, allow_pickle=allow_pickle)
        self._loras = loras
        self.network = cache(self._network)

    def _network(self, component: str) -> tuple[Architecture, Read]:
        """Return a network's class and config, and how to read a parameter, LoRAs merged.

        Raises `PassError` when the source has the network as an ONNX graph, and `SourceError` when a LoRA does not fit
        it.
        """
        checkpoint = self.source.checkpoint(component)
        if checkpoint.graph is not None:
            raise PassError(
                f"{component}: this source has it as an ONNX graph, so there is no torch network to compare with; "
                "name the checkpoint that it was exported from with --against"
            )
        # Nothing is stored under these digests, so that the files need not be hashed.
        names = {path: str(path) for path in checkpoint.files}
        paths = {name: path for path, name in names.items()}
        architecture, weights = read_network(checkpoint, names)

        def stored(name: str) -> Array:
            if name not in weights:
                raise PassError(f"{component}: the checkpoint has no parameter {name!r}, which the network needs")
            return read_tensor(weights[name], paths)

        mine = [lora for lora in self._loras if component in lora.file.components]
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        merging = changes(component, architecture.config, shapes, mine) if mine else {}
        return architecture, lambda name: merging[name].apply(stored(name)) if name in merging else stored(name)


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
    from olivelike.graphs.one_file.borders import take_out
    from olivelike.measure.verify.evaluation import Evaluation
    from olivelike.measure.verify.original import Original, precision_of

    path = folder / record.model_file(component)
    initializers = Initializers(path)
    architecture, read = originals.network(component)
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    only = None
    if PIPELINE in record.components:
        try:
            model = take_out(model, component)
            only = [str(value.name) for value in model.graph.outputs]
        except ValueError as error:
            raise SourceError(f"{path}: {error}; run the workflow again") from error
    original = Original(architecture, read, samples=samples, seed=seed)
    return original.compare(Evaluation(model, initializer=initializers.read), precision_of(model), only=only)


def spec_of(folder: Path, record: OutputRecord, against: str | None, vae: str | None) -> SourceSpec:
    """Return the source to compare with: the one that is named, or that the folder names if it is found.

    Raises `UsageError` if it is not found, or the folder has another VAE that is not named.
    """
    said = record.source
    other = text_source(vae, Path.cwd()) if vae is not None else None
    if other is None and said.vae is not None:
        raise UsageError(f"{folder} has another VAE, {said.vae.name}; name it with --vae")
    if against is not None:
        return source_spec(text_source(against, Path.cwd()), other)
    if said.kind == "hub" and said.file is None:
        spec = SourceSpec(hub=said.name, revision=said.commit)
        return spec if other is None else replace(spec, vae=source_spec(other, None))
    try:
        found = recorded_checkpoint(folder)
    except EngineAbsent:
        raise UsageError(
            f"{folder} was made from {said.name}, whose place it does not know; name it with --against"
        ) from None
    return source_spec(text_source(found.place, Path.cwd()), other)


def merged_loras(record: OutputRecord, texts: Sequence[str], allow_pickle: bool) -> list[WeightedLora]:
    """Return the LoRAs that were merged into the folder.

    Raises:
        UsageError: if they are not those that the record lists, or tokens were added, which can't be done again here.
    """
    if record.embeddings:
        tokens = ", ".join(entry.token for entry in record.embeddings)
        raise UsageError(
            f"the folder has textual inversions ({tokens}) in its text encoder, which the checkpoint lacks; put the "
            "step `verify` into the chains of its workflow"
        )
    opened, digests = [], []
    for text in texts:
        lora = parse_lora(text, Path.cwd())
        path, _ = fetch(lora.file)
        file = open_lora(path, adapter=lora.adapter, read_pickle=read_pickle_table if allow_pickle else None)
        opened.append(WeightedLora(file, lora.weight))
        digests.append([digest_file(file.path), lora.weight])
    merged = [[entry.sha256, entry.weight] for entry in record.loras]
    if any(entry.weights for entry in record.loras):
        raise UsageError(
            "the folder's LoRAs have weights of their own for single components; put the step `verify` into the "
            "chains of its workflow"
        )
    if sorted(map(str, digests)) != sorted(map(str, merged)):
        wanted = " ".join(f"--lora {entry.origin.place}:{entry.weight:g}" for entry in record.loras)
        raise UsageError(f"the folder has other LoRAs merged than the command says; give exactly {wanted or 'none'}")
    return opened
