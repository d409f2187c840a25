"""`olivelike report`: the HTML report of a run."""

from pathlib import Path
from typing import Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import argument, option


def report(
    run: Annotated[
        str | None,
        argument("RUN", "A run's id or its beginning, or a workflow's name for its last run; by default the last run."),
    ] = None,
    output: Annotated[Path | None, option("-o --output FILE", "Write here, not beside the run's logs.")] = None,
    show: Annotated[bool, option("--open", "Also open it in the browser.")] = False,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Write the report of a run again, and say where it is.

    It is one HTML file that needs no network: steps, operators, sizes, verification, environment.
    """
    from olivelike.cli.stdout import require_writable, write_found
    from olivelike.measure.report.recorded_runs import find_run

    if output is not None:
        require_writable(output)
    found = find_run(shared.open_store(cache_dir, writes=True), run)
    path = found.write_report(output)
    write_found({"run_id": found.id, "report": str(path)}, [str(path)], json=json)
    if show:
        import webbrowser

        webbrowser.open(path.as_uri())
