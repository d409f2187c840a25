"""Rules that a plugin adds to `fuse`."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from olivelike.engine.keys import pass_code
from olivelike.errors import PluginError
from olivelike.pass_api import Graph, Model, PassError, Rule
from olivelike.testing import fuse_with
from olivelike.workflow import load_workflow
from olivelike.workflow.passes import Registry

GUIDE = (Path(__file__).parents[3] / "docs" / "fusion.md").read_text(encoding="utf-8")
(PLUGIN,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
TEXT = """<ir_version: 11, opset_import: ["": 23]>
silus (float[N,4] x) => (float[N,4] y) { s = Sigmoid(x) y = Mul(x, s) }"""
MODEL = Model("unet", graph=Graph(onnx.parser.parse_model(TEXT).SerializeToString()))


@pytest.fixture
def model():
    proto = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(MODEL.require("graph").data))
    return Model("unet", graph=Graph(proto.SerializeToString()))


@pytest.fixture
def silu():
    names: dict = {}
    exec(compile(PLUGIN, "silu.py", "exec", dont_inherit=True), names)
    return names["silu"]


def operators(result):
    return [node.op_type for node in result.graph.to_ir().graph]


def test_the_rule_of_the_guide_is_run_and_can_be_switched_off(model, silu):
    assert isinstance(silu, Rule)
    result = fuse_with([silu], model, target="cuda", precision="fp32")
    assert operators(result) == ["QuickGelu"]
    assert result.facts["fused"]["silu"] == {"QuickGelu": 1}
    assert operators(fuse_with([silu], model, target="cuda", silu=False)) == ["Sigmoid", "Mul"]


def test_what_the_target_lacks_is_left_with_the_reason(model, silu):
    result = fuse_with([silu], model, target="tensorrt", precision="fp32")
    assert operators(result) == ["Sigmoid", "Mul"]
    assert list(result.facts["left"]) == ["silu"]


def test_a_rule_that_leaves_a_wrong_graph_stops_with_its_name(model):
    @Rule
    def careless(scope):
        """Anything → nothing."""
        scope.editor.nodes("Sigmoid")[0].outputs[0].dtype = None
        scope.fused["x"] += 1

    with pytest.raises(PassError, match="rule careless left 's' of Sigmoid without type or shape"):
        fuse_with([careless], model, target="cuda")


def test_a_rule_of_a_plugin_is_an_option_of_fuse_with_its_help(write):
    entry = Registry.load([str(write("silu.py", PLUGIN))]).get("fuse")
    assert entry.cls.name() == "fuse"
    field = entry.cls.model_fields["silu"]
    assert (field.default, field.description) == (True, "x · Sigmoid(x) → QuickGelu with alpha 1.")
    assert "silu" not in Registry.built_in().get("fuse").cls.model_fields
    again = Registry.load_pass("fuse", entry.plugin, entry.rule_plugins)
    assert again.cls(silu=False).model_dump() == entry.cls(silu=False).model_dump()
    assert [rule.name for rule in again.cls.rules] == ["silu"]


def test_the_code_of_a_rule_is_part_of_the_key_of_fuse(write):
    plain = Registry.built_in().get("fuse")

    def digest(text):
        entry = Registry.load([str(write("silu.py", text))]).get("fuse")
        return pass_code(entry, entry.cls()).digest

    assert len({digest(PLUGIN), digest(PLUGIN + "# more\n"), pass_code(plain, plain.cls()).digest}) == 3
    uncached = PLUGIN + "\n\nimport os\nx = os.environ.get('X')\n"
    assert digest(uncached) is None


def test_a_workflow_names_the_rule_of_its_plugin(write, tmp_path):
    write("silu.py", PLUGIN)
    file = write(
        "mine.yaml",
        "source: a/b\ntarget: cuda\nplugins: [silu.py]\noutput: o\ncomponents:\n"
        "  unet: [convert, fuse: {silu: false, packed_qkv: false}]\n",
    )
    step = load_workflow(str(file), allow_plugins=True).steps["unet"][1]
    assert step.instance.model_dump()["silu"] is False


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("def silu", "def attention"), "two rules are called 'attention': the one of `fuse` itself and"),
        (("@Rule", "@(lambda f: Rule(f, before='cleenup'))"), "runs before 'cleenup'; did you mean 'cleanup'"),
    ],
)
def test_a_rule_that_fits_nowhere_is_refused(write, change, told):
    with pytest.raises(PluginError, match=re.escape(told)):
        Registry.load([str(write("silu.py", PLUGIN.replace(*change)))])


def test_a_rule_can_be_an_entry_point(write, install):
    site = install("silus", {"silu": "silus.rules:silu"})
    (site / "silus").mkdir()
    (site / "silus" / "rules.py").write_text(PLUGIN)
    entry = Registry.load().get("fuse")
    assert entry.rules[0].origin == "entry point of distribution silus"
    assert Registry.load_pass("fuse", None, entry.rule_plugins).cls().model_dump()["silu"] is True
