"""Which operators of a network none of the asked providers runs."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError
from olivelike.model.targets import TARGETS
from olivelike.runtime.sessions.providers import CPU, OPENVINO, require_provider
from olivelike.runtime.sessions.session_failures import reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.graphs.inspect import Inspection
    from olivelike.model.targets import Target
    from olivelike.runtime.sessions.session_settings import SessionSettings

_UNCONVERTED: Final = re.compile(r"No conversion rule found for operations: (.+)")
_SHOWN: Final = 5


def operators_without_kernel(path: Path, settings: SessionSettings) -> str:
    """Return the operators of a file that nothing runs, as text; empty if all run, or nothing is known.

    ONNX Runtime's kernels are looked up in the tables of `olivelike.model.targets`. OpenVINO is asked itself: it
    takes more than `olivelike` writes for it.

    Raises:
        SessionError: if OpenVINO can't read the file for another reason, or is not installed.
        SourceError: if the file is no ONNX model.
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
    import importlib

    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    try:
        openvino.Core().read_model(path)
    except RuntimeError as error:
        found = _UNCONVERTED.search(str(error))
        if found is None:
            raise SessionError(f"{path}: can't be read by OpenVINO: {reason(error)}") from error
        return found[1]
    return ""
