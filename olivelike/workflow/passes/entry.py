"""One known pass: its name, its class, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.pass_api import Pass


@dataclass(frozen=True)
class PassEntry:
    """A pass as the registry knows it."""

    name: str
    cls: type[Pass]
    module_file: Path | None
    """The file that defines the class; `None` when Python does not say."""
    origin: str
    """For people: `built-in`, `entry point of DISTRIBUTION` or `plugin PATH`."""
    plugin: str | None
    """What `Registry.load_pass` needs to find it again in another process; `None` for a built-in pass."""
