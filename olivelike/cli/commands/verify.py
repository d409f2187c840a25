"""`olivelike verify`: an output folder compared with the checkpoint that it was made from."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from olivelike._extras import commands
from olivelike.cli import options as shared
from olivelike.cli.options import option
from olivelike.cli.stdout import write_error, write_found, write_line
from olivelike.errors import UsageError, VerificationError
from olivelike.model.guides import GUIDES

if TYPE_CHECKING:
    from olivelike.measure.verify.folder_verification import ComponentVerdict, FolderVerification


@dataclass(frozen=True)
class ComparisonOptions:
    """Originals to compare with, how much, and by which limits; fields are arguments of `verify_folder`."""

    against: Annotated[
        str | None,
        option(
            "CHECKPOINT",
            "What it was made from: a folder, a file or a hub id; by default what the folder names, if near.",
        ),
    ] = None
    vae: Annotated[str | None, option("VAE", "The other VAE that was put into it.")] = None
    loras: Annotated[
        list[str] | None, option("--lora FILE[:WEIGHT]", "A LoRA that was merged into it; repeat for each of them.")
    ] = None
    components: Annotated[
        list[str] | None, option("--component NAME", "Compare this network alone; may be repeated.")
    ] = None
    samples: Annotated[int, option("N", "Random inputs for each network.", min=1, max=64)] = 2
    seed: Annotated[int, option("N", "Of the first input and picture.", min=0)] = 0
    threshold: Annotated[
        float | None,
        option(
            "X", "Largest relative error; by default 1e-4; fp16 2e-2, bf16 0.16, w8 5e-2, w4 0.6, int8 and fp8 0.3."
        ),
    ] = None
    pictures: Annotated[int | None, option("N", "Pictures to compare; 1, or none with --component.", min=0, max=64)] = (
        None
    )
    prompt: Annotated[str | None, option("TEXT", "What they show; by default an astronaut on a horse.")] = None
    steps: Annotated[int, option("N", "Steps of each.", min=1)] = 20
    min_psnr: Annotated[float | None, option("DB", "Least PSNR of a picture; none by default.")] = None
    min_ssim: Annotated[float | None, option("X", "Least SSIM of a picture; none by default.")] = None
    providers: Annotated[
        list[str] | None,
        option(
            "--provider NAME[:KEY=VALUE,...]",
            "What the folder's pictures run on; by default its target, where that is here.",
        ),
    ] = None
    save: Annotated[Path | None, option("DIR", "Write the pictures here, side by side.")] = None


@shared.with_groups
def verify(
    folder: shared.OutputFolder,
    reported: shared.ReportOptions,
    chosen: ComparisonOptions,
    guides: shared.PutGuides,
    card: Annotated[bool, option("--card", "Write the figures into the folder's README.md, its model card.")] = False,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Compare networks and pictures with torch's.

    Networks run on the CPU, whatever the target. The exit status is 5 if one is too far off.
    """
    from olivelike.measure.verify.folder_verification import verify_folder

    run = reported.run(folder)
    if card:
        from olivelike.measure.verify.model_card import check_card

        if chosen.components:
            raise UsageError("--card: it tells of all networks; leave out --component")
        check_card(folder)
    result = verify_folder(
        folder,
        **shared.given(chosen, guides=guides.guides, image_encoder=guides.image_encoder, allow_pickle=allow_pickle),
        found=(lambda _: None) if json else _show_component,
        begun=_begin,
    )
    write_found(
        result.to_json(),
        _picture_lines(result),  # Networks are told of as they are compared.
        json=json,
        add_to_report=lambda: result.add_to_report(run) if run is not None else None,
    )
    if card:
        place = result.write_card()
        if not json:
            write_line(f"card: {place}")
    if not result.passed:
        raise VerificationError(f"{folder}: {'; '.join(result.failures)}", result.to_json())


def _show_component(verdict: "ComponentVerdict") -> None:
    figures = verdict.to_json()
    write_line(
        f"{verdict.name:16} {figures['precision']}  relative error {_number(figures['relative_error'])}, "
        f"worst element {_number(figures['worst'])}, cosine {_number(figures['cosine'], '.9f')}, "
        f"{figures['nan']} NaN, {figures['inf']} Inf  {'ok' if verdict.passed else 'TOO FAR OFF'} (limit "
        f"{verdict.limit:.0e})"
    )


def _begin(component: str) -> None:
    """Say on standard error what takes a while now."""
    if not sys.stderr.isatty():
        write_error(f"comparing {component}")


def _number(value: float | None, form: str = ".1e") -> str:
    return "not finite" if value is None else f"{value:{form}}"


_ROUNDED = ("w8", "w4", "int8", "fp8")
"""Precisions whose errors do not rank them: the same error may cost much or little in a picture."""


def _picture_lines(result: "FolderVerification") -> "Iterator[str]":
    if rounded := [one.name for one in result.components if one.verification.precision in _ROUNDED]:
        how = ", by `olivelike bench --method` or `ablate --pictures`" if "bench" in commands() else ""
        yield f"note: {', '.join(rounded)}: of 8 and 4 bits a smaller error is no better picture; pictures decide{how}"
    for one in result.pictures:
        yield f"picture, seed {one.seed}   PSNR {one.psnr:.1f} dB, SSIM {one.ssim:.4f}"
    if result.not_compared:
        *first, last = (kind.option for kind in GUIDES.values())
        options = f"{', '.join(first)} or {last}"
        yield f"not compared: {', '.join(result.not_compared)}; name what they were made of with {options}"
    if result.pictures_skipped:
        yield f"no pictures: {result.pictures_skipped}"
