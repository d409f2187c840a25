"""Every shipped workflow can be planned, over a checkpoint of the structure that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivelike.engine import Options, plan
from olivelike.workflow import shipped_names


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_workflow_is_planned_and_nothing_is_written(
    name: str, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, made = plan(name, Options(overrides=(f"source={{path: {checkpoints / 'one'}}}",)))
    components = made.by_component()
    assert set(components) == {
        "text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker", "pipeline",
    }  # fmt: skip
    assert [node.node.name for node in components["unet"]][:3] == ["load", "convert", "fuse"]
    assert components["unet"][-1].write_bytes > 0
    assert made.count("hit") == 0
    assert list(tmp_path.iterdir()) == []
