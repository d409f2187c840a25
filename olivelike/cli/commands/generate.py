"""`olivelike generate`: pictures from an optimised folder."""

import contextlib
import os
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from olivelike._text import count
from olivelike.cli import collect_as_usual, options as shared
from olivelike.cli.options import AllSessionOptions, argument, option
from olivelike.cli.stdout import write_error
from olivelike.errors import Interrupted, OlivelikeError, UsageError
from olivelike.model.guides import CONTROL_KINDS
from olivelike.runtime.pipeline.request import (
    OneOf,
    Pictures,
    PreprocessorName,
    Request,
    RequestFields,
    asked_fields,
    in_options,
    with_hires,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from olivelike.cli.display.generate_display import JsonLines, Lines
    from olivelike.runtime.jobs import JobPlan
    from olivelike.runtime.pictures import PictureWriter
    from olivelike.runtime.pipeline.pipeline import Pipeline
    from olivelike.runtime.sessions.session_settings import SessionSettings
    from olivelike.serve.remote.client import Server
    from olivelike.serve.remote.remote_orders import RemotePlan

_CONTROLS = " or ".join(kind.title for kind in CONTROL_KINDS)


def _request_options() -> "Iterator[tuple[str, Any, Any]]":
    """Yield name, type and default of an option for each field of a request that has a text for it."""
    for _, asked in asked_fields():
        if not asked.help:
            continue
        names = [f"--{asked.name}"] if asked.is_flag else []
        names = ["-n", "--num-images"] if asked.name == "num-images" else names
        said = typer.Option(*names, metavar=asked.metavar, help=asked.help)
        kind: Any = asked.read if isinstance(asked.read, type) else str
        kind = Literal[asked.read.words] if isinstance(asked.read, OneOf) else kind
        kind, default = (bool, False) if asked.is_flag else (kind | None, None)
        yield asked.name.replace("-", "_"), Annotated[kind, said], field(default=default)


@dataclass(frozen=True)
class PictureOptions(make_dataclass("RequestOptions", _request_options(), frozen=True)):  # type: ignore[misc]
    """Options for pictures: fields of a `Request`, and its size as two numbers."""

    width: Annotated[int | None, option("N", "In pixels, with --height in place of --size.")] = None
    height: Annotated[int | None, option("N", "In pixels, with --width.")] = None

    def fields(self) -> "RequestFields":
        """Return the fields of a request that the command line gives.

        Raises `UsageError` if the size is none, or what --hires says.
        """
        values: dict[str, Any] = {}
        for name, asked in asked_fields():
            said = getattr(self, asked.name.replace("-", "_"), None)
            if asked.is_flag and said:
                values[name] = asked.read("")
            elif not asked.is_flag and said is not None:
                values[name] = asked.read(said) if isinstance(said, str) else said
        sides = self.width, self.height
        if sides != (None, None) and (None in sides or "size" in values):
            raise UsageError("a size is --width and --height, both of them, or --size WxH alone")
        if None not in sides:
            values["size"] = sides
        return with_hires(values)


@dataclass(frozen=True)
class ServerOptions:
    """Servers or clusters that draw in place of this process."""

    cluster: shared.DrawingCluster = None
    server: Annotated[
        str | None, option("URL", "Let a running `olivelike serve` draw; FOLDER and LoRAs are then named as it does.")
    ] = None
    api_key: Annotated[str | None, option("KEY", "Of that server; by default $OLIVELIKE_API_KEY.")] = None


@shared.with_groups
def generate(
    folder: shared.OutputFolder,
    prompts: Annotated[
        list[str] | None,
        argument(
            "PROMPT", 'What to show, written as for A1111, such as "(word:1.2)"; @FILE or - has a job on each line.'
        ),
    ] = None,
    *,
    picture: PictureOptions,
    init_images: Annotated[
        list[Path] | None,
        option(
            "--init-image FILE",
            "Picture to start from; a folder, a pattern such as 'in/*.png', or several are drawn one after the other.",
        ),
    ] = None,
    mask: Annotated[Path | None, option("FILE", "Where to paint in the initial picture: white.")] = None,
    controls: Annotated[
        list[str] | None,
        option(
            "--control [NAME=]FILE[:X]",
            f"Picture that leads, with strength X, by a {_CONTROLS} of that name; may be repeated. "
            "Behind it :canny, :scribble_xdog, :invert, :threshold or :blur_gaussian says what is made of it first.",
        ),
    ] = None,
    control_start: Annotated[float, option("X", "Share of the steps from which they lead; 0 by default.")] = 0.0,
    control_end: Annotated[float, option("X", "Share of the steps up to which they lead; 1 by default.")] = 1.0,
    control_canny: Annotated[
        bool, option("--control-canny", "Lead by the edges of control pictures; FILE:canny for one of them.")
    ] = False,
    ip_adapter: Annotated[
        list[str] | None,
        option(
            "--ip-adapter FILE[:X]",
            "Picture that is a prompt too, with scale X, by the folder's IP-Adapter; may be repeated.",
        ),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        option(
            "--reference FILE",
            "Picture to work after, for models that see some beside the text (FLUX.2); may be repeated.",
        ),
    ] = None,
    loras: Annotated[
        list[str] | None,
        option(
            "--lora FILE[:WEIGHT]", "Merge this LoRA in memory, no file changes: a file or hub id; may be repeated."
        ),
    ] = None,
    lora_dirs: Annotated[
        list[Path] | None,
        option(
            "--lora-dir DIR", "Where <lora:NAME> is looked for, then in loras/ here and beside FOLDER; may be repeated."
        ),
    ] = None,
    wildcard_dirs: Annotated[
        list[Path] | None,
        option("--wildcard-dir DIR", "Where the file of __NAME__ is, by default wildcards/ here; may be repeated."),
    ] = None,
    fast: Annotated[
        bool, option("--fast", "Scheduler, steps and guidance that a few-step model or LoRA is made for.")
    ] = False,
    made_before: Annotated[
        Path | None, option("--from PICTURE", "Make this picture again; options override what it says.")
    ] = None,
    safety: shared.Safety = True,
    output: Annotated[
        str, option("-o --output PATTERN", "Folder, file or pattern such as out/{index:05}-{seed}-{prompt}.png.")
    ] = "pictures",
    overwrite: Annotated[
        bool, option("--overwrite", "Replace files of these names; else new ones get a number.")
    ] = False,
    sheet: Annotated[bool, option("--sheet", "Also write all pictures on one sheet.")] = False,
    preview: Annotated[
        Path | None,
        option("FILE", "Write what steps look like to this .png, again and again; with a tiny VAE, in full."),
    ] = None,
    metadata: Annotated[
        bool, typer.Option(help="Write what made a picture into its file; that AI made it is always written.")
    ] = True,
    sign_pictures: shared.SignPictures = None,
    sign_key: shared.SignKey = None,
    at: ServerOptions,
    allow_pickle: shared.AllowPickle = False,
    json: shared.JsonLines = False,
    session: AllSessionOptions,
) -> None:
    """Make pictures with an optimised folder.

    The same seed gives the picture that diffusers gives with torch. What made a picture is in its file.
    """
    from olivelike.cli.display.generate_display import JsonLines, Lines
    from olivelike.engine.output.swap import LiveLoras, lora_folders
    from olivelike.runtime.jobs import plan_jobs, read_prompts
    from olivelike.runtime.jobs.control_files import initial_pictures, parse_control, parse_image_prompt
    from olivelike.runtime.jobs.job_drawing import Opening
    from olivelike.runtime.jobs.job_plan import JobPlan, joined, read_asked
    from olivelike.runtime.jobs.prompt_lines import STDIN, argument_text
    from olivelike.runtime.pictures import PictureWriter
    from olivelike.runtime.pictures.writer import DEFAULT_NAME, NAME_OF_MANY
    from olivelike.runtime.pipeline.pipeline import begin_pipeline
    from olivelike.runtime.pipeline.pipeline_folder import check_folder
    from olivelike.runtime.prompts.wildcards import Wildcards
    from olivelike.runtime.sessions.session import ENGINE_CALLS

    with JsonLines() if json else Lines(live=sys.stdout.isatty()) as display, _naming_options():
        name = folder.resolve().name
        signer = None
        if sign_pictures is not None or sign_key is not None:
            from olivelike.runtime.pictures.picture_signature import open_picture_signer

            signer = open_picture_signer(sign_pictures, sign_key)
        starts: list[Path | None] = [*initial_pictures(init_images or ())] or [None]
        usual = DEFAULT_NAME if len(starts) == 1 else NAME_OF_MANY
        writer = PictureWriter(output, name, overwrite=overwrite, metadata=metadata, signer=signer, usual=usual)
        if at.server is not None and at.cluster is not None:
            raise UsageError("--server and --cluster are two places to draw; name one")
        if at.cluster is not None:
            _check_for_cluster(session, {"--upscaler": picture.upscaler, "--preview": preview, "--api-key": at.api_key})
        elif at.server is None:
            if at.api_key is not None:
                raise UsageError("--api-key is that of a server; name it with --server")
            settings = session.settings(folder)
            check_folder(folder, settings)
        else:
            here = {
                "--lora-dir": lora_dirs, "--wildcard-dir": wildcard_dirs, "--allow-pickle": allow_pickle,
                "--no-safety": not safety, "--preview": preview,
                "options of sessions": session != AllSessionOptions(),
            }  # fmt: skip
            if given := [option for option, value in here.items() if value]:
                raise UsageError(f"{', '.join(given)}: with --server that is the server's to say; leave it out")
        if STDIN in (prompts or ()) and not picture.plain_prompts and sys.stdin.isatty():
            write_error("Reading prompts from the terminal, one on each line; end with Ctrl-D (Windows: Ctrl-Z).")
        lines = read_prompts(prompts or (), literal=picture.plain_prompts)
        made: PreprocessorName = "canny" if control_canny else "none"
        led_by = [parse_control(one, start=control_start, end=control_end, preprocessor=made) for one in controls or ()]
        if not led_by and made_before is None and (control_start, control_end, control_canny) != (0.0, 1.0, False):
            raise UsageError("--control-start, --control-end and --control-canny are about a --control; give one")
        fields = picture.fields()
        if "negative_prompt" in fields:
            fields["negative_prompt"] = argument_text(fields["negative_prompt"])
        shown, scale = parse_image_prompt(ip_adapter or ())
        if scale is not None:
            fields["ip_adapter_scale"] = scale
        if len(starts) > 1 and made_before is None:  # One seed for all, as in A1111.
            drawn = replace(Request(()), **fields).drawn_seeds()
            fields |= {name: value for name, value in drawn.items() if value is not None}

        def pictures(start: Path | None) -> Pictures[Path]:
            return Pictures(
                init_image=start,
                mask=mask,
                controls=tuple(led_by),
                ip_adapter_images=tuple(shown),
                references=tuple(reference or ()),
            )

        if at.server is not None:
            from olivelike.serve.remote.client import Server
            from olivelike.serve.remote.remote_orders import plan_orders

            server = Server(at.server, at.api_key or os.environ.get("OLIVELIKE_API_KEY"))
            for start in starts:
                asked = read_asked(lines, fields, made_before=made_before, pictures=pictures(start))
                orders = plan_orders(server, name, asked, loras=loras or (), save=metadata, fast=fast)
                _draw_at(server, orders, writer, display, sheet=sheet)
            return
        lora_files = LiveLoras(lora_folders(lora_dirs or (), folder), allow_pickle=allow_pickle)
        opened = [lora_files.named(text) for text in loras or ()]
        if at.cluster is not None:
            from olivelike._extras import needed
            from olivelike.serve.remote.remote_orders import plan_orders, spread
            from olivelike.serve.settings import ServeSettings

            chosen = ServeSettings(
                folders=(folder,), lora_dirs=tuple(lora_dirs or ()), wildcard_dirs=tuple(wildcard_dirs or ()),
                allow_pickle=allow_pickle, safety=safety, metadata=metadata, providers=tuple(session.providers or ()),
                provider_options=tuple(session.provider_options or ()), device=session.device,
                session_options=tuple(session.session_options or ()), threads=session.threads or 0, cluster=at.cluster,
            )  # fmt: skip
            with needed("EXECUTORS", "command", "--cluster")(chosen, opened) as (server, names):
                for start in starts:
                    asked = read_asked(lines, fields, made_before=made_before, pictures=pictures(start))
                    orders = plan_orders(server, name, asked, loras=names, save=metadata, fast=fast)
                    _draw_at(server, spread(orders), writer, display, sheet=sheet)
            return
        ahead: list[Pipeline] = []

        def begin(request: "Request") -> None:
            with contextlib.suppress(OlivelikeError):  # `_draw` comes upon it, too, and it is nothing of the prompts.
                ahead.append(begin_pipeline(folder, settings, safety=safety, request=request))
                display(Opening(model=str(folder)))

        def planned(start: Path | None) -> JobPlan:
            return plan_jobs(
                folder,
                lines,
                fields,
                made_before=made_before,
                pictures=pictures(start),
                wildcards=Wildcards(wildcard_dirs, named=True) if wildcard_dirs else None,
                lora_files=lora_files,
                loras=opened,
                fast=fast,
                once_checked=begin if start == starts[0] else lambda _: None,
            )

        try:
            plan = planned(starts[0]) if len(starts) == 1 else joined(map(planned, starts))
        except BaseException:
            with ENGINE_CALLS.watch():
                ENGINE_CALLS.end()  # Threads that open networks would hold the process.
            raise
        for note in plan.notes:
            display.note(in_options(note))
        begun = ahead[0] if ahead else None
        _draw(plan, writer, settings, display, safety=safety, ahead=begun, sheet=sheet, preview=preview)


@contextlib.contextmanager
def _naming_options() -> "Iterator[None]":
    """Let refusals of fields name the options that gave them."""
    try:
        yield
    except UsageError as error:
        error.args = (in_options(str(error)),)
        raise


def _check_for_cluster(session: AllSessionOptions, others: "Mapping[str, object]") -> None:
    """Refuse what workers of a cluster do not do."""
    names = ("providers", "provider_options", "device", "session_options", "threads")
    given = [option for option, value in others.items() if value]
    if session != replace(AllSessionOptions(), **{name: getattr(session, name) for name in names}):
        given.append("options of sessions beyond provider, device and threads")
    if given:
        raise UsageError(f"{', '.join(given)}: workers of a cluster do not have it; leave it out")


def _draw(
    plan: "JobPlan",
    writer: "PictureWriter",
    settings: "SessionSettings",
    display: "Lines | JsonLines",
    *,
    safety: bool,
    ahead: "Pipeline | None",
    sheet: bool,
    preview: Path | None,
) -> None:
    """Draw what is planned; a signal leaves the pictures that are done, and says how many."""
    from olivelike.cli.signals import signals_end_engines, uninterrupted
    from olivelike.runtime.jobs import draw
    from olivelike.runtime.jobs.job_drawing import Event, StepDone

    shown = None
    if preview is not None:
        from olivelike.runtime.pictures.preview_file import PreviewFile

        shown = PreviewFile(preview)

    def tell(event: Event) -> None:
        if shown is not None and isinstance(event, StepDone) and event.images is not None:
            shown.show(event.images)
        display(event)

    def interrupted() -> Interrupted:
        return Interrupted(f"interrupted; {display.written} of {count(plan.pictures, 'picture')} written")

    def last_words() -> None:
        error = interrupted()
        display.__exit__(type(error), error, None)
        write_error(f"error: {error}")

    collect_as_usual()
    try:
        with signals_end_engines(last_words):
            draw(
                plan, writer, settings,
                safety=safety, ahead=ahead, sheet=sheet, on_event=tell, while_writing=uninterrupted,
            )  # fmt: skip
    except (KeyboardInterrupt, Interrupted):
        raise interrupted() from None


def _draw_at(
    server: "Server", plan: "RemotePlan", writer: "PictureWriter", display: "Lines | JsonLines", *, sheet: bool
) -> None:
    """Let a server draw what is planned; a signal cancels what it has not drawn, and says how many are written."""
    from olivelike.cli.signals import uninterrupted
    from olivelike.serve.remote.remote_drawing import draw_orders

    for note in plan.notes:
        display.note(note)
    try:
        draw_orders(
            server, plan, writer, sheet=sheet, on_event=display, on_note=display.note, while_writing=uninterrupted
        )
    except KeyboardInterrupt:
        total = count(plan.pictures, "picture")
        raise Interrupted(f"interrupted; {display.written} of {total} written, jobs at the server cancelled") from None
