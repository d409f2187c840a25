"""Why a network could not be opened: what its file asks for against what the runtime offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.errors import SessionError, SourceError
from olivelike.runtime.sessions.kernels import count_operators, known_targets, left_by_all
from olivelike.runtime.sessions.offer import onnxruntime_offer, openvino_offer
from olivelike.runtime.sessions.providers import OPENVINO
from olivelike.runtime.sessions.session_failures import lacks_memory, reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from olivelike.graphs.inspect import Inspection
    from olivelike.runtime.sessions.offer import RuntimeOffer
    from olivelike.runtime.sessions.session_settings import SessionSettings

_OWN_DOMAINS: Final = frozenset(
    {
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
    }
)
"""Domains that ONNX Runtime has operators of."""


def load_failure(path: Path, error: Exception, settings: SessionSettings) -> SessionError:
    """Return what to raise when an engine refuses a file; the file is read again, without its weights."""
    from olivelike.graphs.inspect import inspect_model

    where = settings.provider.short_name
    said = reason(error)
    if lacks_memory(error):
        return SessionError(f"{path}: out of memory as it was opened on {where} ({said})")
    try:
        inspection = inspect_model(path, known_targets(settings))
    except SourceError as broken:
        return SessionError(f"{broken}; it can't be opened on {where}")
    offer = openvino_offer() if settings.provider.name == OPENVINO else onnxruntime_offer()
    assert offer is not None
    found = [*data_problems(inspection, settings), *version_problems(inspection, offer)]
    found.extend(_operator_problems(inspection, settings, where))
    why = "; ".join([*found, f"{offer.name} {offer.version} says: {said}"])
    return SessionError(f"{path}: can't be opened on {where}: {why}")


def data_problems(inspection: Inspection, settings: SessionSettings) -> Iterator[str]:
    """Yield data files that are missing or cut short."""
    for file in inspection.data_files:
        if settings.weights is not None or file.complete:
            continue
        have = "is missing" if file.actual_bytes is None else f"has {file.actual_bytes:,} bytes"
        yield f"its data file {file.location} {have}, and {file.expected_bytes:,} bytes are needed"


def version_problems(inspection: Inspection, offer: RuntimeOffer) -> Iterator[str]:
    """Yield opsets and IR versions that are too new for an engine."""
    opset = inspection.opsets.get("ai.onnx", 0)
    for what, asked, highest in (
        ("opset", opset, offer.opset),
        ("IR version", inspection.ir_version, offer.ir_version),
    ):
        if highest is not None and asked > highest:
            yield f"it asks for {what} {asked}, {offer.name} {offer.version} reads up to {highest}"


def _operator_problems(inspection: Inspection, settings: SessionSettings, where: str) -> Iterator[str]:
    local = {name.partition("::")[0] for name in inspection.functions}
    foreign = {
        f"{domain}::{name}": count
        for domain, counts in inspection.operators.items()
        if domain not in _OWN_DOMAINS | local
        for name, count in counts.items()
    }
    if foreign and not settings.custom_operators:
        yield f"its operators {count_operators(foreign)} need a library of operators, and none is given"
    left = {name: count for name, count in left_by_all(inspection).items() if name not in foreign}
    if left:
        yield f"nothing on {where} runs its operators {count_operators(left)}"
