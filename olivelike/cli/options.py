"""Options that several commands share, each declared once; groups of them are frozen dataclasses for `with_groups`.

Options that say where and how networks run, in groups for `with_groups`.
"""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from olivelike.model.guides import GUIDES, IMAGE_ENCODER

if TYPE_CHECKING:
    from olivelike.engine.prepared import Options
    from olivelike.measure.report.recorded_runs import RecordedRun
    from olivelike.runtime.sessions.session_settings import SessionSettings
    from olivelike.store import Store
    from olivelike.workflow.passes import Registry
    from olivelike.workflow.passes.allowed_plugins import Answer, ListedPlugin


def option(usage: str, help: str, **more: Any) -> Any:  # noqa: A002  (as typer calls it)
    """Return typer's declaration of an option, by what its help shows.

    Args:
        usage: Such as `-o --output DIR`; of an option that is called like its parameter `DIR` alone.
        help: What it is for.
        more: Of typer's own.
    """
    words = usage.split(" ")
    names = [word for word in words if word.startswith("-")]
    return typer.Option(*names, metavar=" ".join(words[len(names) :]) or None, help=help, **more)


def argument(metavar: str, help: str, *, show_default: bool = False, **more: Any) -> Any:  # noqa: A002
    """Return typer's declaration of an argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=show_default, **more)


def _complete_workflow(incomplete: str) -> list[str]:
    """Return shipped names and files that begin so, for shell completion."""
    from olivelike.workflow import shipped_names

    files = [str(path) for suffix in ("yaml", "yml") for path in Path().glob(f"{incomplete}*.{suffix}")]
    folders = [f"{path}/" for path in Path().glob(f"{incomplete}*") if path.is_dir()]
    return [name for name in shipped_names() if name.startswith(incomplete)] + files + folders


Workflow = Annotated[
    str, argument("WORKFLOW", "Path of a workflow file, or name of a shipped one.", autocompletion=_complete_workflow)
]
Plugins = Annotated[
    list[str] | None, option("--plugin PLUGIN", "File, folder or module with more passes; may be repeated.")
]
Safety = Annotated[bool, typer.Option(help="Check pictures; flagged ones are black.")]
SignPictures = Annotated[
    Path | None,
    option(
        "CERT", "Sign pictures, as C2PA has it, with this certificate: a PEM file, with those between it and its root."
    ),
]
SignKey = Annotated[
    Path | None, option("FILE", "Private key of that certificate; its password is in $OLIVELIKE_KEY_PASSWORD.")
]
StoreDir = Annotated[
    str | None, option("--cache-dir DIR", "The store's folder; by default $OLIVELIKE_CACHE_DIR, else ./cache.")
]
StorePlace = Annotated[
    str | None,
    option(
        "--cache-dir DIR|URL",
        "The store's folder, by default $OLIVELIKE_CACHE_DIR, else ./cache; or the URL of a shared store.",
    ),
]
"""For commands that name no workflow; `StorePlace` for those of them that can look at a shared store too."""
WorkflowStore = Annotated[
    str | None,
    option(
        "--cache-dir DIR|URL",
        "The store's folder, by default $OLIVELIKE_CACHE_DIR, else cache/ in the workflow's project folder; or "
        "the URL of a store to share, such as s3://BUCKET/FOLDER, by default $OLIVELIKE_SHARED_CACHE.",
    ),
]
Output = Annotated[Path | None, option("--output DIR", "Write here, not where the workflow says.")]
Overwrite = Annotated[
    bool, option("--overwrite", "Replace another pipeline in the output, and files in it that were changed since.")
]
Cluster = Annotated[
    str | None, option("ADDRESS", "Run on a Dask cluster: tcp://HOST:PORT of its scheduler, or local:N.")
]
DrawingCluster = Annotated[
    str | None, option("--cluster ADDRESS", "Draw on a Dask cluster: tcp://HOST:PORT of its scheduler, or local:N.")
]
DryRun = Annotated[bool, option("--dry-run", "Show the plan and run nothing.")]
OutputFile = Annotated[Path | None, option("--output FILE", "Write here, not to standard output.")]
JsonLines = Annotated[bool, option("--json", "Write each event as a JSON object on a line of standard output.")]
AllowPickle = Annotated[
    bool, option("--allow-pickle", "Read `.bin`, `.ckpt` and `.pt` files, which are pickles; off for safety.")
]
OutputFolder = Annotated[Path, argument("FOLDER", "A folder that `olivelike run` wrote.")]
Json = Annotated[bool, option("--json", "Write JSON to standard output.")]


class GuideOptions:
    """Options for what leads a pipeline beside the text, one for each kind, and for the network of a file."""

    image_encoder: str | None

    @property
    def guides(self) -> dict[str, list[str]]:
        """Texts by key in a workflow."""
        named = {kind.key: getattr(self, kind.key) for kind in GUIDES.values()}
        return {key: some if isinstance(some, list) else [some] for key, some in named.items() if some is not None}


def _guide_options(words: str, file_words: str, encoder: str) -> Any:
    """Return a group of these options; `{one}` in helps is a guide, `{again}` a remark where there are several."""
    made: list[Any] = []
    for kind in GUIDES.values():
        type_ = list[str] | None if kind.is_list else str | None
        text = (file_words if kind.is_file else words).format(one=kind.one, again=_AGAIN if kind.is_list else "")
        usage = f"{kind.option} {'FILE' if kind.is_file else 'NET'}"
        made.append((kind.key, Annotated[type_, option(usage, f"{text[0].upper()}{text[1:]}.")], None))
    made.append((IMAGE_ENCODER, Annotated[str | None, option("DIR", encoder)], None))
    return make_dataclass("GuideOptions", made, bases=(GuideOptions,), frozen=True)


_AGAIN: Final = "; in order, may be repeated"
if TYPE_CHECKING:
    NewGuides: TypeAlias = GuideOptions
    PutGuides: TypeAlias = GuideOptions
else:
    NewGuides = _guide_options(
        "{one}: a file, folder or hub id{again}",
        "{one}: a file, or one on the hub as OWNER/NAME/FILE",
        "Its image encoder: folder or hub id; by default near its file.",
    )
    PutGuides = _guide_options(
        "{one} that was put into it{again}",
        "{one} that was put into it",
        "Its image encoder, where that is not near its file.",
    )


@dataclass(frozen=True)
class FileOptions:
    """Options of a workflow file beside its path."""

    overrides: Annotated[
        list[str] | None,
        option(
            "--set KEY.PATH=VALUE",
            "Override a value of the workflow, such as components.unet.1.float16.keep_io=true; may be repeated.",
        ),
    ] = None
    plugins: Plugins = None
    allow_plugins: Annotated[
        bool, option("--allow-plugins", "Run the code that the workflow file names under `plugins:`, without asking.")
    ] = False


@dataclass(frozen=True)
class WorkflowOptions(FileOptions):
    """Options of a workflow whose nodes are placed: also its adapters and its store."""

    loras: Annotated[
        list[str] | None,
        option(
            "--lora FILE[:WEIGHT]",
            "Merge this LoRA too, after those of the workflow: a file or hub id; may be repeated.",
        ),
    ] = None
    cache_dir: WorkflowStore = None
    allow_pickle: AllowPickle = False


Combination = Annotated[str | None, option("NAME", "Take this combination of the workflow's `matrix` alone.")]


@dataclass(frozen=True)
class NodeOptions:
    """Options that select a workflow's nodes."""

    only: Annotated[list[str] | None, option("COMPONENT", "Take this component alone; may be repeated.")] = None
    combination: Combination = None
    until: Annotated[str | None, option("PASS", "Stop each chain after this pass; no output is written.")] = None


