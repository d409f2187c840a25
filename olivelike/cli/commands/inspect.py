"""`olivelike inspect`: what an ONNX file holds, what targets make of it, and what is installed to run it."""

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from olivelike._untrusted import Json
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found
from olivelike.errors import SessionError, UsageError


def inspect(
    model: Annotated[Path, argument("MODEL", "An ONNX file.")],
    targets: Annotated[list[str] | None, option("--target TARGET", "Ask this target alone; may be repeated.")] = None,
    opened: Annotated[str | None, option("--open PROVIDER", "Also open it on this provider, with its weights.")] = None,
    weights: Annotated[Path | None, option("FILE", "Open it with this data file in place of its own.")] = None,
    custom_operators: shared.CustomOperators = None,
    json: shared.Json = False,
) -> None:
    """Say what an ONNX file holds, without reading weights.

    For each target also what it would leave to the CPU, and what the installed runtimes read.
    """
    from olivelike.sources.files.weight_table import require_onnx_model

    require_onnx_model(model)  # What needs no library is told before one is imported.
    from olivelike.graphs.inspect import inspect_model
    from olivelike.model.plugin_targets import all_targets
    from olivelike.model.targets import find_target
    from olivelike.runtime.sessions.load_failure import version_problems
    from olivelike.runtime.sessions.providers import installed_offers
    from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

    asked = [find_target(name) for name in targets] if targets else all_targets()
    if (weights or custom_operators) and not opened:
        raise UsageError("--weights and --custom-operators say how --open opens the file; give that, too")
    operators = tuple(custom_operators or ())
    settings = (
        SessionSettings((parse_provider(opened),), custom_operators=operators, weights=weights) if opened else None
    )
    inspection = inspect_model(model, asked)
    offers = {
        offer: list(version_problems(inspection.opsets.get("ai.onnx", 0), inspection.ir_version, offer))
        for offer in installed_offers()
    }
    failure = None
    try:
        seconds = _open(model, settings) if settings else None
    except SessionError as error:
        seconds, failure = None, error
    installed = [{**offer.to_json(), "problems": problems} for offer, problems in offers.items()]
    report: Json = {**inspection.to_json(), "installed": installed}
    lines = [*inspection.summary_lines(), "installed here"]
    for offer, problems in offers.items():
        lines += [f"  {offer}", *(f"    {problem}" for problem in problems)]
    if settings:
        refused = failure and str(failure)
        report["open"] = {"provider": settings.provider.name, "seconds": seconds, "error": refused}
        if seconds is not None:
            lines.append(f"opens on {settings.provider.name} in {seconds:.2f} s")
    write_found(report, lines, json=json)
    if failure is not None:
        raise failure


def _open(model: Path, settings: Any) -> float:
    from olivelike.runtime.sessions.open_session import open_session

    begin = perf_counter()
    open_session(model, settings)
    return perf_counter() - begin
