"""Options that several commands share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from olivelike.engine import Options


def _complete_workflow(incomplete: str) -> list[str]:
    """Return shipped names and files that begin so, for shell completion."""
    from olivelike.workflow import shipped_names

    files = [str(path) for suffix in ("yaml", "yml") for path in Path().glob(f"{incomplete}*.{suffix}")]
    folders = [f"{path}/" for path in Path().glob(f"{incomplete}*") if path.is_dir()]
    return [name for name in shipped_names() if name.startswith(incomplete)] + files + folders


Workflow = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW",
        help="Path of a workflow file, or name of a shipped one.",
        autocompletion=_complete_workflow,
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="COMPONENT", help="Take this component alone; may be repeated."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="PASS", help="Stop each chain after this pass; no output is written."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a value of the workflow, such as components.unet.1.float16.keep_io=true; may be repeated.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="PLUGIN", help="File, folder or module with more passes; may be repeated."
    ),
]
AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins", help="Run the code that the workflow file names under `plugins:`, without asking."
    ),
]
Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="FILE[:WEIGHT]",
        help="Merge this LoRA too, after those of the workflow: a file or hub id; may be repeated.",
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="The store's folder; by default $OLIVELIKE_CACHE_DIR, else cache/ in the workflow's project folder.",
    ),
]
StoreDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="The store's folder; by default $OLIVELIKE_CACHE_DIR, else ./cache.",
    ),
]
"""For commands that name no workflow."""
Output = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Write here, not where the workflow says.")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace another pipeline in the output, and files in it that were changed since."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, help="Processes at once; by default one per core, 4 at most."
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="What all nodes together may use, such as 8GB; by default four fifths of what is free.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Write each event as a JSON object on a line of standard output.")
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle", help="Read `.bin`, `.ckpt` and `.pt` files, which are pickles; off for safety."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]


def store_dir(named: Path | None) -> Path:
    """Return the store's folder for a command that names no workflow."""
    return named or Path(os.environ.get("OLIVELIKE_CACHE_DIR") or "cache").expanduser()


def selection(
    *,
    overrides: list[str] | None,
    plugins: list[str] | None,
    allow_plugins: bool,
    cache_dir: Path | None,
    output: Path | None = None,
    only: list[str] | None = None,
    until: str | None = None,
    allow_pickle: bool = False,
    loras: list[str] | None = None,
    workers: int | None = None,
    memory_limit: str | None = None,
) -> "Options":
    """Return the options that select and place a workflow's nodes."""
    from olivelike.cli.plugin_question import ask
    from olivelike.engine import Options

    return Options(
        overrides=tuple(overrides or ()),
        loras=tuple(loras or ()),
        plugins=tuple(plugins or ()),
        cache_dir=cache_dir,
        output=output,
        only=tuple(only or ()),
        until=until,
        allow_pickle=allow_pickle,
        allow_plugins=allow_plugins,
        ask_plugins=ask,
        workers=workers,
        memory_limit=limit_bytes(memory_limit),
    )


def limit_bytes(memory_limit: str | None) -> int | None:
    """Return the bytes that `--memory-limit` means."""
    if memory_limit is None:
        return None
    from olivelike._text import byte_count

    return byte_count(memory_limit, "--memory-limit")


def chosen_sides(size: str | None, width: int | None, height: int | None) -> tuple[int | None, int | None]:
    """Return width and height of a command that takes `--size` or both sides.

    Raises:
        UsageError: if it is given both, or the size is none.
    """
    if size is None:
        return width, height
    if height is not None or width is not None:
        from olivelike.errors import UsageError

        raise UsageError("--size says both already; leave out --height and --width")
    from olivelike.runtime.pipeline.request import parse_size

    return parse_size(size)
