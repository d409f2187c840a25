"""What a profile says, as values, JSON and lines of text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class OperatorTime:
    """All nodes of one operator type on one execution provider."""

    operator: str
    provider: str
    """Without its ending: `CPU`, `CUDA`, `Dml`."""
    nodes: int
    milliseconds: float
    """Of all nodes together, in the run of median duration."""
    share: float
    """Of the time of all nodes, from 0 to 1."""


@dataclass(frozen=True)
class NetworkProfile:
    """One network."""

    name: str
    inputs: Mapping[str, str]
    """Shapes by name, such as `2x4x64x64`."""
    milliseconds: float
    """One whole run: that of median duration."""
    operators: tuple[OperatorTime, ...]
    """Slowest first."""

    @property
    def providers(self) -> dict[str, int]:
        """Nodes by execution provider, most first."""
        found: dict[str, int] = {}
        for operator in self.operators:
            found[operator.provider] = found.get(operator.provider, 0) + operator.nodes
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class FolderProfile:
    """The networks of a folder."""

    path: str
    runtime: str
    """Name and version."""
    runs: int
    """How many runs of each network were measured, after one that was not."""
    networks: tuple[NetworkProfile, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        networks = [{**asdict(network), "providers": network.providers} for network in self.networks]
        return {"path": self.path, "runtime": self.runtime, "runs": self.runs, "networks": networks}
