"""Turns whatever foreign code raises while it is imported into a `PluginError` with file and line."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def explain_import(subject: str, folder: Path | None, remedy: str) -> Iterator[None]:
    """Guard the import of a plugin.

    Args:
        subject: what is being imported, for the message.
        folder: the plugin's own folder; the error is placed at the innermost frame in it.
        remedy: what to do, for the message.

    Raises:
        PluginError: for anything that the plugin raises.
    """
    try:
        yield
    except PluginError:
        raise
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else subject
        text = (error.text or "").strip()
        shown = f"\n  {text}" if text else ""
        raise PluginError(f"{place}: syntax error: {error.msg}; {remedy}{shown}") from error
    # Foreign code may raise anything, even SystemExit; all of it is the plugin's fault.
    except (Exception, SystemExit) as error:
        place = _innermost_place(error, folder) or subject
        if isinstance(error, ModuleNotFoundError) and error.name:
            top = error.name.partition(".")[0]
            remedy = f"install the distribution that has {top!r}, put {top}.py beside the plugin, or {remedy}"
        raise PluginError(f"{place}: {type(error).__name__}: {error}; {remedy}") from error


def _innermost_place(error: BaseException, folder: Path | None) -> str | None:
    """Return `file:line` of the innermost frame that is the plugin's own."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and Path(frame.filename).is_file()
    ]
    if folder is not None:
        frames = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    else:
        machinery = (str(Path(__file__).parent), str(Path(traceback.__file__).parent / "importlib"))
        frames = [frame for frame in frames if not frame.filename.startswith(machinery)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