@dataclass(frozen=True)
class LimitOptions:
    """Options for what a run may use."""

    workers: Annotated[int | None, option("N", "Processes at once; by default one per core, 4 at most.", min=1)] = None
    memory_limit: Annotated[
        str | None,
        option("SIZE", "What all nodes together may use, such as 8GB; by default four fifths of what is free."),
    ] = None
    step_timeout: Annotated[
        float | None, option("SECONDS", "End a step of a chain that takes longer; it has failed then.", min=0.001)
    ] = None


@dataclass(frozen=True)
class ReportOptions:
    """Whether what is found out of an output folder goes into a run's report."""

    keep: Annotated[bool, option("--report", "Add it to the report of the last run that wrote the folder.")] = False
    cache_dir: StoreDir = None

    def run(self, folder: Path) -> "RecordedRun | None":
        """Return the last run that wrote the folder, if its report is meant.

        Raises `StoreError` if there is no store, and `UsageError` if no run in it wrote the folder.
        """
        from olivelike.measure.report.recorded_runs import last_writer

        return last_writer(open_store(self.cache_dir, writes=True), folder) if self.keep else None


def store_dir(named: str | None) -> Path:
    """Return the store's folder for a command that names no workflow.

    Raises `UsageError` if it is no folder but a URL.
    """
    text, where = (named, "--cache-dir") if named else (os.environ.get("OLIVELIKE_CACHE_DIR"), "$OLIVELIKE_CACHE_DIR")
    if text and "://" in text:
        from olivelike.errors import UsageError

        raise UsageError(f"{where} is a URL, and this command is about the store of this machine: name its folder")
    return Path(text or "cache").expanduser()


