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
from olivelike.graphs.inspect.skeleton import read_model
from olivelike.model.onnx_messages import data_files
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
    from olivelike.model.onnx_messages import GraphProto, ModelProto, NodeProto
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
        model = read_model(path)
        left, unknown = _left_operators(path, settings)
        found = [*_data_problems(path, model, settings), *version_problems(_opset(model), model.ir_version, offer)]
    except SourceError as broken:
        return SessionError(f"{broken}; it can't be opened on {where}")
    foreign = _foreign_operators(model)
    if foreign and not settings.custom_operators:
        found.append(f"its operators {count_operators(foreign)} need a library of operators, and none is given")
    if left := {name: count for name, count in left.items() if name not in foreign}:
        found.append(f"nothing on {where} runs its operators {count_operators(left)}")
    why = "; ".join([*found, f"{offer.name} {offer.version} says: {message}", *unknown])
    return SessionError(f"{path}: can't be opened on {where}: {why}")


def _left_operators(path: Path, settings: SessionSettings) -> tuple[Mapping[str, int], list[str]]:
    """Return the operators that no provider runs; where nobody here can tell, what is to be installed."""
    try:
        from olivelike.graphs.inspect.inspection import inspect_model
    except ModuleNotFoundError as absent:
        if (more := lacking(absent)) is None:
            raise
        return {}, [f"to say whether its operators have kernels, {more}"] if known_targets(settings) else []
    return left_by_all(inspect_model(path, known_targets(settings))), []


def _data_problems(path: Path, model: ModelProto, settings: SessionSettings) -> Iterator[str]:
    """Yield data files that are missing or cut short. Raises `SourceError` if the model does not say what is where."""
    try:
        files = {} if settings.weights is not None else data_files(model)
    except (ValueError, LookupError) as error:
        raise SourceError(f"{path}: is not an ONNX model: it does not say where its weights are ({error!r})") from error
    for location, needed in files.items():
        file = path.parent / location
        have = file.stat().st_size if file.is_file() else None
        if have is None or have < needed:
            state = "is missing" if have is None else f"has {have:,} bytes"
            yield f"its data file {location} {state}, and {needed:,} bytes are needed"


def _opset(model: ModelProto) -> int:
    return max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0)


def version_problems(opset: int, ir_version: int, offer: RuntimeOffer) -> Iterator[str]:
    """Yield what of a file's opset and IR version is too new for an engine."""
    for what, asked, highest in (("opset", opset, offer.opset), ("IR version", ir_version, offer.ir_version)):
        if highest is not None and asked > highest:
            yield f"it asks for {what} {asked}, {offer.name} {offer.version} reads up to {highest}"


def _foreign_operators(model: ModelProto) -> dict[str, int]:
    """Return the operators of domains that ONNX Runtime does not have, with the number of their nodes."""
    own = _OWN_DOMAINS | {function.domain for function in model.functions} | {""}
    found = Counter((node.domain, node.op_type) for node in _nodes(model.graph) if node.domain not in own)
    ordered = sorted(found.items(), key=lambda entry: (entry[0][0], -entry[1], entry[0][1]))
    return {f"{domain}::{name}": count for (domain, name), count in ordered}


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of its subgraphs; a file may nest as deeply as protobuf reads."""
    pending = [graph]
    while pending:
        for node in pending.pop().node:
            yield node
            pending += [inner for one in node.attribute for inner in (*one.graphs, *([one.g] * one.HasField("g")))]


_UNCONVERTED: Final = re.compile(r"No conversion rule found for operations: (.+)")
_SHOWN: Final = 5


def operators_without_kernel(path: Path, settings: SessionSettings) -> str:
    """Return the operators of a file that nothing runs, as text; empty if all run, or nothing is known.

    ONNX Runtime's kernels are looked up in tables that `olivelike-runtime` alone lacks: whoever opens the file then
    learns from the engine. OpenVINO is asked itself: it takes more than `olivelike` writes for it. Raises
    `SessionError` if OpenVINO can't read the file for another reason, or is not installed, and `SourceError` if the
    file is no ONNX model.
    """
    if settings.provider.name == OPENVINO:
        require_provider(settings.provider)
        return _unconverted(path)
    return count_operators(_left_operators(path, settings)[0]) if known_targets(settings) else ""


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
