"""Comparing an ONNX component with the torch network that it was made from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivelike.errors import UsageError, VerificationError
from olivelike.families.network import stored_values
from olivelike.measure.network_sizes import CASES, Case
from olivelike.testing.models import LocalModel, no_progress

if TYPE_CHECKING:
    import onnxruntime
    import torch

    from olivelike.measure.verify.original import Original

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """Relative errors ‖a - b‖ / ‖b‖ against torch in float64."""

    errors: Mapping[Case, Mapping[str, float]]
    """Errors by case and output name; 0 where both are all zero, infinite where only torch is."""

    @property
    def worst(self) -> float:
        """The largest error; NaN if there is one."""
        return float(np.max([error for by_output in self.errors.values() for error in by_output.values()]))

    def require(self, limit: float) -> None:
        """Check that no error is above `limit`; NaN counts as above.

        Raises `VerificationError` with every output that is further off.
        """
        rows = [
            f"{output} at {case}: {error:.1e}"
            for case, by_output in self.errors.items()
            for output, error in by_output.items()
            if not error <= limit
        ]
        if rows:
            raise VerificationError(f"further from torch than {limit:.0e}: {'; '.join(rows)}")


def compare_with_torch(
    subject: LocalModel | str | Path,
    reference: LocalModel | None = None,
    *,
    cases: Sequence[Case] = CASES,
    seed: int = 0,
) -> Comparison:
    """Run a component in ONNX Runtime on the CPU, and its network in torch in float64; compare all outputs.

    Both get the same seeded random inputs. Fused operators that the CPU lacks are replaced by what they mean, so the
    result for any target can be checked. Torch's own float32 can be 1e-5 off; hence float64. Raises `UsageError` when a
    folder, or a model with changed weights, comes without its reference, and `PassError` when the graph can't be
    materialised.

    Args:
        subject: A model with a graph, which is materialised first, or a component's folder with its
            `model.onnx`, such as `models/sd15_cuda/unet`.
        reference: Architecture and weights of the original; needed for a folder, and for a model whose weights are
            no longer those that were loaded, LoRAs and textual inversions aside.
        cases: Batches and sizes to compare at.
        seed: Of the inputs.
    """
    if isinstance(subject, LocalModel):
        reference = reference or _itself(subject)
        with tempfile.TemporaryDirectory(prefix="olivelike-parity-") as folder:
            materialize_model(subject, Path(folder))
            return _compare(Path(folder), reference, cases, seed)
    if reference is None:
        raise UsageError("name the original of the folder: reference=load_model(CHECKPOINT, COMPONENT)")
    return _compare(Path(subject), reference, cases, seed)


def _itself(subject: LocalModel) -> LocalModel:
    """Return a model as its own reference, which it is as long as only LoRAs and the like changed its weights."""
    loaded = subject.original.weights
    if loaded is not None and subject.weights is not None and loaded.digest != subject.weights.digest:
        raise UsageError(
            f"the weights of {subject.component} are not those that were loaded, and compared with themselves they "
            "would always be right; name the model before the change: reference=MODEL"
        )
    return subject


def materialize_model(model: LocalModel, folder: Path) -> None:
    """Write a model's `model.onnx` and its data file into an existing folder.

    Raises `UsageError` when it has no graph or no weights.
    """
    from olivelike.engine.output.materialize import materialize

    if model.graph is None or model.weights is None:
        raise UsageError("the model needs a graph and weights to be compared; run `convert` on it first")
    materialize(model.graph, model.weights, model.tensors.files, folder, no_progress)


def _compare(folder: Path, reference: LocalModel, cases: Sequence[Case], seed: int) -> Comparison:
    found = _original(reference, tuple(cases), seed).compare(_OpenedGraph(folder), "")
    return Comparison(
        {
            sample.case: {name: figures.relative_error for name, figures in sample.outputs.items()}
            for sample in found.samples
        }
    )


_MOST_ORIGINALS = 16
_originals: dict[tuple[object, ...], Original] = {}
"""Outputs of torch by digests of architecture and weights, cases and seed: passes are often tried on one model."""


def _original(reference: LocalModel, cases: tuple[Case, ...], seed: int) -> Original:
    from olivelike.measure.verify.original import Original

    architecture, weights = reference.require("architecture"), reference.require("weights")
    key = (architecture.digest, weights.digest, cases, seed)
    if key not in _originals:
        if len(_originals) == _MOST_ORIGINALS:
            del _originals[next(iter(_originals))]
        _originals[key] = Original(architecture, reference.parameter, samples=len(cases), seed=seed, cases=cases)
    return _originals[key]


class _OpenedGraph:
    """A component's folder as one session, which takes float32 in place of half precision."""

    def __init__(self, folder: Path) -> None:
        self._session = open_on_cpu(folder)

    def run(self, feeds: Mapping[str, Array], observe: object = None) -> dict[str, Array]:
        del observe
        half = {value.name for value in self._session.get_inputs() if value.type == "tensor(float16)"}
        taken = {name: value.astype(np.float16) if name in half else value for name, value in feeds.items()}
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, taken), strict=True))


def open_on_cpu(folder: Path) -> onnxruntime.InferenceSession:
    """Open a component's folder on the CPU, with what fused operators mean in place of missing kernels."""
    import onnx
    import onnx_ir as ir
    import onnxruntime

    from olivelike.graphs.functions import with_functions

    model = ir.from_proto(onnx.load(folder / "model.onnx", load_external_data=False))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # Its few calls are of small networks.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    data = ir.to_proto(with_functions(model)).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def torch_network(model: LocalModel) -> torch.nn.Module:
    """Return the torch network with all the model's weights in float64, taking a component's inputs in order."""
    from olivelike.graphs.export.torch_network import build_network, wrap
    from olivelike.measure.verify.original import fill

    model.require("weights")
    network = build_network(model.require("architecture"))
    fill(network, stored_values(network), model.parameter)
    return wrap(model.component, network.double())
