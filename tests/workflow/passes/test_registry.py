"""Finding passes: built-in ones, entry points, plugins of a workflow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.errors import PluginError, UsageError
from olivelike.workflow.passes import Registry, resolve_plugin

ROOT = Path(__file__).parents[3]


def run_of(entry):
    return entry.cls().run(None, None)


def test_built_in_passes_are_found_by_the_names_of_their_classes():
    entry = Registry.built_in().get("float16")
    assert entry.cls.__name__ == "Float16"
    assert entry.module_file == ROOT / "passes" / "float16.py"
    assert (entry.origin, entry.plugin) == ("built-in", None)


def test_finding_passes_imports_no_heavy_library():
    heavy = {"torch", "onnx", "onnx_ir", "numpy", "diffusers", "transformers", "onnxruntime"}
    load = "import sys; from olivelike.workflow.passes import Registry; Registry.load()"
    code = f"{load}; print({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_folder_passes_refuses_to_be_imported_under_its_plain_name():
    result = subprocess.run(
        [sys.executable, "-c", "import passes"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ImportError" in result.stderr
    assert "import olivelike.passes" in result.stderr


def test_an_unknown_name_is_an_error_with_the_nearest_known_one():
    with pytest.raises(UsageError, match="unknown pass 'flaot16'; did you mean 'float16'"):
        Registry.built_in().get("flaot16")


@pytest.mark.parametrize("imports", ["from tint import VALUE", "from .tint import VALUE"])
def test_a_plugin_file_imports_the_helper_beside_it(write, write_pass, imports):
    write("tint.py", "VALUE = 7\n")
    plugin = write_pass("sharpen.py", "Sharpen", imports, "VALUE")
    entry = Registry.load([str(plugin)]).get("sharpen")
    assert run_of(entry) == 7
    assert (entry.module_file, entry.origin, entry.plugin) == (plugin, f"plugin {plugin}", str(plugin))


def test_a_helper_imported_while_the_pass_runs_is_found(write, write_pass):
    write("tint.py", "VALUE = 8\n")
    plugin = write_pass("sharpen.py", "Sharpen", value="__import__('tint').VALUE")
    assert run_of(Registry.load([str(plugin)]).get("sharpen")) == 8


def test_helpers_of_one_name_beside_two_plugins_stay_apart(write, write_pass):
    plugins = []
    for folder, name in (("a", "Sharpen"), ("b", "Blur")):
        write(f"{folder}/tint.py", f"VALUE = {folder!r}\n")
        plugins.append(str(write_pass(f"{folder}/code.py", name, "from tint import VALUE", "VALUE")))
    registry = Registry.load(plugins)
    assert [run_of(registry.get(name)) for name in ("sharpen", "blur")] == ["a", "b"]


def test_an_edit_within_the_same_second_is_seen_by_the_next_load(write, write_pass):
    plugin = str(write_pass("sharpen.py", "Sharpen", "from tint import VALUE", "VALUE"))
    seen = []
    for value in (1, 2, 3):
        write("tint.py", f"VALUE = {value}\n")
        seen.append(run_of(Registry.load([plugin]).get("sharpen")))
    assert seen == [1, 2, 3]


def test_loading_a_plugin_leaves_nothing_in_its_folder(write, write_pass, tmp_path):
    write("tint.py", "VALUE = 7\n")
    Registry.load([str(write_pass("sharpen.py", "Sharpen", "from tint import VALUE"))])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sharpen.py", "tint.py"]


def test_a_folder_offers_the_passes_of_every_module_but_tests_and_private_ones(write_pass, write, tmp_path):
    write_pass("more/sharpen.py", "Sharpen")
    write_pass("more/blur.py", "Blur")
    write("more/test_blur.py", "raise RuntimeError('a test is not a plugin')\n")
    write("more/_draft.py", "raise RuntimeError('a draft is not a plugin')\n")
    names = Registry.load([str(tmp_path / "more")]).names()
    assert {"sharpen", "blur"} < set(names)


def test_a_package_may_import_within_itself(write_pass, write, tmp_path):
    write("filters/__init__.py", "from .tint import VALUE\n")
    write("filters/tint.py", "VALUE = 9\n")
    write_pass(
        "filters/sharpen.py", "Sharpen", "from . import VALUE\nfrom .tint import VALUE as again", "VALUE + again"
    )
    assert run_of(Registry.load([str(tmp_path / "filters")]).get("sharpen")) == 18


def test_a_plugin_may_be_a_module_on_the_import_path(write_pass, tmp_path, monkeypatch):
    write_pass("path_plugin_one.py", "Sharpen")
    monkeypatch.syspath_prepend(tmp_path)
    plugin = resolve_plugin("path_plugin_one", tmp_path / "elsewhere")
    assert Registry.load([plugin]).get("sharpen").plugin == "path_plugin_one"


@pytest.mark.parametrize("value", ["vendor_passes", "vendor_passes:Sharpen", "vendor_passes.sharpen"])
def test_an_installed_distribution_offers_modules_packages_and_classes(install, write_pass, write, value):
    site = install("vendor", {"sharpen": value})
    write(f"{site}/vendor_passes/__init__.py", "from .sharpen import Sharpen\n")
    write_pass(f"{site}/vendor_passes/sharpen.py", "Sharpen")
    entry = Registry.load().get("sharpen")
    assert entry.origin == "entry point of distribution vendor"
    assert Registry.load_pass("sharpen", entry.plugin).cls is entry.cls
    for name in [name for name in sys.modules if name.startswith("vendor_passes")]:
        del sys.modules[name]


def test_an_entry_point_that_names_no_pass_is_an_error_with_its_distribution(install, write):
    site = install("vendor2", {"thing": "vendor2_passes:thing"})
    write(f"{site}/vendor2_passes.py", "thing = 1\n")
    with pytest.raises(PluginError, match=r"vendor2_passes\.py: entry point of distribution vendor2 names 'thing'"):
        Registry.load()


def test_a_pass_is_found_again_in_another_process(write, write_pass):
    write("tint.py", "VALUE = 7\n")
    plugin = write_pass("sharpen.py", "Sharpen", "from tint import VALUE", "VALUE")
    code = (
        "import sys; from olivelike.workflow.passes import Registry;"
        "print(Registry.load_pass(sys.argv[1], sys.argv[2]).cls().run(None, None))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "sharpen", str(plugin)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "7"


def test_a_name_taken_twice_is_an_error_that_names_both_places(write_pass):
    plugin = write_pass("mine.py", "Float16")
    with pytest.raises(PluginError) as caught:
        Registry.load([str(plugin)])
    message = str(caught.value)
    assert "two passes are called 'float16'" in message
    assert str(ROOT / "passes" / "float16.py") in message
    assert str(plugin) in message


def test_a_plugin_listed_twice_counts_once(write_pass):
    plugin = str(write_pass("sharpen.py", "Sharpen"))
    assert Registry.load([plugin, plugin]).get("sharpen").plugin == plugin


HEAD = "from olivelike.pass_api import Pass\nclass Sharpen(Pass):\n"
RUN = "    def run(self, model, context):\n        return model\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nraise KeyError('x')\n", "sharpen.py:2: KeyError: 'x'; fix it"),
        ("x = (\n", "sharpen.py:1: syntax error: '\\(' was never closed; fix it"),
        ("import sys\nsys.exit(3)\n", "sharpen.py:2: SystemExit: 3"),
        ("import no_such_thing.at_all\n", "distribution that has 'no_such_thing', put no_such_thing.py"),
        ("x = 1\n", "holds no pass .* has a method `run`"),
        (HEAD + "    reads = ('graph',)\n", "holds no pass .* has a method `run`"),
        (HEAD + "    reads = ('grahp',)\n" + RUN, "py:2: .*unknown facet 'grahp'; did you mean 'graph'"),
        (HEAD + "    writes = ('target',)\n" + RUN, "unknown facet 'target'; facets: architecture"),
        (HEAD + "    reads = 'graph'\n" + RUN, r"`reads` is 'graph'; make it a tuple of names"),
        (HEAD + "    strength = 1\n" + RUN, "sharpen.py:2: PydanticUserError"),
        ("\x00", "sharpen.py"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_an_error_with_file_line_and_remedy(write, text, expected):
    plugin = write("sharpen.py", text)
    with pytest.raises(PluginError, match=expected):
        Registry.load([str(plugin)])


def test_an_error_in_a_helper_is_placed_in_the_helper(write, write_pass):
    helper = write("tint.py", "\n\nVALUE = 1 / 0\n")
    plugin = write_pass("sharpen.py", "Sharpen", "from tint import VALUE")
    with pytest.raises(PluginError, match=f"{helper}:3: ZeroDivisionError"):
        Registry.load([str(plugin)])


@pytest.mark.parametrize("name", ["unittest.__main__", "idlelib", "this", "pytest.__main__", "..passes", "a b"])
def test_a_module_that_can_be_no_plugin_is_not_imported(name, capsys):
    known = set(sys.modules)
    with pytest.raises(PluginError, match=f"plugin '{re.escape(name)}' is no module that may hold passes"):
        Registry.load([name])
    assert not {found for found in set(sys.modules) - known if found.partition(".")[0] in name}
    assert capsys.readouterr().out == ""


def test_a_plugin_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(PluginError, match=f"plugin 'gone.py' does not exist at {tmp_path}/gone.py"):
        resolve_plugin("gone.py", tmp_path)
    with pytest.raises(PluginError, match="install the distribution that has 'gone_module'"):
        Registry.load([resolve_plugin("gone_module", tmp_path)])
