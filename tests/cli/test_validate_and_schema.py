from __future__ import annotations

import json
import re

import jsonschema
import pytest
import yaml

LITTLE = "workflows/little.yaml"


@pytest.fixture
def written(empty_folder):
    """A project without results: its workflow and its plugin."""
    from tests.cli.little_project import PLUGIN, WORKFLOW

    (empty_folder / "workflows").mkdir()
    (empty_folder / "workflows" / "little.yaml").write_text(WORKFLOW)
    (empty_folder / "plugins").mkdir()
    (empty_folder / "plugins" / "passes_for_tests.py").write_text(PLUGIN)
    return empty_folder


def test_a_valid_workflow_is_called_valid(written, cli):
    result = cli("validate", LITTLE, "sd15_cpu")
    assert result.status == 0
    assert result.out.splitlines()[0] == "workflows/little.yaml: valid (1 component, 2 steps)"
    assert result.out.splitlines()[1].startswith("sd15_cpu: valid (5 components, ")


def test_every_finding_of_every_file_is_reported_with_its_place(written, cli):
    text = (written / LITTLE).read_text().replace("cpu", "cpus").replace("label]", "lable]")
    (written / "workflows" / "wrong.yaml").write_text(text)
    result = cli("validate", "workflows/wrong.yaml", LITTLE, "absent.yaml")
    assert result.status == 2
    assert "workflows/wrong.yaml:3:9: unknown target 'cpus'" in result.err
    assert "workflows/wrong.yaml:6:27: " in result.err
    assert "did you mean 'label'?" in result.err
    assert "absent.yaml" in result.err
    assert result.out == "workflows/little.yaml: valid (1 component, 2 steps)\n"


def test_overrides_and_plugins_are_validated_too(written, cli):
    other = written / "other.py"
    other.write_text((written / "plugins" / "passes_for_tests.py").read_text().replace("Label", "Rename"))
    arguments = ["validate", LITTLE, "--set", "plugins=[]", "--set", "components.text_encoder=[convert, rename]"]
    assert cli(*arguments).status == 2
    assert cli(*arguments, "--plugin", "other.py").status == 0


def test_a_broken_plugin_ends_with_status_3(written, cli):
    (written / "plugins" / "broken.py").write_text("import no_such_module_anywhere\n")
    result = cli("validate", LITTLE)
    assert result.status == 3
    assert "broken.py" in result.err


def test_the_schema_accepts_what_validate_accepts(written, cli):
    assert cli("schema", "--plugin", "plugins", "--output", "schema.json").out == ""
    schema = json.loads((written / "schema.json").read_text())
    jsonschema.validate(yaml.safe_load((written / LITTLE).read_text()), schema)
    without_plugin = json.loads(cli("schema").out)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load((written / LITTLE).read_text()), without_plugin)


WRONG = """\
source: {}
target: cuda
loras: [style.safetensors]
components:
  text_encoder: [fuse, convert, float16]
  unet: [convert, fuse, float16]
  vae_decoder: [float16]
output: models/wrong
"""


def test_steps_in_an_order_that_suits_no_source_are_found_without_opening_one(empty_folder, cli):
    (empty_folder / "wrong.yaml").write_text(WRONG.format("./checkpoint"))
    result = cli("validate", "wrong.yaml")
    assert result.status == 2
    assert re.findall(r"^\S*wrong.yaml:(\d+):\d+: ", result.err.removeprefix("error: "), re.MULTILINE) == ["5", "6"]
    assert "pass 'fuse' of text_encoder needs a graph, which no step before it makes" in result.err
    assert "style.safetensors, and no chain has `merge_lora`" in result.err


def test_a_checkpoint_in_one_file_needs_its_networks_converted(empty_folder, cli):
    (empty_folder / "wrong.yaml").write_text(WRONG.format("painter.safetensors"))
    err = cli("validate", "wrong.yaml").err
    assert "wrong.yaml:7:17: pass 'float16' of vae_decoder needs a graph" in err


def test_a_lora_that_is_left_out_needs_no_step(empty_folder, cli):
    text = WRONG.format("./checkpoint").replace("[style.safetensors]", "[{file: style.safetensors, weight: 0}]")
    (empty_folder / "right.yaml").write_text(text.replace("fuse, convert, float16", "convert, fuse, float16"))
    assert cli("validate", "right.yaml").status == 0


def test_validate_as_json_has_an_entry_for_each_file(written, cli):
    result = cli("validate", LITTLE, "absent.yaml", "--json")
    assert result.status == 2
    right, wrong = json.loads(result.out)
    assert right == {
        "workflow": LITTLE, "valid": True, "error": None, "components": 1, "steps": 2, "variants": 0,
        "combinations": [],
    }  # fmt: skip
    assert (wrong["valid"], "absent.yaml" in wrong["error"], result.err) == (False, True, "")


@pytest.mark.parametrize(("name", "target"), [("dml", "directml"), ("trt", "tensorrt"), ("rocm", "migraphx")])
def test_other_names_of_targets_are_understood_and_kept_nowhere(written, name, target):
    from olivelike.workflow import load_workflow

    loaded = load_workflow(LITTLE, (f"target={name}",))
    assert loaded.workflow.target.choice().name == target
    assert loaded.workflow == load_workflow(LITTLE, (f"target={target}",)).workflow


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "'gpu' may mean several targets; say which: cuda (NVIDIA), directml (Windows), migraphx (AMD)"),
        ("amd", "say which: directml (Windows), migraphx (Linux)"),
        ("DirectML", "unknown target 'DirectML'; did you mean 'directml'?"),
        ("toaster", "targets: cpu, openvino"),
    ],
)
def test_a_name_that_may_mean_several_targets_lists_them(written, cli, name, said):
    assert said in cli("validate", LITTLE, "--set", f"target={name}").err
    assert said in cli("convert", "x", "-t", name, "-o", "y").err
