"""`sweep` in a run: what variants have in common runs once."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from olivelike.engine.run_result import readable_runs
from olivelike.errors import SourceError, UsageError
from olivelike.model.records.output import OutputRecord
from olivelike.store import Store
from olivelike.testing.lora_files import make_lora

from .conftest import Project

SWEEP = """
sweep:
  - {name: raw, components: {text_encoder: [convert], vae_decoder: ~}}
  - {name: half, components: {vae_decoder: ~}}
  - {name: whole}
"""


@pytest.fixture
def swept(project: Project) -> Project:
    """The project with a sweep, its results stored but not its outputs; `whole` is what it was."""
    text = project.workflow.read_text(encoding="utf-8").replace("models/small", "models/swept")
    project.workflow.write_text(text + SWEEP, encoding="utf-8")
    return project


def test_variants_are_folders_and_common_nodes_run_once(swept: Project) -> None:
    result = swept.run()
    folder = swept.folder / "models" / "swept"
    assert [path.name for path in result.outputs] == ["raw", "half", "whole"]
    assert sorted(path.name for path in folder.iterdir()) == ["half", "raw", "whole"]
    types = {
        name: onnx.load(folder / name / "text_encoder" / "model.onnx", load_external_data=False)
        .graph.output[0]
        .type.tensor_type.elem_type
        for name in ("raw", "half", "whole")
    }
    single, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    assert types == {"raw": single, "half": half, "whole": half}
    assert not (folder / "half" / "vae_decoder").exists()
    assert (folder / "whole" / "vae_decoder" / "model.onnx").is_file()

    record = next(readable_runs(Store.open(swept.folder / "cache")))
    ran = Counter(node.id for node in record.nodes)
    assert set(ran.values()) == {1}
    assert sorted(ran) == [
        "pipeline.assets",
        "text_encoder.convert",
        "text_encoder.float16@half",
        "text_encoder.load",
        "text_encoder.materialize@half",
        "text_encoder.materialize@raw",
        "text_encoder.materialize@whole",
        "vae_decoder.convert@whole",
        "vae_decoder.float16@whole",
        "vae_decoder.load@whole",
        "vae_decoder.materialize@whole",
    ]
    parents = {node.id: node.parent for node in record.nodes}
    assert parents["text_encoder.materialize@whole"] == "text_encoder.float16@half"
    assert parents["text_encoder.materialize@raw"] == "text_encoder.convert"
    # The run without a sweep has stored all but the folders.
    materialised = {name for name in ran if ".materialize" in name}
    assert swept.executed() == materialised

    again = swept.run()
    assert (again.executed, again.hits) == (0, again.nodes)


def test_each_folder_says_the_passes_of_its_variant(swept: Project) -> None:
    swept.run("sweep.2.components={vae_decoder: ~}")
    chains = {
        name: [
            step.name
            for step in OutputRecord.require(swept.folder / "models" / "swept" / name).components["text_encoder"].passes
        ]
        for name in ("raw", "half")
    }
    assert chains == {"raw": ["convert"], "half": ["convert", "float16"]}


def test_a_folder_that_is_named_takes_the_variants(swept: Project) -> None:
    swept.run("sweep.2.components={vae_decoder: ~}", output=swept.folder / "elsewhere")
    assert sorted(path.name for path in (swept.folder / "elsewhere").iterdir()) == ["half", "raw", "whole"]


def test_a_component_that_no_variant_has_is_refused(swept: Project) -> None:
    with pytest.raises(UsageError, match="--only unet: the workflow has no such component"):
        swept.run(only=("unet",))


def test_what_a_lora_changes_must_be_in_every_variant(swept: Project) -> None:
    lora = make_lora(
        swept.folder / "style.safetensors", "kohya", base=swept.folder / "checkpoint", components=("text_encoder",)
    )
    with pytest.raises(SourceError, match="style.safetensors: it also changes text_encoder"):
        swept.run(
            "components.text_encoder=[merge_lora, convert]",
            "sweep=[{name: with}, {name: without, components: {text_encoder: ~}}]",
            loras=(str(lora),),
        )