def open_store(named: str | None, *, writes: bool = False, create: bool = False) -> "Store":
    """Open the store of a command that names no workflow.

    Raises `UsageError` if it is no folder but a URL, and `StoreError` if there is none.
    """
    from olivelike.errors import StoreError
    from olivelike.store import Store

    path = store_dir(named)
    if not path.is_dir() and not create:
        raise StoreError(f"there is no store in {path.absolute()}; name its folder with --cache-dir")
    return Store.open(path, create=writes)


def load_registry(plugins: list[str] | None) -> "Registry":
    """Return the registry with plugins that were named relative to the current folder."""
    from olivelike.workflow.passes import Registry, resolve_plugin

    return Registry.load([resolve_plugin(text, Path.cwd()) for text in plugins or ()])


def given(*groups: Any, **more: Any) -> dict[str, Any]:
    """Return what the command line gives of groups of options, and of more of them, by name; lists are tuples."""
    said = {field.name: getattr(group, field.name) for group in groups for field in fields(group)} | more
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items() if value is not None
    }


def engine_options(*groups: Any, **more: Any) -> "Options":
    """Return what the engine is asked for: the fields of groups, which have its own names, and more of them."""
    from olivelike._text import byte_count
    from olivelike.engine.prepared import Options

    said = given(*groups, **more)
    if (limit := said.pop("memory_limit", None)) is not None:
        said["memory_limit"] = byte_count(limit, "--memory-limit")
    place = said.pop("cache_dir", None)
    if place and "://" in place:
        said["shared_cache"] = place
    elif place:
        said["cache_dir"] = Path(place)
    return Options(**said, ask_plugins=ask_plugins)


