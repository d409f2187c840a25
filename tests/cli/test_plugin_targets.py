"""Targets of installed distributions: the guide's example, from the plan to the picture, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from olivelike.errors import PluginError, SessionError, UsageError
from olivelike.measure.doctor import diagnosis
from olivelike.model.plugin_targets import all_targets, claims, find_plugin_target, target_names
from olivelike.model.records.output import RECORD_FILE
from olivelike.model.targets import TARGETS, Target, find_target
from olivelike.runtime.pipeline.pipeline_folder import check_folder, read_folder_target, target_settings
from olivelike.runtime.sessions.providers import find_provider
from olivelike.runtime.sessions.session_settings import SessionSettings
from tests.fixtures.little_pipeline import little_pipeline

EXAMPLE = Path(__file__).parents[2] / "docs" / "target-example"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME, PLACE = next(iter(PROJECT["entry-points"]["olivelike.targets"].items()))
HEAD = """
from olivelike.model.plugin_targets import PluginTarget
from olivelike.model.targets import Kernel, Target
SOURCES = {"opset": "its manual", "IR version": "its manual"}
def table(name, **more):
    return Target(name, **{**dict(provider="NewExecutionProvider", opset=21, ir_version=10, precision="fp32"), **more})
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with a module and entry points on the import path, as pip leaves it on disk."""

    def install(distribution: str, points: dict[str, str], text: str = "", version: str = "1.2") -> None:
        site = tmp_path / f"site-{distribution}-{version}"
        info = site / f"{distribution}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[olivelike.targets]\n{lines}")
        (site / f"{distribution}.py").write_text(HEAD + text)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, distribution, raising=False)

    return install


@pytest.fixture
def example(install, monkeypatch):
    """The guide's example, installed."""
    monkeypatch.syspath_prepend(EXAMPLE)
    install(PROJECT["name"], {NAME: PLACE}, version=PROJECT["version"])
    return importlib.import_module(PLACE.partition(":")[0]).TARGET


def test_the_example_is_a_target_like_ours(example):
    found = find_target(NAME)
    assert found == dataclasses.replace(example.target, plugin=f"{PROJECT['name']} {PROJECT['version']}")
    assert target_names() == [*TARGETS, NAME]
    assert all_targets()[-1] == found
    assert find_provider(NAME) == find_provider("cpu")
    with pytest.raises(UsageError, match=f"did you mean '{NAME}'"):
        find_target(f"{NAME}8")
    with pytest.raises(UsageError, match=f"did you mean '{NAME}'"):
        find_provider(f"{NAME}8")


def test_its_tests_pass(example):
    module = EXAMPLE / "tests" / "test_cpu_1_18.py"
    spec = importlib.util.spec_from_file_location("example_tests", module)
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    for test in [value for name, value in vars(tests).items() if name.startswith("test_")]:
        test()


def test_the_two_files_of_the_guide_are_a_target(install, tmp_path, cli):
    guide = (EXAMPLE.parent / "targets.md").read_text(encoding="utf-8").split("## A target of your own")[1]
    settings = tomllib.loads(re.search(r"```toml\n(.*?)```", guide, re.DOTALL)[1])
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    project, (module,) = settings["project"], settings["tool"]["setuptools"]["py-modules"]
    install(project["name"], project["entry-points"]["olivelike.targets"], version=project["version"])
    (tmp_path / f"site-{project['name']}-{project['version']}" / f"{module}.py").write_text(code, encoding="utf-8")
    shown = cli("targets", "brand_npu").out
    assert "run on brand 2.1" in shown
    assert f"brand_npu ({project['name']} {project['version']})" in shown


def test_commands_list_and_describe_it(example, cli):
    assert f"{PROJECT['name']} {PROJECT['version']}" in cli("targets").out
    shown = cli("targets", NAME).out
    assert all(text in shown for text in (*claims(example.target), *example.sources.values()))
    assert json.loads(cli("targets", NAME, "--json").out)["sources"] == dict(example.sources)
    schema = json.loads(cli("schema").out)
    assert f'"{NAME}"' in json.dumps(schema)


def test_keys_hold_its_table_and_nothing_of_sessions(example):
    target = find_target(NAME)
    newer = dataclasses.replace(target, plugin="olivelike-target-cpu-1-18 9")
    assert target.facts() == newer.facts()
    assert Target.lowered(json.loads(json.dumps(target.lowering()))) == target
    other = dataclasses.replace(target, kernels={})
    assert other.facts() != target.facts()
    with pytest.raises(PluginError, match="has another table here"):
        Target.lowered(other.lowering())


def test_a_workflow_plans_with_it_and_another_table_plans_anew(install, empty_folder, cli, monkeypatch):
    keys = []
    for version, kernels in (("1", "{}"), ("2", "{}"), ("3", '{"BiasGelu": Kernel(frozenset("f"))}')):
        sources = "{**SOURCES, 'BiasGelu': 'run on it'}" if version == "3" else "SOURCES"
        text = f"T = PluginTarget(table('mine', kernels={kernels}), {sources}, 'new')\n"
        install(f"brand_{version}", {"mine": f"brand_{version}:T"}, text)
        planned = json.loads(cli("plan", "demo", "--only", "unet", "--set", "target=mine", "--json").out)
        keys += [node["key"] for node in planned["nodes"] if node["pass"] == "fuse"]
        monkeypatch.setattr("sys.path", [one for one in sys.path if f"brand_{version}" not in one])
    assert keys[0] == keys[1] != keys[2]


