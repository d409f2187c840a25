"""A folder that takes milliseconds to sign."""

from __future__ import annotations

import hashlib
from pathlib import Path

from olivelike.model.records.output import ComponentRecord, OutputFile
from tests.fixtures.sample_records import write_output_record


def write_folder(folder: Path) -> Path:
    """Write files as an output has them, without a network in any."""
    for name in ("model_index.json", "olivelike.json", "README.md", "unet/model.onnx", "unet/weights.pb", "vae/empty"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name.endswith("empty") else name.encode() * 20)
    return folder


def write_record(folder: Path, weights: bytes) -> Path:
    """Write an output of one network, whose record names its file."""
    path = folder / "unet" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weights)
    write_output_record(
        folder,
        components={"unet": ComponentRecord("key")},
        files={"unet/model.onnx": OutputFile(len(weights), hashlib.sha256(weights).hexdigest())},
    )
    return folder
