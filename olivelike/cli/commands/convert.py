"""`olivelike convert`: optimise one checkpoint without writing a workflow file."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared
from olivelike.model.client_layouts import DEFAULT, LayoutName
from olivelike.model.families import Prediction
from olivelike.model.targets import Precision, find_target


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A .safetensors file, a pipeline's folder, or a hub id.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str, typer.Option("-t", "--target", metavar="TARGET", help="Execution provider, such as directml.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write.")],
    loras: Annotated[
        list[str] | None,
        typer.Option(
            "--lora", metavar="FILE[:WEIGHT]", help="Merge this LoRA: a file or hub id; may be repeated."
        ),
    ] = None,
    vae: Annotated[
        str | None, typer.Option("--vae", metavar="VAE", help="Another VAE: a file, a folder or a hub id.")
    ] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option("--embedding", metavar="FILE", help="Add this textual inversion; may be repeated."),
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option("--precision", help="Precision of the result; by default the target's own."),
    ] = None,
    prediction: Annotated[
        Prediction | None,
        typer.Option("--prediction", help="What the UNet of a single file predicts, where it does not tell."),
    ] = None,
    layout: Annotated[
        LayoutName | None,
        typer.Option("--layout", help="Client that the folder is for; by default diffusers and `generate`."),
    ] = None,
    save_workflow: Annotated[
        Path | None,
        typer.Option("--save-workflow", metavar="FILE", help="Also write the workflow to this file."),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When a component fails, finish and store the others first.")
    ] = False,
    workers: shared.Workers = None,
    memory_limit: shared.MemoryLimit = None,
    cache_dir: shared.StoreDir = None,
    overwrite: shared.Overwrite = False,
    allow_pickle: shared.AllowPickle = False,
    dry_run: shared.DryRun = False,
    json: shared.JsonLines = False,
) -> None:
    """Optimise one checkpoint for a target, in one line.

    The workflow that does it is printed first; with --json it goes to standard error.
    """
    from olivelike import engine
    from olivelike.cli.stdout import write_error, write_line
    from olivelike.measure.report import write_report
    from olivelike.workflow.places import Place

    wish = engine.Wish(
        source,
        target,
        output,
        tuple(loras or ()),
        vae,
        tuple(embeddings or ()),
        precision,
        prediction,
        layout,
    )
    options = engine.Options(
        cache_dir=cache_dir,
        allow_pickle=allow_pickle,
        overwrite=overwrite,
        command=wish.command(allow_pickle=allow_pickle),
        keep_going=keep_going,
        fail_fast=not keep_going,
        workers=workers,
        memory_limit=shared.limit_bytes(memory_limit),
    )
    here = Path.cwd()
    text = engine.draft_workflow(wish, options, here)
    write = write_error if json else write_line
    for line in text.splitlines():
        write(line)
    if save_workflow is not None:
        engine.save_workflow(wish, options, save_workflow)
    place = Place(here / "convert.yaml", here, text)
    if dry_run:
        from olivelike.cli.commands.plan import show_plan

        write("")
        show_plan(place, options, json)
        return
    if json:
        from olivelike.cli.display.json_lines import JsonLines

        with JsonLines() as lines:
            engine.run(place, options, lines, write_report)
        return
    from olivelike.cli.display.run_display import RunDisplay

    write("")
    with RunDisplay(live=sys.stdout.isatty(), fail_fast=options.fail_fast) as display:
        display.summarise(engine.run(place, options, display, write_report))
    if layout in {None, DEFAULT}:
        write(_next_step(target, output))


def _next_step(target: str, output: Path) -> str:
    """Say how pictures are made, and where, if the target is not one that any machine has."""
    name = find_target(target).name
    where = "" if name == "cpu" else f", on a machine that has {name}"
    return f'next{where}: olivelike generate {shlex.quote(str(output))} "a red circle"'
