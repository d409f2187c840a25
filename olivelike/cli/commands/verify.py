"""`olivelike verify`: an output folder held against the checkpoint that it was made from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike.cli import options as shared
from olivelike.model.components import MODEL_FILE, TEXT_ENCODERS, TEXT_TO_PICTURE

if TYPE_CHECKING:
    from olivelike.measure.verify.original import Verification
    from olivelike.measure.verify.originals import Originals
    from olivelike.measure.verify.picture_comparison import Likeness
    from olivelike.model.records.output import OutputRecord
    from olivelike.model.records.run_record import RunRecord
    from olivelike.runtime.sessions.session_settings import SessionSettings

_PROMPT = "a photo of an astronaut riding a horse"
_SIDES = ("original", "optimised")


def verify(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder that `olivelike run` wrote.", show_default=False),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="CHECKPOINT",
            help="What it was made from: a folder, a file or a hub id; by default what the folder names, if near.",
        ),
    ] = None,
    vae: Annotated[
        str | None, typer.Option("--vae", metavar="VAE", help="The other VAE that was put into it.")
    ] = None,
    loras: Annotated[
        list[str] | None,
        typer.Option(
            "--lora", metavar="FILE[:WEIGHT]", help="A LoRA that was merged into it; repeat for each of them."
        ),
    ] = None,
    components: Annotated[
        list[str] | None,
        typer.Option("--component", metavar="NAME", help="Compare this network alone; may be repeated."),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, max=64, help="Random inputs for each network.")
    ] = 2,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Of the first input and picture.")
    ] = 0,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="X",
            help="Largest relative error; by default 1e-4; 2e-2 in float16, 0.16 in bfloat16.",
        ),
    ] = None,
    pictures: Annotated[
        int | None,
        typer.Option(
            "--pictures", metavar="N", min=0, max=64, help="Pictures to compare; 1, or none with --component."
        ),
    ] = None,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What they show.")] = _PROMPT,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of each.")] = 20,
    min_psnr: Annotated[
        float | None,
        typer.Option("--min-psnr", metavar="DB", help="Least PSNR of a picture; none by default."),
    ] = None,
    min_ssim: Annotated[
        float | None,
        typer.Option("--min-ssim", metavar="X", help="Least SSIM of a picture; none by default."),
    ] = None,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME[:KEY=VALUE,...]",
            help="What the folder's pictures run on; by default its target, where that is here.",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Write the pictures here, side by side.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--report", help="Add it to the report of the last run that wrote the folder.")
    ] = False,
    allow_pickle: shared.AllowPickle = False,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Compare networks and pictures with torch's.

    Networks run on the CPU, whatever the target. The exit status is 5 if one is too far off.
    """
    from olivelike.errors import UsageError

    for name, value in (("--threshold", threshold), ("--min-psnr", min_psnr), ("--min-ssim", min_ssim)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value}: use a number above 0")
    from olivelike.cli.commands.report import last_writer
    from olivelike.cli.commands.verify_source import merged_loras, spec_of
    from olivelike.cli.stdout import write_json, write_line
    from olivelike.errors import VerificationError
    from olivelike.measure.verify.verified_folder import networks_of
    from olivelike.model.records.output import OutputRecord
    from olivelike.model.records.reading import to_json

    record = OutputRecord.require(folder)
    run = last_writer(folder, cache_dir) if keep else None
    chosen = _chosen(components, networks_of(record))
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
    from olivelike.measure.verify.originals import Originals
    from olivelike.measure.verify.picture_comparison import compare_pictures

    wanted = [name for name in networks_of(record) if name in chosen or (count and name in TEXT_TO_PICTURE)]
    originals = Originals(spec, wanted, merged_loras(record, loras, allow_pickle), allow_pickle=allow_pickle)
    result: dict[str, Any] = {
        "folder": str(folder),
        "against": to_json(originals.source.origin),
        "components": {},
    }
    failures: list[str] = []
    for name in chosen:
        found, limit = _compare(folder, record, name, originals, samples, seed, threshold)
        passed = found.within(limit)
        result["components"][name] = {**found.to_json(), "limit": limit, "passed": passed}
        if not passed:
            failures.append(f"{name} is further from torch than {limit:.0e}")
        if not json:
            _show_component(name, result["components"][name])
    alike: list[Likeness] = []
    if count and reason is None:
        prompts = [prompt] * count
        alike = compare_pictures(folder, originals, prompts, seed=seed, steps=steps, settings=settings)
    result["pictures"] = [one.to_json() for one in alike]
    if reason:
        result["pictures_skipped"] = reason
    failures += [
        f"the picture of seed {one.seed} is less like the original than asked for"
        for one in alike
        if (min_psnr is not None and one.psnr < min_psnr) or (min_ssim is not None and one.ssim < min_ssim)
    ]
    result["passed"] = not failures
    if not json:
        _show_pictures(alike, reason)
    if save is not None:
        _save(alike, save)
    report = _report(run, result, alike) if run is not None else None
    if json:
        write_json({**result, **({"report": str(report)} if report else {})})
    elif report:
        write_line(f"report: {report}")
    if failures:
        raise VerificationError(f"{folder}: {'; '.join(failures)}", result)


