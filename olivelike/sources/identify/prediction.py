"""What a file says that its UNet predicts: marks among its tensors, and metadata of the programs that wrote it.

Metadata: https://github.com/Stability-AI/ModelSpec (`modelspec.*`) and kohya's trainer (`ss_*`). Tensors `v_pred`
and `ztsnr` are what ComfyUI and A1111 look for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from olivelike.model.families import Prediction

_WORDS: dict[str, Prediction] = {
    "v": "v_prediction",
    "v_pred": "v_prediction",
    "v_prediction": "v_prediction",
    "v-prediction": "v_prediction",
    "epsilon": "epsilon",
    "eps": "epsilon",
}
_METADATA_WORDS = ("modelspec.prediction_type", "modelspec.predict_key")


@dataclass(frozen=True)
class StatedPrediction:
    """What a file states."""

    value: Prediction | None
    zero_snr: bool
    reason: str
    """Empty if it states nothing."""


def read_prediction(names: Collection[str], metadata: Mapping[str, str]) -> StatedPrediction:
    """Return what names and metadata say; a tensor counts more than metadata, which outlives merges."""
    zero_snr = "ztsnr" in names or metadata.get("ss_zero_terminal_snr") == "True"
    for name in ("v_pred", "ztsnr"):
        if name in names:
            return StatedPrediction("v_prediction", zero_snr, f"prediction: it holds a tensor {name}")
    for key in _METADATA_WORDS:
        word = _WORDS.get(str(metadata.get(key, "")).lower())
        if word is not None:
            return StatedPrediction(word, zero_snr, f"prediction: its metadata says {key} = {metadata[key]}")
    architecture = str(metadata.get("modelspec.architecture", ""))
    if architecture.startswith("stable-diffusion-v2-"):
        value: Prediction = "v_prediction" if "-768-v" in architecture else "epsilon"
        reason = f"prediction: its metadata says modelspec.architecture = {architecture}"
        return StatedPrediction(value, zero_snr, reason)
    trained = metadata.get("ss_v_parameterization")
    if trained in ("True", "False"):
        value = "v_prediction" if trained == "True" else "epsilon"
        return StatedPrediction(value, zero_snr, f"prediction: ss_v_parameterization = {trained}")
    return StatedPrediction(None, zero_snr, "")
