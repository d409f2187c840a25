"""`olivelike convert`: optimise one checkpoint without writing a workflow file."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from olivelike._extras import commands
from olivelike._text import quoted
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_line
from olivelike.errors import SourceError
from olivelike.model.client_layouts import DEFAULT, LayoutName
from olivelike.model.components import Prediction
from olivelike.model.targets import TARGETS, find_target


@shared.with_groups
def convert(
    source: Annotated[str, argument("SOURCE", "A .safetensors or .gguf file, a pipeline's folder, or a hub id.")],
    target: Annotated[str, option("-t --target TARGET", f"Execution provider: {', '.join(TARGETS)}, or a plugin's.")],
    output: Annotated[Path, option("-o --output DIR", "Where to write.")],
    limits: shared.LimitOptions,
    loras: Annotated[
        list[str] | None, option("--lora FILE[:WEIGHT]", "Merge this LoRA: a file or hub id; may be repeated.")
    ] = None,
    parts: Annotated[
        list[str] | None,
        option(
            "--part NAME=FILE",
            "File of a text_encoder, text_encoder_2, text_encoder_3 or vae beside that of a transformer; may be "
            "repeated. A tokenizer's folder, too, in place of the published one.",
        ),
    ] = None,
    vae: Annotated[str | None, option("VAE", "Another VAE: a file, a folder or a hub id.")] = None,
    preview: Annotated[str | None, option("VAE", "A tiny VAE (TAESD) beside it, for pictures of steps.")] = None,
    *,
    guides: shared.NewGuides,
    embeddings: Annotated[
        list[str] | None, option("--embedding FILE", "Add this textual inversion; may be repeated.")
    ] = None,
    precision: Annotated[
        Literal["fp32", "fp16", "bf16", "w8", "w4", "int8", "fp8"] | None,
        typer.Option(
            help="Precision of the result; by default the target's own, and w8 for large transformers on a CPU. w8 "
            "and w4: weights in 8 and 4 bits, but for the VAE's. int8 and fp8: the denoiser computed in 8 bits, "
            "after a few pictures were drawn to see its ranges."
        ),
    ] = None,
    calibration: Annotated[
        str | None, option("FILE", "For int8 and fp8: what is drawn, a prompt in each line; by default eight.")
    ] = None,
    prediction: Annotated[
        Prediction | None, typer.Option(help="What the UNet of a single file predicts, where it does not tell.")
    ] = None,
    distilled: Annotated[
        bool | None,
        option(
            "--distilled/--base",
            "Whether a file of FLUX.2-klein or Z-Image is distilled or the base, where its name does not tell.",
        ),
    ] = None,
    license_name: Annotated[
        str | None, option("--license NAME", "The source's licence, where none of its files says it.")
    ] = None,
    variant: Annotated[str | None, option("NAME", "Which of a folder's weight files to take, such as fp16.")] = None,
    layout: Annotated[
        LayoutName | None, typer.Option(help="Client that the folder is for; by default diffusers and `generate`.")
    ] = None,
    scheduler_model: Annotated[
        bool, option("--scheduler-model", "Also write scheduler/model.onnx: schedules for any program.")
    ] = False,
    save_workflow: Annotated[Path | None, option("FILE", "Also write the workflow to this file.")] = None,
    keep_going: Annotated[
        bool, option("--keep-going", "When a component fails, finish and store the others first.")
    ] = False,
    cache_dir: shared.WorkflowStore = None,
    overwrite: shared.Overwrite = False,
    cluster: shared.Cluster = None,
    allow_pickle: shared.AllowPickle = False,
    dry_run: shared.DryRun = False,
    json: shared.JsonLines = False,
) -> None:
    """Optimise one checkpoint for a target, in one line.

    The workflow that does it is printed first; with --json it goes to standard error.
    """
    from olivelike.engine import convert_request

    request = convert_request.ConvertRequest(
        source, target, output, tuple(loras or ()), vae, tuple(embeddings or ()), precision, prediction, layout,
        preview, guides.guides, guides.image_encoder,
        calibration=calibration, variant=variant, scheduler_model=scheduler_model,
        parts=tuple(parts or ()), distilled=distilled, license=license_name,
    )  # fmt: skip
    options = shared.engine_options(
        limits, cache_dir=cache_dir, allow_pickle=allow_pickle, overwrite=overwrite, keep_going=keep_going,
        cluster=cluster,
    )  # fmt: skip
    place, options = convert_request.draft(request, options)
    write = write_error if json else write_line
    for line in (place.text or "").splitlines():
        write(line)
    if save_workflow is not None:
        convert_request.save_workflow(request, options, save_workflow)
    if dry_run:
        from olivelike.cli.display.run_display import show_plan

        write("")
        show_plan(place, options, json)
        return
    from olivelike.cli.display.run_display import show_run

    if not json:
        write("")
    show_run(place, options, json)
    if layout in {None, DEFAULT} and not json:
        write(next_step(target, output))
    if layout == "web" and not json:
        write(f"next: olivelike export-web {quoted(output)} site")
    if layout in {"triton", "ortpackage"} and not json:
        write("next: docs/packages.md says who reads it, and how")
    if layout in {"single", "single-ids"} and not json:
        measured = f"olivelike bench {quoted(output)}; " if "bench" in commands() else ""
        write(f"next: {measured}programs that draw with it are in docs/one-file.md")


def next_step(target: str, output: Path) -> str:
    """Say how pictures are made, and with what, if that is not here.

    Nothing draws with a folder that `generate` does not open, such as one without a text encoder.
    """
    from olivelike.runtime.pipeline.pipeline_folder import open_folder
    from olivelike.runtime.sessions.providers import CPU, OPENVINO, find_provider

    try:
        open_folder(output)
    except SourceError:
        return f"next: olivelike info {quoted(output)}; it draws no pictures without the parts that it lacks"
    found, needed = find_target(target), ""
    if found.provider not in (CPU, *([OPENVINO] if find_spec("openvino") else [])):
        needed = f", with {found.name} ({find_provider(target).package})"
    return f'next{needed}: olivelike generate {quoted(output)} "a red circle"'