def _chosen(components: list[str] | None, present: list[str]) -> list[str]:
    from olivelike._text import did_you_mean
    from olivelike.errors import UsageError

    for name in components or ():
        if name not in present:
            raise UsageError(
                f"--component {name}: the folder has no such network; {did_you_mean(name, present, 'networks')}"
            )
    return [name for name in present if not components or name in components]


def _compare(
    folder: Path,
    record: "OutputRecord",
    name: str,
    originals: "Originals",
    samples: int,
    seed: int,
    threshold: float | None,
) -> "tuple[Verification, float]":
    from olivelike.measure.verify.original import LIMITS
    from olivelike.measure.verify.verified_folder import verify_component

    found = verify_component(folder, record, name, originals, samples=samples, seed=seed)
    return found, LIMITS[found.precision] if threshold is None else threshold


def _settings(folder: Path, providers: list[str] | None) -> "SessionSettings":
    """Return what pictures of the folder run on: its own target, or what the command says."""
    from olivelike.runtime.pipeline.folder_target import read_folder_target, target_settings
    from olivelike.runtime.sessions.providers import require_provider
    from olivelike.runtime.sessions.session_settings import choose_providers

    chosen = choose_providers(target_settings(read_folder_target(folder)), providers or ())
    for choice in chosen.providers if providers else ():
        require_provider(choice.provider)
    return chosen


def _lack(folder: Path) -> str | None:
    """Return which network the folder lacks for pictures, if it is made for something else."""
    for names in (TEXT_ENCODERS, ("unet",), ("vae_decoder",)):
        if not any((folder / name / MODEL_FILE).is_file() for name in names):
            return f"the folder has no {names[0]}/{MODEL_FILE}"
    return None


def _absence(settings: "SessionSettings", *, needed: bool) -> str | None:
    """Return why pictures can't be made here, if a provider is absent; that is an error if they are needed."""
    from olivelike.errors import SessionError
    from olivelike.runtime.sessions.nvidia import require_nvidia
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


def _show_component(name: str, figures: dict[str, Any]) -> None:
    from olivelike.cli.stdout import write_line

    verdict = "ok" if figures["passed"] else "TOO FAR OFF"
    write_line(
        f"{name:16} {figures['precision']}  relative error {_number(figures['relative_error'])}, "
        f"worst element {_number(figures['worst'])}, cosine {_number(figures['cosine'], '.9f')}, "
        f"{figures['nan']} NaN, {figures['inf']} Inf  {verdict}"
    )


def _number(value: float | None, form: str = ".1e") -> str:
    return "not finite" if value is None else f"{value:{form}}"


def _show_pictures(alike: "list[Likeness]", reason: str | None) -> None:
    from olivelike.cli.stdout import write_line

    for one in alike:
        write_line(f"picture, seed {one.seed}   PSNR {one.psnr:.1f} dB, SSIM {one.ssim:.4f}")
    if reason:
        write_line(f"no pictures: {reason}")


def _report(run: "tuple[RunRecord, Path]", result: dict[str, Any], alike: "list[Likeness]") -> Path:
    """Put the figures and the pictures into the report of a run, and return its path."""
    from olivelike.cli.commands.report import add_to_report
    from olivelike.measure.report.write import VERIFICATION_FILE

    record, folder = run
    _save(alike, folder)
    shown = [{**one.to_json(), **{side: _file(one, side) for side in _SIDES}} for one in alike]
    return add_to_report(record, folder, VERIFICATION_FILE, {**result, "pictures": shown})


def _require_writable(folder: Path) -> None:
    """Check, before minutes are spent, that pictures can be written to a folder, or that it can be made."""
    import os

    from olivelike.errors import UsageError

    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"--save: {there} is no folder, or may not be written")


def _save(alike: "list[Likeness]", folder: Path) -> None:
    from olivelike.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in alike:
            for side in _SIDES:
                getattr(one, side).save(folder / _file(one, side))
    except OSError as error:
        raise UsageError(f"{folder}: the pictures can't be written: {error.strerror}") from error


def _file(one: "Likeness", side: str) -> str:
    return f"{one.seed}-{side}.png"
