"""Outputs for the tests of publishing: staged as the engine stages them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes
from olivelike.engine.output.output_files import write_file
from olivelike.engine.output.publication import check_is_ours, publish, recover
from olivelike.engine.output.staging import discard_staging, staging_folder
from olivelike.model.records.origin import Origin
from olivelike.model.records.output import ComponentRecord, OutputFile, OutputRecord
from olivelike.model.targets import TargetChoice

if TYPE_CHECKING:
    from pathlib import Path

OLD = {
    "unet/model.onnx": b"old unet",
    "unet/weights.pb": b"old weights",
    "vae_decoder/model.onnx": b"same decoder",
    "safety_checker/model.onnx": b"old checker",
    "safety_checker/extra/notes": b"old notes",
    "model_index.json": b"old index",
}
NEW = {
    "unet/model.onnx": b"new unet",
    "vae_decoder/model.onnx": b"same decoder",
    "vae_encoder/model.onnx": b"new encoder",
    "model_index.json": b"new index",
}
MINE = {"unet/notes.txt": b"mine", "picture.png": b"mine too"}
"""Files that a user put into an output folder."""


def make_record(files: dict[str, bytes]) -> OutputRecord:
    """Return the record of an output with these files."""
    made = {path: OutputFile(len(data), digest_bytes(data)) for path, data in files.items()}
    source = Origin("folder", "checkpoint")
    return OutputRecord("test", TargetChoice("cpu"), source, {"unet": ComponentRecord("1")}, made)


def publish_files(output: Path, files: dict[str, bytes]) -> None:
    """Publish what differs from what is there, as a run does from beginning to end."""
    check_is_ours(output)
    recover(output)
    before = OutputRecord.read(output)
    staging = staging_folder(output)
    try:
        record = make_record(files)
        known = {} if before is None else before.files
        for path, data in files.items():
            if known.get(path) != record.files[path]:
                write_file(staging / path, data)
        publish(staging, output, record, before)
    finally:
        discard_staging(staging)


def content(output: Path) -> dict[str, bytes]:
    """Return all files of an output but its record, by relative path."""
    found = {path.relative_to(output).as_posix(): path for path in output.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "olivelike.json"}


def is_whole(output: Path, files: dict[str, bytes]) -> bool:
    """Tell whether an output holds these files, the user's, and the record of them, and nothing else."""
    mine = MINE if (output / "picture.png").exists() else {}
    return content(output) == files | mine and OutputRecord.read(output) == make_record(files)
