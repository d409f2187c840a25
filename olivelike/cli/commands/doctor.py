"""`olivelike doctor`: what works on this machine, and what is broken."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike.cli import options as shared
from olivelike.cli.options import argument
from olivelike.cli.stdout import write_found

if TYPE_CHECKING:
    from olivelike.measure.doctor import Diagnosis

_BROKEN = 3


def doctor(
    folder: Annotated[
        Path | None, argument("DIR", "An optimised folder: time to its first step, and memory, are measured.")
    ] = None,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Check versions, providers, memory and disks.

    Each provider runs one node, since listed does not mean usable. The exit status is 3 if something is broken.
    """
    from olivelike.measure.doctor import diagnose

    diagnosis = diagnose(shared.store_dir(cache_dir), optimised=folder)
    write_found(diagnosis.to_json(), _lines(diagnosis), json=json)
    if diagnosis.broken:
        raise typer.Exit(_BROKEN)


def _lines(diagnosis: "Diagnosis") -> Iterator[str]:
    from olivelike._table import Table
    from olivelike._text import size
    from olivelike.measure.doctor.starts import start_table

    host = diagnosis.host
    memory = f"{size(diagnosis.memory_available_bytes)} of {size(host.memory_bytes)} memory available"
    yield f"{host.system} {host.machine}, {host.cores} cores, {memory}"
    yield ""
    yield from Table(("package", "version"), list(diagnosis.versions.items())).lines()
    yield ""
    rows = [(check.name, check.status, check.detail) for check in diagnosis.providers]
    yield from Table(("provider", "state", ""), rows).lines()
    yield ""
    targets = [(check.name, "yes" if check.usable else "no", check.detail) for check in diagnosis.targets]
    yield from Table(("target", "runs here", ""), targets).lines()
    yield "Results can be made for every target on any machine."
    yield ""
    folders = [
        (folder.purpose, folder.path if folder.exists else f"{folder.path} (absent)", size(folder.free_bytes))
        for folder in diagnosis.folders
    ]
    yield from Table(("folder", "path", "free"), folders).lines()
    yield ""
    if diagnosis.starts:
        yield from start_table(diagnosis.starts).lines()
        yield ""
    yield from (f"{finding.severity}: {finding.message}" for finding in diagnosis.findings)
    if not diagnosis.findings:
        yield "nothing is wrong"
