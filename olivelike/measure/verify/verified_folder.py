"""Holding the networks of an output folder against their originals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.model.components import TOKENIZERS

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.measure.verify.original import Verification
    from olivelike.measure.verify.originals import Originals
    from olivelike.model.records.output import OutputRecord


def networks_of(record: OutputRecord) -> list[str]:
    """Return the networks of a folder; tokenizers are none."""
    return [component for component in record.components if component not in TOKENIZERS]


def verify_component(
    folder: Path,
    record: OutputRecord,
    component: str,
    originals: Originals,
    *,
    samples: int = 2,
    seed: int = 0,
) -> Verification:
    """Hold a network, as it is on disk, against its original; weights are read one at a time.

    Args:
        folder: The output folder.
        record: Its record.
        component: Which network.
        originals: What the folder was made of.
        samples: Number of random inputs, of different sizes.
        seed: Of the first input.

    Raises:
        SourceError: if a file of either is missing or damaged.
        PassError: if the graph has an operator that can't be run on its own.
    """
    import onnx
    import onnx_ir as ir

    from olivelike.engine.output.initializers import Initializers
    from olivelike.measure.verify.evaluation import Evaluation
    from olivelike.measure.verify.original import Original, precision_of

    path = folder / record.model_file(component)
    initializers = Initializers(path)
    architecture, read = originals.network(component)
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    original = Original(architecture, read, samples=samples, seed=seed)
    return original.hold(Evaluation(model, initializer=initializers.read), precision_of(model))
