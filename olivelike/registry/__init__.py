"""Where passes come from: the built-in ones, installed plugins, and the plugins of a workflow."""

from olivelike.registry.code_digest import CodeDigest, code_digest, module_code_digest
from olivelike.registry.entry import PassEntry
from olivelike.registry.new_pass import new_pass
from olivelike.registry.plugin_files import resolve_plugin
from olivelike.registry.registry import Registry
from olivelike.registry.tool_versions import tool_versions

__all__ = [
    "CodeDigest",
    "PassEntry",
    "Registry",
    "code_digest",
    "module_code_digest",
    "new_pass",
    "resolve_plugin",
    "tool_versions",
]
