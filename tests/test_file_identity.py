"""A file that was written in place is another one, though its size and its time of change are as they were."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import olivelike
from olivelike._files import file_identity
from olivelike.engine.output.swap import LiveLoras
from olivelike.runtime.jobs.job_notes import used_upscaler
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint


def rewrite(path: Path, data: bytes) -> None:
    """Write as many bytes into a file, and set its times back."""
    before = after = path.stat()
    assert len(data) == before.st_size
    while file_identity(after) == file_identity(before):  # Clocks of file systems have ticks.
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_lora_has_the_hash_of_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "style.safetensors"
    make_lora(path, "kohya", base=little_checkpoint())
    loras = LiveLoras([tmp_path])
    before = loras.tagged("style", "style", 1.0, 1.0).hash
    other = tmp_path / "other.bin"
    save_file({name: np.ones_like(value) for name, value in load_file(path).items()}, other)
    data = path.read_bytes()
    weights = int.from_bytes(data[:8], "little") + 8
    rewrite(path, data[:weights] + other.read_bytes()[-(len(data) - weights) :])
    after = loras.tagged("style", "style", 1.0, 1.0).hash
    assert after != before
    assert after == LiveLoras([tmp_path]).tagged("style", "style", 1.0, 1.0).hash


def test_records_get_the_digest_of_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    before = used_upscaler(path).hash
    rewrite(path, b"two")
    assert used_upscaler(path).hash != before


@pytest.mark.parametrize("word", ["st_mtime_ns", "st_ctime_ns"])
def test_files_are_known_again_by_one_function(word: str) -> None:
    root = Path(olivelike.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if word in path.read_text("utf-8")}
    assert found <= {
        "_files.py",
        "cli/receipt.py",  # folders and links, too
        "engine/output/staging.py",  # whether a journal is the same empty file
        "engine/plan/inputs.py",  # compared by other machines of a share, which have other devices and nodes
        "engine/kinds/model_node.py",
        "runtime/sessions/compiled.py",  # files of engines, which links to them change, and how old files are
    }