def record_for(tmp_path, target):
    folder = tmp_path / "folder"
    shutil.copytree(little_pipeline("sd"), folder)
    record = json.loads((folder / RECORD_FILE).read_text())
    record["target"] |= target
    (folder / RECORD_FILE).write_text(json.dumps(record))
    return folder


def test_a_folder_of_it_opens_on_its_provider_and_says_what_lacks_elsewhere(example, tmp_path, cli, monkeypatch):
    choice = {"name": NAME, "plugin": find_target(NAME).plugin}
    folder = record_for(tmp_path, choice)
    settings = target_settings(read_folder_target(folder))
    assert settings.provider == find_provider("cpu")
    check_folder(folder, settings)
    assert f"{NAME} ({choice['plugin']})" in cli("info", folder).out
    monkeypatch.setattr("sys.path", [one for one in sys.path if PROJECT["name"] not in one])
    with pytest.raises(SessionError, match=f"pip install '{PROJECT['name']}'.*run it with --provider cpu"):
        check_folder(folder, target_settings(read_folder_target(folder)))
    check_folder(folder, SessionSettings())


def test_a_provider_of_its_own_is_what_its_machine_has(install, tmp_path):
    install("brand", {"brand": "brand:T"}, "T = PluginTarget(table('brand'), SOURCES, 'onnxruntime-brand')\n")
    provider = find_provider("brand")
    assert (provider.name, provider.package) == ("NewExecutionProvider", "onnxruntime-brand")
    folder = record_for(tmp_path, {"name": "brand", "plugin": "brand 1.2"})
    with pytest.raises(SessionError, match="NewExecutionProvider is not installed; it comes with onnxruntime-brand"):
        check_folder(folder, target_settings(read_folder_target(folder)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise OSError('no disk')", "target 'brand' of distribution brand can't be loaded .*no disk.*uninstall"),
        ("T = table('brand')", "is Target, no PluginTarget"),
        ("T = PluginTarget(table('other'), SOURCES, 'x')", "it is called 'other'; the target's name is that of the"),
        ("T = PluginTarget(table('brand', opset=99), SOURCES, 'x')", "`opset` is 99; olivelike writes up to 23"),
        ("T = PluginTarget(table('brand', precision='fp61'), SOURCES, 'x')", "did you mean 'fp16'"),
        ("T = PluginTarget(table('brand', precision='bf16'), SOURCES, 'x')", "`bfloat16` is not set"),
        ("T = PluginTarget(table('brand'), {'opset': 'its manual'}, 'x')", "'IR version' .10. has no source"),
        ("T = PluginTarget(table('brand'), {**SOURCES, 'Gelu': 'a'}, 'x')", "has 'Gelu', which it does not claim"),
        ("T = PluginTarget(table('brand'), SOURCES, '')", "`package` is empty"),
        ("T = PluginTarget(table('brand', kernels={'Gelu': 'f'}), SOURCES, 'x')", "make it a Kernel of letters among"),
    ],
)  # fmt: skip
def test_what_ours_could_not_be_is_refused_by_name(install, text, message):
    install("brand", {"brand": "brand:T"}, text + "\n")
    with pytest.raises(PluginError, match=message):
        find_plugin_target("brand")
    assert find_target("cpu") is TARGETS["cpu"]


def test_a_broken_one_stops_no_other_target_and_doctor_names_it(install, empty_folder, cli, monkeypatch):
    install("brand", {"brand": "brand:T"}, "raise OSError('no disk')\n")
    assert cli("validate", "demo").status == 0
    asked = cli("plan", "demo", "--set", "target=brand")
    assert (asked.status, "target 'brand' of distribution brand can't be loaded" in asked.err) == (2, True)
    monkeypatch.setattr(diagnosis, "listed_providers", lambda timeout: [])
    assert "target 'brand' of distribution brand can't be loaded" in cli("doctor").out


def test_names_that_are_taken_are_refused(install, empty_folder, cli):
    install("shadow", {"cpu": "shadow:T"})
    with pytest.raises(PluginError, match="distribution shadow offers a target 'cpu', .* olivelike's own"):
        target_names()
    assert "distribution shadow offers a target 'cpu'" in cli("validate", "demo").err


def test_two_plugins_of_one_name_are_refused(install):
    install("one", {"brand": "one:T"})
    install("two", {"brand": "two:T"})
    with pytest.raises(PluginError, match="two plugins offer a target 'brand': distribution one and distribution two"):
        find_target("brand")


def test_an_import_of_targets_looks_for_no_plugin():
    code = "import sys, olivelike.model.targets as t; t.find_target('cpu'); print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
