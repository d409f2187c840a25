from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

LITTLE = "workflows/little.yaml"


@pytest.fixture
def written(empty_folder):
    """A project without results: its workflow and its plugin."""
    from little_project import PLUGIN, WORKFLOW

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
    arguments = [
        "validate",
        LITTLE,
        "--set",
        "plugins=[]",
        "--set",
        "components.text_encoder=[convert, rename]",
    ]
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
