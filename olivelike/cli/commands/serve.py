"""`olivelike serve`: a page and APIs that draw."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from olivelike._text import byte_count
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_line


@dataclass(frozen=True)
class AccessOptions:
    """Hosts, keys and origins that may use the server."""

    host: Annotated[str, option("ADDRESS", "Where to listen; other machines reach 0.0.0.0.")] = "127.0.0.1"
    port: Annotated[int, option("N", "0 takes a free one.", min=0, max=65535)] = 7860
    api_keys: Annotated[
        list[str] | None, option("--api-key NAME=KEY", "Ask for a key, and call who has it so; may be repeated.")
    ] = None
    api_key_file: Annotated[Path | None, option("--api-keys FILE", "Such keys, one on each line.")] = None
    basic: Annotated[list[str] | None, option("--basic USER:PASSWORD", "Ask for a password; may be repeated.")] = None
    no_auth: Annotated[bool, option("--no-auth", "Let everybody who reaches the address use the server.")] = False
    allow_hosts: Annotated[
        list[str] | None, option("--allow-host NAME", "Another name of this server; may be repeated.")
    ] = None
    allow_origins: Annotated[
        list[str] | None, option("--allow-origin URL", "A page elsewhere that may use it; may be repeated.")
    ] = None
    proxies: Annotated[
        list[str] | None, option("--proxy ADDRESS", "A proxy in front, with many connections; may be repeated.")
    ] = None


@dataclass(frozen=True)
class BoundOptions:
    """Bounds of what may be asked for."""

    memory_limit: Annotated[
        str | None,
        option(
            "SIZE",
            "What folders kept open may have together; the networks of a larger one are open in turns. By default "
            "four fifths of what is free.",
        ),
    ] = None
    time_limit: Annotated[float, option("SECONDS", "That a job may be drawn.", min=1)] = 1800.0
    max_queue: Annotated[int, option("N", "Jobs that may wait.", min=1)] = 200
    max_images: Annotated[int, option("N", "Pictures of a job.", min=1)] = 100
    max_side: Annotated[int, option("--max-size PIXELS", "Of a side.", min=8)] = 2048
    max_steps: Annotated[int, option("N", "Of a picture.", min=1)] = 500
    max_body: Annotated[str, option("SIZE", "Of a request.")] = "64MB"


@dataclass(frozen=True)
class PlaceOptions:
    """Folders that the server reads and writes, and what it does for all requests alike."""

    models_dirs: Annotated[
        list[Path] | None, option("--models DIR", "Serve all such folders in it, later ones too; may be repeated.")
    ] = None
    gallery: Annotated[Path, option("DIR", "Where pictures and jobs are kept.")] = Path("gallery")
    warm: Annotated[bool, option("--warm", "Open the first folder at once.")] = False
    safety: Annotated[bool, typer.Option(help="Check pictures; flagged ones are black.")] = True
    metadata: Annotated[bool, typer.Option(help="Write into each file what made the picture.")] = True
    sign_pictures: shared.SignPictures = None
    sign_key: shared.SignKey = None
    lora_dirs: Annotated[
        list[Path] | None,
        option("--lora-dir DIR", "Where LoRAs are, beside loras/ here and beside FOLDER; may be repeated."),
    ] = None
    wildcard_dirs: Annotated[
        list[Path] | None, option("--wildcard-dir DIR", "Where the file of __NAME__ is; may be repeated.")
    ] = None
    upscaler_dirs: Annotated[
        list[Path] | None, option("--upscaler-dir DIR", "Where upscalers are, networks as ONNX files; may be repeated.")
    ] = None
    styles: Annotated[
        Path | None, option("FILE", "Styles of prompts, A1111's styles.csv; by default in the gallery.")
    ] = None
    ignore_unsupported: Annotated[
        bool, option("--ignore-unsupported", "Leave out what A1111's API asks for and can't be had, and say so.")
    ] = False
    workflows_dir: Annotated[Path | None, option("--workflows DIR", "Workflows that the page may run.")] = None
    checkpoints_dir: Annotated[Path | None, option("--checkpoints DIR", "Checkpoints that the page may convert.")] = (
        None
    )
    cache_dir: shared.WorkflowStore = None
    cluster: shared.DrawingCluster = None
    allow_plugins: Annotated[bool, option("--allow-plugins", "Run the code that workflows name under `plugins:`.")] = (
        False
    )


@shared.with_groups
def serve(
    folders: Annotated[list[Path] | None, argument("FOLDER", "Folders that `olivelike run` wrote.")] = None,
    *,
    places: PlaceOptions,
    access: AccessOptions,
    bounds: BoundOptions,
    allow_pickle: shared.AllowPickle = False,
    session: shared.ProviderOptions,
) -> None:
    """Serve a page that paints, and the APIs of OpenAI and A1111.

    Pipelines stay open; jobs and pictures survive a restart.
    """
    from olivelike.serve import ServeSettings, serve as run
    from olivelike.serve.settings import read_keys, read_passwords

    said = shared.given(places, access, bounds, session, folders=folders, allow_pickle=allow_pickle)
    said["api_keys"] = read_keys(said.get("api_keys", ()), said.pop("api_key_file", None))
    said["basic"] = read_passwords(said.get("basic", ()))
    for name in {"memory_limit", "max_body"} & said.keys():
        said[name] = byte_count(said[name], f"--{name.replace('_', '-')}")
    run(ServeSettings(**said), lambda url: write_line(f"{url} is ready; Ctrl-C ends it"))
