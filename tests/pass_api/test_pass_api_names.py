"""What a pass author may rely on: the names, their types, and the version that promises them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import olivelike.pass_api
from olivelike.errors import PassError, PluginError
from olivelike.model import Graph, Model
from olivelike.pass_api import Context
from olivelike.workflow.passes import Registry

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "passes.md", ROOT / "docs" / "fusion.md"]


def test_the_public_names_are_pinned_since_nothing_may_leave_within_a_version() -> None:
    assert olivelike.pass_api.PASS_API == 1
    assert olivelike.pass_api.__all__ == [
        "BARRIERS", "BLOCK_KEY", "CONTRIB", "PARAMETER_KEY", "PASS_API", "Architecture", "Cache", "Context",
        "Drawing", "EmbeddingInput", "Graph", "GraphEditor", "LoraInput", "Model", "Pass",
        "PassError", "PrecisionPlan", "Progress", "Resources", "Rule", "Scope", "Target", "Tensor", "TensorAccess",
        "Weights", "attribute",
        "block_of", "constant_array", "dims_of", "input_of", "only_user", "parameter_inputs", "producer",
        "real_inputs", "same_shape", "weight_values",
    ]  # fmt: skip


def test_every_public_name_is_there_and_nothing_heavy_is_imported_before_it_is_used() -> None:
    assert all(hasattr(olivelike.pass_api, name) for name in olivelike.pass_api.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'GraphEditr'"):
        _ = olivelike.pass_api.GraphEditr
    code = "import sys, olivelike.pass_api; sys.exit(any(name in sys.modules for name in ('numpy', 'onnx', 'onnx_ir')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_of_the_guides_pass_mypy_strict(tmp_path: Path) -> None:
    number = 0
    for page in PAGES:
        for text in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if "import" in text:
                number += 1
                name = "halve_biases" if "class HalveBiases" in text else f"example_{number}"
                (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    # `MyPass` is the reader's own.
    for file in tmp_path.glob("*.py"):
        if "MyPass()" in (text := file.read_text(encoding="utf-8")):
            file.write_text(text.replace("MyPass()", "HalveBiases()") + "\nfrom halve_biases import HalveBiases\n")
    example = ROOT / "docs" / "plugin-example"
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    cache = os.environ.get("MYPY_CACHE_DIR", str(ROOT / ".mypy_cache"))  # `make lint` has checked ours.
    files = [*tmp_path.glob("*.py"), *example.glob("olivelike_shorten/*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", config, *map(str, sorted(files))],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": f"{ROOT}{os.pathsep}{example}", "MYPY_CACHE_DIR": cache},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert number >= 7
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_facet_that_is_not_there_is_named_with_what_to_do() -> None:
    model = Model("unet", graph=Graph(b"x"))
    assert model.require("graph").data == b"x"
    with pytest.raises(PassError, match="the weights of unet is needed.*add 'weights' to the pass's `reads`"):
        model.require("weights")


def test_what_a_pass_does_not_read_is_not_lent(tmp_path: Path) -> None:
    context = Context(tmp_path, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(PassError, match="the context has no target; add 'target' to the pass's `reads`"):
        context.require_target()
    with pytest.raises(PassError, match="the context has no original"):
        context.require_original()


@pytest.mark.parametrize(("version", "remedy"), [(2, "update olivelike"), (0, "newer version of the pass")])
def test_a_pass_for_another_version_is_refused_with_a_remedy(tmp_path: Path, version: int, remedy: str) -> None:
    file = tmp_path / "old.py"
    file.write_text(
        "from olivelike.pass_api import Pass\n\n\nclass Old(Pass):\n"
        f"    pass_api = {version}\n\n    def run(self, model, context):\n        return model\n"
    )
    with pytest.raises(
        PluginError, match=rf"old\.py:4: pass 'old': it is for pass API {version}, .* has 1; .*{remedy}"
    ):
        Registry.load([str(file)])
