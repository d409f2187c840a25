"""A folder of ONNX models as the source of a whole run."""

from __future__ import annotations

import pytest

from olivelike.errors import WorkflowError
from tests.engine.conftest import Project
from tests.engine.test_other_sources import small

__all__ = ["small"]


def test_an_exported_folder_is_a_source(small: Project) -> None:
    small.run("target=cpu", "components.text_encoder=[convert]", "components.vae_decoder=[convert]",
              output=small.folder / "exported")  # fmt: skip
    chains = ("components.text_encoder=[fuse, float16]", "components.vae_decoder=[fuse, float16]")
    small.run("source=./exported", *chains, output=small.folder / "optimised")
    assert (small.folder / "optimised" / "text_encoder" / "model.onnx").is_file()
    assert (small.folder / "optimised" / "vae_decoder" / "config.json").is_file()
    with pytest.raises(WorkflowError, match="'convert' needs the torch network of text_encoder"):
        small.run("source=./exported", output=small.folder / "refused")
    assert not (small.folder / "refused").exists()