def chosen_sides(size: str | None, width: int | None, height: int | None) -> tuple[int | None, int | None]:
    """Return width and height of a command that takes `--size` or both sides.

    Raises `UsageError` if it is given both, or the size is none.
    """
    if size is None:
        return width, height
    if height is not None or width is not None:
        from olivelike.errors import UsageError

        raise UsageError("--size says both already; leave out --height and --width")
    from olivelike.runtime.pipeline.request import parse_size

    return parse_size(size)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options.

    A field is written as a command's parameter is, in a module without `from __future__ import annotations`:
    `steps: Annotated[int, typer.Option(help="How many.")] = 50`.

    Args:
        command: the parameters whose type is a dataclass are groups.
    """
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        shown += [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
            for one in fields(parameter.annotation)
        ]

    @wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{one.name: values.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**values, **made)

    run.__dict__["__signature__"] = inspect.Signature(shown)  # Where `inspect` looks first.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


_ANSWERS: Final[dict[str, "Answer"]] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}


def ask_plugins(plugins: Sequence["ListedPlugin"]) -> "Answer":
    """Ask on the terminal whether the plugins of a workflow file may run; where there is none, the answer is no."""
    from olivelike._untrusted import one_line

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "no"
    # A name with a line feed could make the question say something else.
    lines = [f"  {one_line(str(plugin.path))}  ({one_line(plugin.listed_at)})" for plugin in plugins]
    sys.stderr.write(
        "This workflow runs code that you have not allowed, or that changed since:\n" + "\n".join(lines) + "\n"
        "Such code can do all that you can. Read it first if it is not yours.\n"
        "Run it? [y]es, [a]lways for these folders, changed code too, [N]o: "
    )
    sys.stderr.flush()
    return _ANSWERS.get(sys.stdin.readline().strip().lower(), "no")


CustomOperators = Annotated[list[str] | None, option("FILE", "Library with operators; may be repeated.")]


@dataclass(frozen=True)
class ProviderOptions:
    """Options for the provider that runs networks."""

    providers: Annotated[
        list[str] | None,
        option(
            "--provider NAME[:KEY=VALUE,...]",
            "Execution provider, by default that of the folder's target; more in order of preference.",
        ),
    ] = None
    provider_options: Annotated[
        list[str] | None, option("--provider-option KEY=VALUE", "Option of the first provider; may be repeated.")
    ] = None
    device: Annotated[str | None, option("DEVICE", "Number of the device, or a part of its name.")] = None
    session_options: Annotated[
        list[str] | None,
        option("--session-option KEY=VALUE", "Session configuration of ONNX Runtime; may be repeated."),
    ] = None
    threads: Annotated[int | None, option("N", "Threads within an operator.", min=1)] = None
    keep_compiled: Annotated[
        bool,
        option(
            "--keep-compiled",
            "Keep networks as they are compiled for the CPU, so that they open at once; up to twice the bytes of "
            "their weights, see `olivelike cache size`.",
        ),
    ] = False

    def settings(self, folder: Path) -> "SessionSettings":
        """Return the settings for a folder: those of its target, as far as the command line says nothing else.

        Raises `UsageError` for an unknown provider or level, or what is no pair. Raises `SessionError` if a provider is
        not installed; known before anything heavy is imported.
        """
        from olivelike.errors import UsageError
        from olivelike.runtime.pipeline.pipeline_folder import read_folder_target, target_settings
        from olivelike.runtime.sessions import session_settings as read
        from olivelike.runtime.sessions.compiled import compiled_folder
        from olivelike.runtime.sessions.providers import OPENVINO, require_provider

        base = read.choose_providers(target_settings(read_folder_target(folder)), self.providers or ())
        base = read.set_options(base, read.parse_pairs(self.provider_options or (), "--provider-option"))
        entries = read.parse_pairs(self.session_options or (), "--session-option")
        if self.keep_compiled and not (base.is_cpu_alone or base.provider.name == OPENVINO):
            raise UsageError(
                "--keep-compiled is for the providers cpu and openvino; what others keep is kept anyway; leave it out"
            )
        for choice in base.providers if self.providers else ():
            require_provider(choice.provider)
        return replace(
            base,
            compiled=compiled_folder() if self.keep_compiled else base.compiled,
            keep_compiled=self.keep_compiled,
            device=read.parse_device(self.device) if self.device is not None else base.device,
            session_config={**base.session_config, **entries},
            intra_threads=self.threads or 0,
        )


@dataclass(frozen=True)
class LoadOptions(ProviderOptions):
    """Options for the provider, and for what ONNX Runtime makes of a network as it loads."""

    dimensions: Annotated[
        list[str] | None, option("--dimension NAME=SIZE", "Fix a dynamic dimension by its name; may be repeated.")
    ] = None
    graph_optimization: Annotated[
        str | None, option("LEVEL", "What ONNX Runtime may rewrite as it loads: none, basic, extended, layout or all.")
    ] = None
    custom_operators: CustomOperators = None

    def settings(self, folder: Path) -> "SessionSettings":
        """Return the settings for a folder, as `ProviderOptions.settings`."""
        from olivelike.runtime.sessions.session_settings import parse_dimensions, parse_optimization

        base = super().settings(folder)
        level = self.graph_optimization
        return replace(
            base,
            dimensions=parse_dimensions(self.dimensions or ()),
            optimization=parse_optimization(level) if level is not None else base.optimization,
            custom_operators=tuple(self.custom_operators or ()),
        )


@dataclass(frozen=True)
class AllSessionOptions(LoadOptions):
    """All that can be set for the sessions of a pipeline."""

    run_options: Annotated[
        list[str] | None, option("--run-option KEY=VALUE", "Run configuration of ONNX Runtime; may be repeated.")
    ] = None
    inter_threads: Annotated[int | None, option("N", "Operators that run at once.", min=1)] = None
    cuda_graph: Annotated[
        bool, option("--cuda-graph", "Record each network's work on the GPU once, and replay it.")
    ] = False
    profile: Annotated[Path | None, option("PREFIX", "Write ONNX Runtime's profiles under such names.")] = None
    memory_limit: Annotated[
        str | None,
        option("SIZE", "What networks open at once may have, such as 4GB: others are closed, and opened again."),
    ] = None

    def settings(self, folder: Path) -> "SessionSettings":
        """Return the settings for a folder, as `ProviderOptions.settings`."""
        from olivelike._text import byte_count
        from olivelike.runtime.sessions.compiled import compiled_folder
        from olivelike.runtime.sessions.session_settings import parse_pairs

        base = super().settings(folder)
        return replace(
            base,
            compiled=compiled_folder(),
            run_config={**base.run_config, **parse_pairs(self.run_options or (), "--run-option")},
            inter_threads=self.inter_threads or 0,
            cuda_graph=self.cuda_graph,
            profile=self.profile,
            memory_limit=byte_count(self.memory_limit, "--memory-limit") if self.memory_limit else None,
        )
