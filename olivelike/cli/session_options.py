"""Options that say where and how networks run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session_settings import SessionSettings

Providers = Annotated[
    list[str] | None,
    typer.Option(
        "--provider",
        metavar="NAME[:KEY=VALUE,...]",
        help="Execution provider, by default that of the folder's target; more in order of preference.",
    ),
]
ProviderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--provider-option", metavar="KEY=VALUE", help="Option of the first provider; may be repeated."
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="Number of the device, or a part of its name."),
]
SessionOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--session-option",
        metavar="KEY=VALUE",
        help="Session configuration of ONNX Runtime; may be repeated.",
    ),
]
RunOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--run-option", metavar="KEY=VALUE", help="Run configuration of ONNX Runtime; may be repeated."
    ),
]
Dimensions = Annotated[
    list[str] | None,
    typer.Option(
        "--dimension", metavar="NAME=SIZE", help="Fix a dynamic dimension by its name; may be repeated."
    ),
]
GraphOptimization = Annotated[
    str | None,
    typer.Option(
        "--graph-optimization",
        metavar="LEVEL",
        help="What ONNX Runtime may rewrite as it loads: none, basic, extended, layout or all.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads within an operator.", min=1)
]
InterThreads = Annotated[
    int | None, typer.Option("--inter-threads", metavar="N", help="Operators that run at once.", min=1)
]
CustomOperators = Annotated[
    list[str] | None,
    typer.Option("--custom-operators", metavar="FILE", help="Library with operators; may be repeated."),
]
CudaGraph = Annotated[
    bool, typer.Option("--cuda-graph", help="Record each network's work on the GPU once, and replay it.")
]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="PREFIX", help="Write ONNX Runtime's profiles under such names."),
]


def session_settings(
    folder: Path,
    providers: list[str] | None,
    provider_options: list[str] | None,
    device: str | None,
    session_options: list[str] | None,
    run_options: list[str] | None,
    dimensions: list[str] | None,
    graph_optimization: str | None,
    threads: int | None,
    custom_operators: list[str] | None,
    cuda_graph: bool,
    profile: Path | None,
    inter_threads: int | None = None,
) -> "SessionSettings":
    """Return the settings for a folder: those of its target, as far as the command line says nothing else.

    Raises:
        UsageError: for an unknown provider or level, or what is no pair.
        SessionError: if a provider is not installed, which is told before anything heavy is imported.
    """
    from dataclasses import replace

    from olivelike.runtime.pipeline.folder_target import read_folder_target, target_settings
    from olivelike.runtime.sessions import session_settings as parse
    from olivelike.runtime.sessions.providers import require_provider

    base = parse.choose_providers(target_settings(read_folder_target(folder)), providers or ())
    base = parse.set_options(base, parse.parse_pairs(provider_options or (), "--provider-option"))
    level = graph_optimization
    chosen = replace(
        base,
        device=parse.parse_device(device) if device is not None else base.device,
        session_config={
            **base.session_config,
            **parse.parse_pairs(session_options or (), "--session-option"),
        },
        run_config={**base.run_config, **parse.parse_pairs(run_options or (), "--run-option")},
        dimensions=parse.parse_dimensions(dimensions or ()),
        optimization=parse.parse_optimization(level) if level is not None else base.optimization,
        intra_threads=threads or 0,
        inter_threads=inter_threads or 0,
        custom_operators=tuple(custom_operators or ()),
        cuda_graph=cuda_graph,
        profile=profile,
    )
    for choice in chosen.providers if providers else ():
        require_provider(choice.provider)
    return chosen


def check_folder(folder: Path, settings: "SessionSettings") -> None:
    """Check that a folder's networks can be opened as asked, before anything heavy is imported.

    Raises:
        SourceError: if it is no pipeline's folder.
        SessionError: if a provider is not installed, or nothing runs operators of a network.
    """
    from olivelike.errors import SessionError
    from olivelike.runtime.pipeline.folder_target import check_folder_target, other_way, read_folder_target
    from olivelike.runtime.pipeline.pipeline_folder import open_folder
    from olivelike.runtime.sessions.providers import require_provider

    models = open_folder(folder).models(safety=False)
    target = read_folder_target(folder)
    for choice in settings.providers:
        try:
            require_provider(choice.provider)
        except SessionError as error:
            if target is None or choice.provider.target != target.name:
                raise
            raise SessionError(f"{error}; to use the folder on this machine, {other_way(models)}") from error
    if target is not None:
        check_folder_target(target.name, settings, models)
