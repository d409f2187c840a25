"""Options that say where and how networks run, in groups for `with_groups`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session_settings import SessionSettings

CustomOperators = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Library with operators; may be repeated.")
]


@dataclass(frozen=True)
class ProviderOptions:
    """Which provider runs networks, and how."""

    providers: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME[:KEY=VALUE,...]",
            help="Execution provider, by default that of the folder's target; more in order of preference.",
        ),
    ] = None
    provider_options: Annotated[
        list[str] | None,
        typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of the first provider; may be repeated."),
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Number of the device, or a part of its name.")
    ] = None
    session_options: Annotated[
        list[str] | None,
        typer.Option(
            "--session-option", metavar="KEY=VALUE", help="Session configuration of ONNX Runtime; may be repeated."
        ),
    ] = None
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads within an operator.", min=1)] = None

    def settings(self, folder: Path) -> "SessionSettings":
        """Return the settings for a folder: those of its target, as far as the command line says nothing else.

        Raises:
            UsageError: for an unknown provider or level, or what is no pair.
            SessionError: if a provider is not installed; known before anything heavy is imported."""
        from olivelike.runtime.pipeline.folder_target import read_folder_target, target_settings
        from olivelike.runtime.sessions import session_settings as read
        from olivelike.runtime.sessions.providers import require_provider

        base = read.choose_providers(target_settings(read_folder_target(folder)), self.providers or ())
        base = read.set_options(base, read.parse_pairs(self.provider_options or (), "--provider-option"))
        entries = read.parse_pairs(self.session_options or (), "--session-option")
        for choice in base.providers if self.providers else ():
            require_provider(choice.provider)
        return replace(
            base,
            device=read.parse_device(self.device) if self.device is not None else base.device,
            session_config={**base.session_config, **entries},
            intra_threads=self.threads or 0,
        )


@dataclass(frozen=True)
class LoadOptions(ProviderOptions):
    """The same, and what ONNX Runtime makes of a network as it loads."""

    dimensions: Annotated[
        list[str] | None,
        typer.Option("--dimension", metavar="NAME=SIZE", help="Fix a dynamic dimension by its name; may be repeated."),
    ] = None
    graph_optimization: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="What ONNX Runtime may rewrite as it loads: none, basic, extended, layout or all."
        ),
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
        list[str] | None,
        typer.Option("--run-option", metavar="KEY=VALUE", help="Run configuration of ONNX Runtime; may be repeated."),
    ] = None
    inter_threads: Annotated[int | None, typer.Option(metavar="N", help="Operators that run at once.", min=1)] = None
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Record each network's work on the GPU once, and replay it.")
    ] = False
    profile: Annotated[
        Path | None, typer.Option(metavar="PREFIX", help="Write ONNX Runtime's profiles under such names.")
    ] = None

    def settings(self, folder: Path) -> "SessionSettings":
        """Return the settings for a folder, as `ProviderOptions.settings`."""
        from olivelike.runtime.sessions.session_settings import parse_pairs

        base = super().settings(folder)
        return replace(
            base,
            run_config={**base.run_config, **parse_pairs(self.run_options or (), "--run-option")},
            inter_threads=self.inter_threads or 0,
            cuda_graph=self.cuda_graph,
            profile=self.profile,
        )
