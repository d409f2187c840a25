"""Reasons that a network could not be opened: what its file asks for against what the runtime offers."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._installed import lacking
from olivelike.errors import SessionError, SourceError
from olivelike.model.targets import TARGETS, Target
from olivelike.runtime.sessions.engine_errors import lacks_memory, reason
from olivelike.runtime.sessions.providers import (
    CPU,
    OPENVINO,
    RuntimeOffer,
    onnxruntime_offer,
    openvino_offer,
    require_provider,
)

if TYPE_CHECKING:
    from olivelike.graphs.inspect import Inspection
    from olivelike.runtime.sessions.session_settings import SessionSettings

_OWN_DOMAINS: Final = frozenset(
    {"ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)
"""Domains that ONNX Runtime has operators of."""

_NO_ADAPTER: Final = "Failed to get a WebGPU adapter"


def load_failure(path: Path, error: Exception, settings: SessionSettings) -> SessionError:
    """Return what to raise when an engine refuses a file; the file is read again, without its weights."""
    where = settings.provider.short_name
    message = reason(error)
    if _NO_ADAPTER in message:
        says = message[message.index(_NO_ADAPTER) :]
        return SessionError(
            f"{where}: no graphics card is found ({says}); install its driver (on Linux, that for Vulkan), or run "
            "with --provider cpu"
        )
    if lacks_memory(error):
        return SessionError(f"{path}: out of memory as it was opened on {where} ({message})")
    offer = openvino_offer() if settings.provider.name == OPENVINO else onnxruntime_offer()
    assert offer is not None
    try:
        from olivelike.graphs.inspect.inspection import inspect_model

        inspection = inspect_model(path, known_targets(settings))
    except SourceError as broken:
        return SessionError(f"{broken}; it can't be opened on {where}")
    except ModuleNotFoundError as absent:
        if (more := lacking(absent)) is None:
            raise
        says = f"{offer.name} {offer.version} says: {message}"
        return SessionError(f"{path}: can't be opened on {where}: {says}; to say what the file asks for, {more}")
    found = [*data_problems(inspection, settings), *version_problems(inspection, offer)]
    found.extend(_operator_problems(inspection, settings, where))
    why = "; ".join([*found, f"{offer.name} {offer.version} says: {message}"])
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


_UNCONVERTED: Final = re.compile(r"No conversion rule found for operations: (.+)")
_SHOWN: Final = 5


def operators_without_kernel(path: Path, settings: SessionSettings) -> str:
    """Return the operators of a file that nothing runs, as text; empty if all run, or nothing is known.

    ONNX Runtime's kernels are looked up in the tables of `olivelike.model.targets`. OpenVINO is asked itself: it takes
    more than `olivelike` writes for it. Raises `SessionError` if OpenVINO can't read the file for another reason, or is
    not installed, and `SourceError` if the file is no ONNX model.
    """
    if settings.provider.name == OPENVINO:
        require_provider(settings.provider)
        return _unconverted(path)
    targets = known_targets(settings)
    if not targets:
        return ""
    from olivelike.graphs.inspect import inspect_model

    return count_operators(left_by_all(inspect_model(path, targets)))


def known_targets(settings: SessionSettings) -> tuple[Target, ...]:
    """Return the targets of the asked providers and of the CPU, which takes what they leave.

    None if a provider is no target: nothing is known of its kernels.
    """
    names = [choice.provider.name for choice in settings.providers]
    by_provider = {target.provider: target for target in TARGETS.values() if target.provider != OPENVINO}
    if any(name not in by_provider for name in names):
        return ()
    return tuple(by_provider[name] for name in dict.fromkeys([*names, CPU]))


def left_by_all(inspection: Inspection) -> dict[str, int]:
    """Return the operators that each target of an inspection leaves, with the number of their nodes."""
    left = [{(node.name, node.operator) for node in nodes} for nodes in inspection.left_to_cpu.values()]
    counts = Counter(operator for _, operator in set.intersection(*left)) if left else Counter[str]()
    return dict(counts.most_common())


def count_operators(operators: Mapping[str, int]) -> str:
    """Return operators and their counts as text, the most frequent first."""
    listed = [f"{operator} ({count})" for operator, count in operators.items()]
    return ", ".join([*listed[:_SHOWN], *(["…"] if len(listed) > _SHOWN else [])])


def _unconverted(path: Path) -> str:
    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    try:
        openvino.Core().read_model(path)
    except RuntimeError as error:
        found = _UNCONVERTED.search(str(error))
        if found is None:
            raise SessionError(f"{path}: can't be read by OpenVINO: {reason(error)}") from error
        return found[1]
    return ""
