"""`olivelike profile`: where nodes run, and what each operator type takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from olivelike._text import count
from olivelike.cli import options as shared
from olivelike.cli.options import LoadOptions, argument, option
from olivelike.cli.stdout import write_found
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from olivelike.measure.result_rows import FolderProfile, NetworkProfile

_SMALLEST = 64
"""Pixels of a side."""
_SHOWN_MS = 0.005
"""Least milliseconds that are shown; they round to a hundredth."""


@shared.with_groups
def profile(
    model: Annotated[Path, argument("FOLDER", "A pipeline's folder, or one ONNX file.")],
    reported: shared.ReportOptions,
    batch_size: Annotated[int, option("N", "Pictures at once; the UNet takes twice as many.", min=1, max=256)] = 1,
    pixels: Annotated[
        str | None, option("--size WxH", "By default what the UNet was trained on, else 512x512.")
    ] = None,
    height: Annotated[int | None, option("PIXELS", "The same as in --size, one by one.", min=_SMALLEST)] = None,
    width: Annotated[int | None, option("PIXELS", "Likewise.", min=_SMALLEST)] = None,
    runs: Annotated[
        int | None,
        option(
            "N",
            "Measured runs of each network; by default 3, and of a quick one as many as half a second takes.",
            min=1,
            max=10_000,
        ),
    ] = None,
    top: Annotated[int, option("N", "How many operator types of each network to show.", min=1)] = 10,
    json: shared.Json = False,
    *,
    session: LoadOptions,
) -> None:
    """Say where nodes run, and what each operator type takes.

    From ONNX Runtime's own profile of a few runs on random inputs.
    """
    from olivelike.measure.profiling import profile_folder
    from olivelike.measure.report.page import PROFILE_FILE

    width, height = shared.chosen_sides(pixels, width, height)
    if min(width or _SMALLEST, height or _SMALLEST) < _SMALLEST:
        raise UsageError(f"--size {pixels} is too small; use at least {_SMALLEST}x{_SMALLEST}")
    recorded = reported.run(model)
    settings = session.settings(model)
    found = profile_folder(model, settings, batch_size=batch_size, height=height, width=width, runs=runs)
    write_found(
        found.to_json(),
        _lines(found, top),
        json=json,
        add_to_report=lambda: recorded.add_to_report(PROFILE_FILE, found.to_json()) if recorded else None,
    )


def _lines(found: "FolderProfile", top: int) -> "Iterator[str]":
    yield f"{found.path}, {found.runtime}"
    for network in found.networks:
        yield from _network_lines(network, top)


def _network_lines(network: "NetworkProfile", top: int) -> "Iterator[str]":
    from olivelike._table import Table
    from olivelike.measure.result_rows import OPERATOR_COLUMNS

    placed = ", ".join(f"{provider} {nodes:,}" for provider, nodes in network.providers.items())
    inputs = ", ".join(f"{name} {shape}" for name, shape in network.inputs.items())
    yield ""
    yield f"{network.name}: {network.milliseconds:,.2f} ms a run, the median of {network.runs}, nodes on {placed}"
    yield f"  {inputs}"
    yield from (f"  {line}" for line in Table.of(network.operators[:top], OPERATOR_COLUMNS).lines())
    rest = network.operators[top:]
    if rest:
        yield f"  {count(len(rest), 'other')}: {sum(operator.share for operator in rest):.1%}"
    if network.between_nodes >= _SHOWN_MS:
        yield f"  {network.between_nodes:,.2f} ms of a run lie between the nodes"
    if network.note is not None:
        yield f"  note: {network.note}"
