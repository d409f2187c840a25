"""What a workflow file means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sample_workflow import WORKFLOW

from olivelike.errors import PluginError, WorkflowError
from olivelike.model.targets import TARGETS, TargetChoice
from olivelike.workflow import Output, Source, default_cache_dir, load_workflow, shipped_names

ROOT = Path(__file__).parents[2]


def test_a_file_becomes_a_workflow_with_pass_instances(write, project):
    loaded = load_workflow(write())
    assert loaded.workflow.name == "mine"
    assert loaded.workflow.source == Source(hub="owner/model")
    assert loaded.workflow.target == TARGETS["cpu"]
    assert loaded.workflow.outputs == (Output(project / "models/mine"),)
    assert [step.pass_name for step in loaded.steps["unet"]] == ["convert", "tune"]
    assert loaded.steps["unet"][1].instance.count == 2
    assert str(loaded.steps["unet"][1].position).endswith("mine.yaml:6:20")
    assert loaded.project_folder == project


@pytest.mark.parametrize(
    "text",
    [
        WORKFLOW.replace("{count: 2}", "{rate: 1, count: 2, flag: false, label: x, mode: fast, names: []}"),
        WORKFLOW.replace("target: cpu", "target: {device_id: 0, precision: fp32, provider: cpu}"),
        WORKFLOW.replace("source: owner/model", "source: {hub: owner/model}"),
        WORKFLOW.replace("output: models/mine", "outputs: [{path: ./models/mine/}]"),
        WORKFLOW.replace("name: mine\n", "") + "# a comment\n",
        WORKFLOW.replace("    - convert", "    - {convert: {}}"),
        WORKFLOW.replace("    - convert", "    - convert:"),
        "\ufeff" + WORKFLOW.replace("\n", "\r\n"),
        WORKFLOW.replace("{count: 2}", "&c {count: 2}").replace("&c {count: 2}", "{<<: &c {count: 2}}"),
        ("output: models/mine\ncomponents: {vae_decoder: &v [convert], unet: [convert, tune: {count: 0x2}]}\n"
        "plugins: ['tune.py']\ntarget: \"cpu\"\nsource: owner/model\n"),
    ],
)  # fmt: skip
def test_another_spelling_of_the_same_workflow_is_equal(write, text):
    expected, found = load_workflow(write()), load_workflow(write(text))
    assert found.workflow == expected.workflow
    for component, chain in expected.steps.items():
        dumps = [step.instance.model_dump_json() for step in chain]
        assert [step.instance.model_dump_json() for step in found.steps[component]] == dumps


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("rate: 1e-4", "rate", 1e-4),
        ("rate: 5", "rate", 5.0),
        ("label: on", "label", "on"),
        ("label: no", "label", "no"),
        ("label: 2024-01-01", "label", "2024-01-01"),
        ("label: '7'", "label", "7"),
        ("label: !!str 7", "label", "7"),
        ("label: .inf", "label", ".inf"),
        ("label: 1_000", "label", "1_000"),
        ("label: ~", "label", None),
        ("flag: true", "flag", True),
        ("count: 0o7", "count", 7),
        ("names: [yes, off]", "names", ("yes", "off")),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(write, text, field, expected):
    loaded = load_workflow(write(WORKFLOW.replace("count: 2", text)))
    assert getattr(loaded.steps["unet"][1].instance, field) == expected


def test_components_come_in_the_order_of_a_pipeline(write):
    text = WORKFLOW.replace("  unet:", "  vae_encoder: [convert]\n  unet:") + ""
    assert list(load_workflow(write(text)).steps) == ["unet", "vae_encoder", "vae_decoder"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/model", {"hub": "owner/model"}),
        ("here/model", {"path": "here/model"}),
        ("./owner/model", {"path": "owner/model"}),
        ("../model", {"path": "../model"}),
        ("a/b/c", {"path": "a/b/c"}),
        ("model", {"path": "model"}),
        ("/abs/model", {"path": "/abs/model"}),
        ("{path: owner/model, variant: fp16}", {"path": "owner/model", "variant": "fp16"}),
        ("{hub: here/model, revision: main}", {"hub": "here/model", "revision": "main"}),
    ],
)
def test_a_source_is_a_folder_if_it_looks_like_one_or_is_there(write, project, source, expected):
    (project / "here" / "model").mkdir(parents=True)
    found = load_workflow(write(WORKFLOW.replace("owner/model", source, 1))).workflow.source
    if "path" in expected:
        expected["path"] = Path(project, expected["path"]).resolve()
    assert found == Source(**expected)


def test_target_choices_are_laid_on_the_targets_own(write):
    text = WORKFLOW.replace("target: cpu", "target: {provider: rocm, device_id: 2, options: {fast: true}}")
    target = load_workflow(write(text)).workflow.target
    assert (target.name, target.device_id, target.precision) == ("migraphx", 2, "fp16")
    assert target.options["fast"] is True


def test_options_of_sessions_and_runs_are_kept_for_the_folder(write):
    options = "{provider: cpu, session_options: {session.set_denormal_as_zero: true}, run_options: {gpu_graph_id: -1}}"
    target = load_workflow(write(WORKFLOW.replace("target: cpu", f"target: {options}"))).workflow.target
    assert target.choice() == TargetChoice(
        "cpu",
        target.precision,
        session_options={"session.set_denormal_as_zero": True},
        run_options={"gpu_graph_id": -1},
    )


def test_several_outputs_may_stop_at_a_pass(write, project):
    text = WORKFLOW.replace("output: models/mine", "outputs: [{path: a}, {path: b, until: convert}]")
    outputs = load_workflow(write(text)).workflow.outputs
    assert outputs == (Output(project / "a"), Output(project / "b", "convert"))


def test_extra_plugins_are_relative_to_the_current_folder(write, project):
    text = WORKFLOW.replace("plugins: [tune.py]\n", "")
    loaded = load_workflow(write(text), extra_plugins=["../project/workflows/tune.py"])
    assert "tune" in loaded.registry.names()
    with pytest.raises(PluginError, match=r"gone\.py"):
        load_workflow(write(text), extra_plugins=["./gone.py"])


def test_a_broken_plugin_stops_with_its_own_error(write, project):
    (project / "workflows" / "tune.py").write_text("1 / 0\n")
    with pytest.raises(PluginError, match=r"tune\.py:1: ZeroDivisionError"):
        load_workflow(write())


@pytest.mark.parametrize("name", [name for name in shipped_names() if "ablation" not in name])
def test_every_shipped_workflow_is_valid(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_workflow(name)
    assert loaded.workflow.name == name
    assert len(loaded.steps) == {
        "demo_edges": 6,
        "demo_transformer": 4,
        "sd35_medium": 6,
        "flux2_klein": 4,
        "z_image_turbo": 4,
        "qwen_image": 4,
    }.get(name, 5)
    assert loaded.workflow.outputs == (Output(tmp_path / "models" / name),)
    passes = {step.pass_name for chain in loaded.steps.values() for step in chain}
    assert ("float16" in passes) == (loaded.workflow.target.precision == "fp16")
    first = loaded.path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=workflow.schema.json"


def test_a_shipped_file_run_by_path_belongs_to_the_folder_around_workflows():
    loaded = load_workflow(str(ROOT / "workflows" / "sd15_directml.yaml"))
    assert loaded.workflow.outputs == (Output(ROOT / "models" / "sd15_directml"),)
    assert loaded.workflow == load_workflow("sd15_directml", ["output=" + str(ROOT / "models/sd15_directml")]).workflow


def test_an_unknown_reference_names_the_nearest_shipped_workflow(project):
    with pytest.raises(WorkflowError, match="did you mean 'sd15_directml'"):
        load_workflow("sd15_directm")
    with pytest.raises(WorkflowError, match="is a folder; name a workflow file in it"):
        load_workflow(str(project))
    (Path.cwd() / "demo").mkdir()
    assert load_workflow("demo").workflow.name == "demo"


def test_the_store_lies_beside_the_workflows_or_the_file_or_where_the_environment_says(write, project, monkeypatch):
    assert default_cache_dir(load_workflow(write())) == project / "cache"
    (project / "tune.py").write_text((project / "workflows" / "tune.py").read_text())
    (project / "loose.yaml").write_text(WORKFLOW)
    assert default_cache_dir(load_workflow("../project/loose.yaml")) == project / "cache"
    assert default_cache_dir(load_workflow("demo")) == Path.cwd() / "cache"
    monkeypatch.setenv("OLIVELIKE_CACHE_DIR", "named")
    assert default_cache_dir(load_workflow("demo")) == Path.cwd() / "named"


def test_loading_imports_no_heavy_library():
    heavy = {"torch", "onnx", "onnx_ir", "numpy", "diffusers", "transformers", "jsonschema"}
    code = (
        "import sys; from olivelike.workflow import load_workflow; load_workflow('sd15_cuda');"
        f"print({heavy} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
