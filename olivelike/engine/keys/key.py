"""Keys: what decides a node's result, as JSON, and its digest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from olivelike.digest import digest_json


@dataclass(frozen=True)
class Key:
    """All that decides one node's result."""

    name: str
    """Pass name, or `load` or `materialize`."""
    code: str
    """Digest over the pass's module and the local modules that it imports."""
    modules: dict[str, str]
    """Digest of each of those modules, by name; explains a changed `code`."""
    options: dict[str, Any]
    """The step's options after defaults."""
    facets: dict[str, str]
    """Digest of each facet that the pass reads."""
    target: dict[str, Any] | None = None
    """Facts of the target, if the pass reads them."""
    tools: dict[str, str] = field(default_factory=dict)
    """Version of each library that the code imports, and of each tool that the pass declares."""
    named: dict[str, str] = field(default_factory=dict)
    """Digest of each data file and environment variable that the pass names."""

    @cached_property
    def digest(self) -> str:
        """SHA-256, 64 hexadecimal digits."""
        named = [self.named] if self.named else []
        return digest_json(
            ["node/1", self.name, self.code, self.options, self.facets, self.target, self.tools, *named],
        )

    @property
    def maker(self) -> str:
        """Digest of what works, without what it works on: pass, code, tools, and data files that it names."""
        named = [self.named] if self.named else []
        return digest_json(["maker/1", self.name, self.code, self.tools, *named])

    def inputs(self) -> dict[str, Any]:
        """Return the parts as JSON, for records and for `explain`."""
        return {
            "pass": self.name,
            "code": self.code,
            "modules": self.modules,
            "options": self.options,
            "facets": self.facets,
            "target": self.target,
            "tools": self.tools,
            "named": self.named,
        }
