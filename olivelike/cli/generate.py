"""`olivelike generate`: pictures from an optimised folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike.cli import options as shared
from olivelike.cli import session_options as session

if TYPE_CHECKING:
    from olivelike.cli.generate_display import Display
    from olivelike.runtime import Pipeline, Request
    from olivelike.runtime.pictures import PictureRecord, PictureWriter


def generate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder that `olivelike run` wrote.", show_default=False),
    ],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help='What to show; weights such as "(word:1.2)" as in A1111. Each gets --num-images pictures.',
            show_default=False,
        ),
    ] = None,
    negative_prompt: Annotated[
        str | None, typer.Option("--negative-prompt", metavar="TEXT", help="What not to show.")
    ] = None,
    num_images: Annotated[
        int | None,
        typer.Option("-n", "--num-images", metavar="N", help="Pictures for each prompt; 1 by default."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Pictures made at once; 1 by default.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Steps; 50 by default.")] = None,
    guidance_scale: Annotated[
        float | None,
        typer.Option(
            "--guidance-scale",
            metavar="X",
            help="How strongly the prompt leads; 7.5 by default, off at 1 and below, twice as fast then.",
        ),
    ] = None,
    guidance_rescale: Annotated[
        float | None,
        typer.Option(
            "--guidance-rescale", metavar="X", help="From 0 to 1, against overexposure; 0 by default."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="NAME",
            help="Such as Euler, DPM++ 2M Karras or DDIMScheduler; by default the folder's own.",
        ),
    ] = None,
    eta: Annotated[
        float | None, typer.Option("--eta", metavar="X", help="DDIM's share of fresh noise; 0 by default.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="Of the first picture; those after it count up. Drawn by default."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="WxH",
            help="In pixels; by default the initial picture's, or what the UNet was trained on.",
        ),
    ] = None,
    init_image: Annotated[
        Path | None, typer.Option("--init-image", metavar="FILE", help="Picture to start from.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option("--mask", metavar="FILE", help="Where to paint in the initial picture: white."),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--strength",
            metavar="X",
            help="Share of the steps that run on the initial picture; 0.8 by default, 1 with a mask.",
        ),
    ] = None,
    clip_skip: Annotated[
        int | None,
        typer.Option(
            "--clip-skip",
            metavar="N",
            help="Last layers of the text encoder to leave out; A1111 counts from 1.",
        ),
    ] = None,
    plain_prompts: Annotated[
        bool, typer.Option("--plain-prompts", help="Brackets and BREAK in prompts are text.")
    ] = False,
    loras: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="FILE[:WEIGHT]",
            help="Merge this LoRA in memory, no file changes: a file or hub id; may be repeated.",
        ),
    ] = None,
    made_before: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PICTURE", help="Make this picture again; options override what it says."
        ),
    ] = None,
    safety: Annotated[
        bool, typer.Option("--safety/--no-safety", help="Check pictures; flagged ones are black.")
    ] = True,
    retry_unsafe: Annotated[
        int,
        typer.Option(
            "--retry-unsafe",
            metavar="N",
            help="Draw a flagged picture again up to N times, with a new seed each.",
        ),
    ] = 0,
    decode_singly: Annotated[
        bool, typer.Option("--decode-singly", help="Decode a batch picture by picture: takes less memory.")
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="PATTERN",
            help="Folder, file or pattern such as out/{index:05}-{seed}-{prompt}.png.",
        ),
    ] = "pictures",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of these names; else new ones get a number.")
    ] = False,
    sheet: Annotated[bool, typer.Option("--sheet", help="Also write all pictures on one sheet.")] = False,
    allow_pickle: shared.AllowPickle = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write each event as a JSON object on a line of standard output.")
    ] = False,
    providers: session.Providers = None,
    provider_options: session.ProviderOptions = None,
    device: session.Device = None,
    session_options: session.SessionOptions = None,
    run_options: session.RunOptions = None,
    dimensions: session.Dimensions = None,
    graph_optimization: session.GraphOptimization = None,
    threads: session.Threads = None,
    inter_threads: session.InterThreads = None,
    custom_operators: session.CustomOperators = None,
    cuda_graph: session.CudaGraph = False,
    profile: session.Profile = None,
) -> None:
    """Make pictures with an optimised folder.

    The same seed gives the picture that diffusers gives with torch. What made a picture is in its file.
    """
    from dataclasses import replace

    from olivelike.cli.generate_display import Lines
    from olivelike.cli.generate_images import open_image, parse_size
    from olivelike.cli.generate_json import JsonLines
    from olivelike.cli.generate_record import fill_from_record, picture_record
    from olivelike.cli.live_loras import read_live_loras
    from olivelike.runtime import Request, open_pipeline
    from olivelike.runtime.folder import open_folder
    from olivelike.runtime.pictures import PictureWriter, read_picture_record
    from olivelike.runtime.settling import settle

    with JsonLines() if json else Lines(live=sys.stdout.isatty()) as display:
        settings = session.session_settings(
            folder,
            providers,
            provider_options,
            device,
            session_options,
            run_options,
            dimensions,
            graph_optimization,
            threads,
            custom_operators,
            cuda_graph,
            profile,
            inter_threads,
        )
        session.check_folder(folder, settings)
        image, used_image = open_image(init_image) if init_image is not None else (None, None)
        painted, used_mask = open_image(mask) if mask is not None else (None, None)
        used = used_image, used_mask
        said: dict[str, Any] = {
            "prompts": tuple(prompts) if prompts else None,
            "negative_prompt": negative_prompt,
            "num_images": num_images,
            "batch_size": batch_size,
            "steps": steps,
            "guidance_scale": guidance_scale,
            "guidance_rescale": guidance_rescale,
            "scheduler": scheduler,
            "eta": eta,
            "seed": seed,
            "size": parse_size(size) if size is not None else None,
            "init_image": image,
            "mask": painted,
            "strength": strength,
            "clip_skip": clip_skip,
            "prompt_weights": False if plain_prompts else None,
            "retry_unsafe": retry_unsafe,
            "decode_singly": decode_singly,
        }
        given = {name: value for name, value in said.items() if value is not None}
        request = Request(**{"prompts": (), **given})
        before = read_picture_record(made_before) if made_before is not None else None
        added = read_live_loras(loras or (), folder, allow_pickle)
        if before is not None:
            request, notes = fill_from_record(request, frozenset(given), before, folder, used, added.files)
            for note in notes:
                display.note(note)
        writer = PictureWriter(output, folder.resolve().name, overwrite=overwrite)
        # What can't be done is told before minutes go into opening networks.
        pipeline_folder = open_folder(folder)
        request = settle(request, pipeline_folder)
        record = picture_record(request, pipeline_folder, used, added.files)
        writer.require_writable(record)
        display.opening(folder)
        pipeline = open_pipeline(folder, settings, safety=safety, initializers=added.initializers)
        record = replace(record, provider=pipeline.unet.session.provider)
        display.started(pipeline, request, safety)
        _make(pipeline, request, record, writer, display, sheet)


def _make(
    pipeline: "Pipeline",
    request: "Request",
    record: "PictureRecord",
    writer: "PictureWriter",
    display: "Display",
    sheet: bool,
) -> None:
    """Make the pictures and write each batch as soon as it is there."""
    from olivelike.cli import collect_as_usual
    from olivelike.cli.generate_record import of_picture
    from olivelike.cli.uninterrupted import uninterrupted
    from olivelike.errors import Interrupted
    from olivelike.runtime import Picture, require_safe

    collect_as_usual()
    written = 0
    flagged: list[int] = []
    shown: list[Picture] = []  # On the sheet; without one, pictures are held for their batch alone.
    try:
        for batch in pipeline.batches(request, on_step=display.step):
            for picture in batch.pictures:
                with uninterrupted():
                    display.picture(picture, writer.save(picture.image, of_picture(record, picture)))
                    written += 1
                if picture.flagged:
                    flagged.append(picture.first_seed)
                if sheet:
                    shown.append(picture)
            display.batch(batch)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {written} of {len(request.jobs)} pictures are written") from None
    if sheet:
        images = [picture.image for picture in shown]
        display.sheet(writer.save_sheet(images, of_picture(record, shown[0])))
    require_safe(written, flagged, request.retry_unsafe)
