"""`olivelike generate`: pictures from an optimised folder."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from olivelike.cli import options as shared
from olivelike.cli import session_options as session


def generate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder that `olivelike run` wrote.", show_default=False),
    ],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help='What to show, written as for A1111, such as "(word:1.2)"; @FILE or - has a job on each line.',
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
            "--seed",
            metavar="N",
            help="Of the first picture; those after it count up. By default, or as -1, drawn.",
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
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Take the nearest size there is, and crop the initial picture to its shape."
        ),
    ] = False,
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
        bool, typer.Option("--plain-prompts", help="All that is written in prompts is text.")
    ] = False,
    loras: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="FILE[:WEIGHT]",
            help="Merge this LoRA in memory, no file changes: a file or hub id; may be repeated.",
        ),
    ] = None,
    lora_dirs: Annotated[
        list[Path] | None,
        typer.Option(
            "--lora-dir",
            metavar="DIR",
            help="Where <lora:NAME> is looked for, then in loras/ here and beside FOLDER; may be repeated.",
        ),
    ] = None,
    wildcard_dirs: Annotated[
        list[Path] | None,
        typer.Option(
            "--wildcard-dir",
            metavar="DIR",
            help="Where the file of __NAME__ is, by default wildcards/ here; may be repeated.",
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
    from olivelike.cli.commands.generate_drawing import draw
    from olivelike.cli.commands.generate_images import find_used, open_image, parse_size
    from olivelike.cli.commands.generate_prompts import PromptLine, read_prompts
    from olivelike.cli.commands.generate_record import fill_from_record, picture_record, record_notes
    from olivelike.cli.commands.generate_work import RANDOM, drawn_seed, plan_work, unread_notes
    from olivelike.cli.commands.large_sizes import size_notes
    from olivelike.cli.commands.live_loras import LiveLoras, lora_folders
    from olivelike.cli.display.generate_display import Lines
    from olivelike.cli.display.generate_json import JsonLines
    from olivelike.runtime import Request
    from olivelike.runtime.pictures import PictureWriter, read_picture_record
    from olivelike.runtime.pipeline.pipeline_folder import open_folder
    from olivelike.runtime.prompts import Wildcards

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
        before = read_picture_record(made_before) if made_before is not None else None
        if before is not None and made_before is not None:
            init_image = init_image or find_used(before.init_image, made_before)
            mask = mask or find_used(before.mask, made_before)
        lines = read_prompts(prompts or (), literal=plain_prompts)
        image, used_image = open_image(init_image) if init_image is not None else (None, None)
        painted, used_mask = open_image(mask) if mask is not None else (None, None)
        used = used_image, used_mask
        said: dict[str, Any] = {
            "prompts": tuple(line.prompt for line in lines) or None,
            "negative_prompt": negative_prompt,
            "num_images": num_images,
            "batch_size": batch_size,
            "steps": steps,
            "guidance_scale": guidance_scale,
            "guidance_rescale": guidance_rescale,
            "scheduler": scheduler,
            "eta": eta,
            "seed": drawn_seed() if seed == RANDOM else seed,
            "size": parse_size(size) if size is not None else None,
            "fit": fit or None,
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
        if before is not None:
            request = fill_from_record(request, frozenset(given), before)
            lines = lines or [PromptLine(before.prompt)]
        # What can't be done is told before minutes go into opening networks.
        pipeline_folder = open_folder(folder)
        known = LiveLoras(lora_folders(lora_dirs or (), folder), allow_pickle=allow_pickle)
        wildcards = Wildcards(wildcard_dirs or [Path("wildcards")], named=bool(wildcard_dirs))
        always = [known.named(text) for text in loras or ()]
        works = plan_work(request, lines, pipeline_folder, wildcards, known, always)
        if before is not None:
            added = [lora.used for lora in works[0].loras]
            for note in record_notes(before, folder, used, added):
                display.note(note)
        for note in (
            *unread_notes(lines, request, wildcards),
            *size_notes([work.request for work in works], pipeline_folder),
        ):
            display.note(note)
        records = [
            picture_record(work.request, pipeline_folder, used, [lora.used for lora in work.loras])
            for work in works
        ]
        writer = PictureWriter(output, folder.resolve().name, overwrite=overwrite)
        for record in records:
            writer.require_writable(record)
        draw(folder, settings, works, records, writer, display, safety=safety, sheet=sheet)
