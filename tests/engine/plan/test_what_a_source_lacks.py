"""What is wrong with a source's parts, or missing, is said by a plan, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import SourceError
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.single_file_writer import make_single_file

WORKFLOW = """
name: small
source: {source}
target: cpu
components:
  unet: [convert]
  vae_decoder: [convert]
output: models/small
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small checkpoint as a folder and as a file."""
    root = tmp_path_factory.mktemp("whole")
    folder = make_checkpoint(root / "folder", "sd15", size="small")
    return folder, make_single_file(folder, root / "file.safetensors")


@pytest.fixture
def planned(tmp_path: Path):
    """Return a function that plans the workflow for a source."""

    def make(source: Path, extra: str = "", **options):
        (tmp_path / "workflows").mkdir(exist_ok=True)
        workflow = tmp_path / "workflows" / "small.yaml"
        workflow.write_text(WORKFLOW.format(source=json.dumps(str(source))) + extra, encoding="utf-8")
        return plan(str(workflow), Options(**options))[1]

    return make


def copied(folder: Path, target: Path, relative: str, **values: object) -> Path:
    """Link a folder's files, with values of one JSON file changed."""
    for path in folder.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
    changed = target / relative
    content = json.loads(changed.read_text())
    changed.unlink()
    changed.write_text(json.dumps({**content, **values}))
    return target


def test_a_whole_source_is_planned_without_a_warning(whole, planned) -> None:
    for source in whole:
        assert planned(source).warnings == ()


def test_a_memory_limit_below_what_a_node_takes_is_warned_of_with_both(whole, planned) -> None:
    (told,) = planned(whole[0], memory_limit=1 << 20).warnings
    assert "of memory, and --memory-limit is 1.0 MB: it runs alone" in told
    assert planned(whole[0], memory_limit=1 << 40).warnings == ()


def test_tensors_that_are_left_out_and_the_part_that_is_lacking_are_warned_of(whole, planned, tmp_path) -> None:
    known = "cond_stage_model.transformer."
    stored = {name.replace(known, "clip."): array for name, array in load_file(whole[1]).items()}
    save_file(stored, tmp_path / "a.safetensors")
    left_out, absent = planned(tmp_path / "a.safetensors").warnings
    count = sum(name.startswith("clip.") for name in stored)
    assert f"a.safetensors: {count} tensors belong to no part that is known" in left_out
    assert "it has no text_encoder, so its output alone draws no pictures" in absent


def test_a_scheduler_that_needs_another_unet_is_refused(whole, planned, tmp_path) -> None:
    place = "scheduler/scheduler_config.json"
    values = {"_class_name": "DPMSolverMultistepScheduler", "variance_type": "learned_range"}
    with pytest.raises(SourceError, match=rf'{place}: variance_type is "learned_range"'):
        planned(copied(whole[0], tmp_path / "a", place, **values))


def test_a_vae_for_other_latents_is_refused(whole, planned, tmp_path) -> None:
    folder = copied(whole[0], tmp_path / "a", "vae/config.json", latent_channels=16)
    with pytest.raises(SourceError, match="name a VAE for this UNet"):
        planned(folder)
