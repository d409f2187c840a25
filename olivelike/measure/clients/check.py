"""`check_client`: a folder against what one client insists on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from olivelike._text import did_you_mean
from olivelike._untrusted import Json
from olivelike.errors import UsageError
from olivelike.measure.clients.client_folder import ClientFolder, Unreadable
from olivelike.measure.clients.requirements import CLIENTS

Status = Literal["ok", "failed", "advice"]


@dataclass(frozen=True)
class Verdict:
    """How a folder stands to one requirement."""

    requirement: str
    status: Status
    """`advice`: the client works without it, but worse."""
    reason: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        if self.status == "ok":
            return f"ok      {self.requirement}"
        return f"{self.status:<8}{self.requirement}: {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class CheckResult:
    """How a folder stands to all that a client insists on."""

    client: str
    folder: str
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> int:
        """Count of requirements that are not met."""
        return sum(verdict.status == "failed" for verdict in self.verdicts)

    def to_json(self) -> Json:
        """Return the result as JSON values."""
        return {
            "client": self.client,
            "folder": self.folder,
            "ok": not self.failed,
            "requirements": [asdict(verdict) for verdict in self.verdicts],
        }


def check_client(path: str | Path, client: str) -> CheckResult:
    """Check a folder, of whatever origin, against what a client insists on; no weight is read.

    Args:
        path: A pipeline's folder; for `a1111-dml`, one that holds the UNet's file at any depth.
        client: A name in `CLIENTS`.

    Raises:
        UsageError: for an unknown client, with the nearest name.
        SourceError: if there is no such folder.
    """
    if client not in CLIENTS:
        raise UsageError(f"unknown client {client!r}; {did_you_mean(client, CLIENTS, 'clients')}")
    folder = ClientFolder(Path(path))
    return CheckResult(client, str(path), tuple(_judge(folder, client)))


def _judge(folder: ClientFolder, client: str) -> Iterator[Verdict]:
    """Yield a verdict for each requirement; of those that can't be judged for one reason, for the first alone."""
    told: set[str] = set()
    for requirement in CLIENTS[client]:
        if not requirement.concerns(folder):
            continue
        try:
            problem = requirement.problem(folder)
        except Unreadable as error:
            problem = str(error)
            if problem in told:
                continue
            told.add(problem)
        if problem is None:
            yield Verdict(requirement.what, "ok")
        else:
            status: Status = "advice" if requirement.only_advised else "failed"
            remedy = requirement.remedy or f"run the workflow with `layout: {client}`"
            yield Verdict(requirement.what, status, problem, remedy)
