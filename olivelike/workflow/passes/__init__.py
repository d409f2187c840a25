"""Sources of passes: the built-in ones, installed plugins, and the plugins of a workflow."""

from olivelike.workflow.passes.new_pass import new_pass
from olivelike.workflow.passes.plugin_files import resolve_plugin
from olivelike.workflow.passes.registry import PassEntry, Registry

__all__ = ["PassEntry", "Registry", "new_pass", "resolve_plugin"]
