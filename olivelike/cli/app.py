"""The app: its commands by name, and what becomes of errors and signals: a message, and an exit status."""

# Typer reads annotations as they are, so that files with commands have no `from __future__ import annotations`.

import contextlib
import importlib
import io
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from olivelike._extras import commands, imported
from olivelike._installed import install_all
from olivelike.cli import stdout
from olivelike.cli.display.help_pages import GROUPS, Group, as_command
from olivelike.cli.stdout import write_line
from olivelike.errors import Interrupted, OlivelikeError, UsageError

_Mistake: Any = typer.BadParameter.__base__
"""Error of typer for a command line that it can't read; it exports this kind of it alone."""

READER_LEFT = 141
"""Exit status when nobody reads the output any more: what shells give for SIGPIPE."""


@dataclass
class Status:
    """Exit code that the process will end with."""

    code: int = 0


@contextlib.contextmanager
def exit_status() -> Iterator[Status]:
    """Turn what the block raises into an exit status, and tell the user."""
    status = Status()
    try:
        yield status
    except SystemExit as error:
        status.code = error.code if isinstance(error.code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        status.code = _report(Interrupted("interrupted"))
    except _Mistake as error:
        status.code = _refuse(error)
    except OlivelikeError as error:
        status.code = _report(error)
    except Exception as error:  # noqa: BLE001  (the last handler)
        from olivelike._installed import lacking

        if absent := lacking(error):
            status.code = _report(absent)
            return
        status.code = 1
        stdout.write_error(
            f"error: {type(error).__name__}: {error}\n"
            f"  this is a bug in olivelike; please report it with the traceback in {_write_log(error)}"
        )


def _refuse(mistake: Any) -> int:
    """Tell what is wrong with a command line; without any argument the help is told."""
    message, context = mistake.format_message(), mistake.ctx
    if context is None:
        return _report(UsageError(message))
    if message == context.get_help():
        stdout.write_error(message)
        return UsageError.exit_code
    more = install_all() if context.parent is None else None  # Commands of extras are known where those are.
    message = message.replace(": Value error, ", ": ")  # Pydantic's, through which options are read.
    told = f"`{context.command_path} --help` says what it takes" + (f"; for more, {more}" if more else "")
    return _report(UsageError(f"{message}\n  {told}"))


def _report(error: OlivelikeError) -> int:
    if stdout.reader_left:
        return READER_LEFT
    stdout.write_error(f"error: {error}")
    return error.exit_code


def _write_log(error: Exception) -> str:
    """Write the traceback to a new file in the system's temporary folder and return its path."""
    import traceback

    number, path = tempfile.mkstemp(prefix="olivelike-", suffix=".log")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"command: {sys.argv}\npython: {sys.version}\nsystem: {platform.platform()}\n\n")
        file.write("".join(traceback.format_exception(error)))
    return path


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM and its like, so that children are stopped and temp files removed.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:  # noqa: ARG001  (what `signal` calls it with)
    raise KeyboardInterrupt


COMMANDS = tuple(name for names in GROUPS.values() for name in names)
"""Each is the function of that name in the module of that name, the group `app` in it, or what an extra says."""


class Commands(Group):
    """The commands, imported when they are named."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # Suggestions for a mistyped name come from here.

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  (typer's signature)
        """Return the names, in the order of `--help`."""
        return [name for name in COMMANDS if is_here(name)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the titles of their groups, each with its purpose."""
        longest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            rows = [
                (f"{name:<{longest}}", self.get_command(ctx, name).get_short_help_str(formatter.width))
                for name in names
                if is_here(name)
            ]
            if rows:
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
    """Run one command. `arguments` are what follows `olivelike`, by default those of the process.

    Returns the exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # A path may hold what the terminal can't show.
    command = typer.main.get_command(_app)
    with exit_status() as status, signals_as_interrupts():
        code = command.main(arguments, prog_name="olivelike", standalone_mode=False)
        status.code = code if isinstance(code, int) else 0
    return status.code


def is_here(name: str) -> bool:
    """Tell whether a command is installed: `olivelike-runtime` has those that draw."""
    return name in commands() or Path(__file__).with_name("commands").joinpath(f"{_spelled(name)}.py").is_file()


def _spelled(name: str) -> str:
    return name.replace("-", "_")


def _load(name: str) -> Any:
    if (extra := commands().get(name)) is not None:
        return as_command(name, imported(extra.place))
    spelled = _spelled(name)
    module = importlib.import_module(f"olivelike.cli.commands.{spelled}")
    return as_command(name, getattr(module, "app", None) or getattr(module, spelled))


def _show_version(wanted: bool) -> None:
    if wanted:
        from olivelike import __version__

        write_line(f"olivelike {__version__}")
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
