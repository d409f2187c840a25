"""The plugins that workflow files name, and whether they may run: a workflow may come from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import PluginError
from olivelike.workflow.passes import resolve_plugin
from olivelike.workflow.yaml_tree import Mapping, Scalar, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as SequenceOf

    from olivelike.workflow.findings import Findings, Position
    from olivelike.workflow.passes.allowed_plugins import Ask
    from olivelike.workflow.places import Place


def listed_plugins(root: Mapping, place: Place, findings: Findings) -> Iterator[tuple[str, Position]]:
    """Yield the plugins, each path relative to the file that lists it, and where they are listed."""
    listed = root.entries.get("plugins")
    for item in listed.items if isinstance(listed, Sequence) else ():
        if isinstance(item, Scalar) and isinstance(item.value, str):
            try:
                folder = (item.position.document.path or place.path).parent
                yield resolve_plugin(item.value, folder), item.position
            except PluginError as error:
                findings.add(item.position, str(error))


def require_allowed(plugins: SequenceOf[tuple[str, Position]], ask: Ask | None, findings: Findings) -> None:
    """Let pass what the user named, installed or allowed; ask about the rest, where somebody can be asked.

    Raises:
        WorkflowError: for files and folders that are not allowed; nothing of them has run.
    """
    # What `--set` names is named on the command line, and a module by name is installed.
    files = [
        (Path(plugin), position)
        for plugin, position in plugins
        if position.document.path is not None and Path(plugin).is_absolute()
    ]
    if not files:
        return
    from olivelike.workflow.passes.allowed_plugins import AllowedPlugins, ListedPlugin

    allowed = AllowedPlugins()
    listed = [(ListedPlugin(path, str(position)), position) for path, position in files]
    strange = [(plugin, position) for plugin, position in listed if not allowed.allows(plugin)]
    if not strange:
        return
    asked = [plugin for plugin, _ in strange]
    match ask(asked) if ask is not None else "no":
        case "yes":
            allowed.allow(asked)
        case "always":
            allowed.allow_folders([plugin.folder for plugin in asked])
        case _:
            for plugin, position in strange:
                findings.add(
                    position,
                    f"it would run the code of {plugin.path}, which you have not allowed; read that code, then "
                    "give --allow-plugins",
                )
            findings.raise_if_any()
