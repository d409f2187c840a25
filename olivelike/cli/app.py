"""The app: its commands by name, and what happens around each of them."""

# Typer reads annotations as they are, so that files with commands have no `from __future__ import annotations`.

import importlib
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from olivelike.cli.display.help_pages import GROUPS, Command, Group
from olivelike.cli.failures import exit_status, signals_as_interrupts
from olivelike.cli.stdout import write_line
from olivelike.errors import Interrupted

COMMANDS = tuple(name for names in GROUPS.values() for name in names)
"""Each is the function of that name in the module of that name, or the group `app` in it."""


class Commands(Group):
    """The commands, imported when they are named."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # Suggestions for a mistyped name come from here.

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  (typer's signature)
        """Return the names, in the order of `--help`."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the titles of their groups, each with its purpose."""
        longest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            rows = [
                (f"{name:<{longest}}", self.get_command(ctx, name).get_short_help_str(formatter.width))
                for name in names
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command, or `None` if there is none of that name."""
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interruption becomes an error with its own exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows `olivelike`; by default the arguments of the process.

    Returns:
        The exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # A path may hold what the terminal can't show.
    command = typer.main.get_command(_app)
    with exit_status() as status, signals_as_interrupts():
        code = command.main(arguments, prog_name="olivelike", standalone_mode=False)
        status.code = code if isinstance(code, int) else 0
    return status.code


def _load(name: str) -> Any:
    spelled = name.replace("-", "_")
    module = importlib.import_module(f"olivelike.cli.commands.{spelled}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(cls=Command)(getattr(module, spelled))
    command = typer.main.get_command(app)
    command.name = name
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write_line(f"olivelike {version('olivelike')}")
        raise typer.Exit


_app = typer.Typer(
    cls=Commands, rich_markup_mode=None, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}
)


@_app.callback()
def olivelike(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Optimise Stable Diffusion pipelines for ONNX Runtime, as a workflow file says."""
