"""Passes that misbehave: the run fails with status 4 and a log, store and outputs are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivelike import errors
from olivelike.engine.execute.process_executor import ProcessExecutor
from olivelike.errors import PassError, PluginError, SourceError

from .conftest import Project

HEAD = """
from olivelike.pass_api import Pass

class Bad(Pass):
    "A pass that misbehaves."
    reads = ("graph",)
    writes = ("graph",)

    def run(self, model, context):
"""

ENDING = ("is killed", "exits")
"""Cases that only a process of its own survives; the others are done in this one."""
CASES = {
    "raises": ("        raise ValueError('no such luck')", r"ValueError: no such luck \(at bad\.py:10\)"),
    "returns nothing": ("        return None", "returned NoneType, not olivelike's Model"),
    "changes undeclared": (
        "        from olivelike.model import Weights\n        return model.replace(weights=Weights({}))",
        "changed the weights without declaring it",
    ),
    "returns a broken graph": (
        "        from olivelike.model import Graph\n        return model.replace(graph=Graph(b'not onnx'))",
        "not valid ONNX",
    ),
    "puts text in place of a graph": ("        return model.replace(graph='text')", "put str in place of the graph"),
    "is killed": (
        "        import os, signal\n        os.kill(os.getpid(), signal.SIGKILL)",
        "its process was killed by SIGKILL, as the system does when memory runs out; try --workers 1",
    ),
    "exits": ("        import os\n        os._exit(3)", "ended with status 3"),
    "runs out of memory": ("        raise MemoryError", "--memory-limit"),
    "leaves a set": ("        context.report(x={1})\n        return model", "facts that JSON can't hold"),
    "leaves NaN": ("        context.report(x=float('nan'))\n        return model", "facts that JSON can't hold"),
    "drops the graph": ("        return model.replace(graph=None)", "dropped the graph"),
    "calls sys.exit": ("        raise SystemExit(1)", "SystemExit"),
}


def add_plugin(project: Project, body: str) -> None:
    plugins = project.folder / "plugins"
    plugins.mkdir()
    (plugins / "bad.py").write_text(HEAD + body + "\n", encoding="utf-8")
    project.edit("text_encoder: [convert, float16]", "text_encoder: [convert, bad, float16]")
    project.edit("name: small", "name: small\nplugins: [../plugins/bad.py]")


SHOWN_BY_OTHERS = ("exits", "leaves NaN")
"""A process that is gone is one whatever ended it, and so are facts that JSON can't hold."""


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=[pytest.mark.slow] * (one in SHOWN_BY_OTHERS)) for one in CASES]
)
def test_a_pass_that_misbehaves_fails_its_node_and_nothing_else(project: Project, case: str) -> None:
    body, message = CASES[case]
    if case in ENDING:
        project.executor = ProcessExecutor
    add_plugin(project, body)
    before = project.files()
    with pytest.raises(PassError, match=message) as caught:
        project.run("components.vae_decoder.1.float16.keep_io=true")
    assert caught.value.exit_code == 4
    assert project.failed() == {"text_encoder.bad"}
    assert "vae_decoder.materialize" in project.executed()
    assert project.files() == before
    assert project.leftovers() == []
    log = Path(str(caught.value).partition("log: ")[2].strip())
    assert log.is_file()


@pytest.mark.parametrize(
    ("kind", "status"),
    [("UsageError", 2), ("MissingError", 3), ("SessionError", 3), ("PassError", 4), ("VerificationError", 5)],
)
def test_an_error_of_a_pass_keeps_its_kind(project: Project, kind: str, status: int) -> None:
    add_plugin(project, f"        from olivelike import errors\n        raise errors.{kind}('such an error')")
    with pytest.raises(getattr(errors, kind), match="such an error") as caught:
        project.run(only=("text_encoder",))
    assert caught.value.exit_code == status


def test_a_failure_is_not_remembered(project: Project) -> None:
    add_plugin(project, "        raise ValueError('once')")
    with pytest.raises(PassError):
        project.run()
    plugin = project.folder / "plugins" / "bad.py"
    plugin.write_text(HEAD + "        return model\n", encoding="utf-8")
    project.run()
    assert project.executed() == {"text_encoder.bad"}
    assert project.counts()["output_published"] == 0


def test_with_keep_going_an_output_that_needs_no_failed_node_is_published(project: Project) -> None:
    add_plugin(project, "        raise ValueError('no')")
    outputs = "outputs:\n  - {path: models/small}\n  - {path: models/raw, until: convert}\n"
    project.edit("output: models/small\n", outputs)
    with pytest.raises(PassError):
        project.run()
    assert not (project.folder / "models" / "raw").exists()
    with pytest.raises(PassError):
        project.run(keep_going=True)
    assert (project.folder / "models" / "raw" / "text_encoder" / "model.onnx").is_file()


def test_with_keep_going_nothing_is_published_when_the_assets_failed(project: Project) -> None:
    before = project.files()
    vocabulary = project.folder / "checkpoint" / "tokenizer" / "vocab.json"
    vocabulary.write_text("{", encoding="utf-8")
    with pytest.raises(SourceError, match="tokenizer"):
        project.run("components.vae_decoder.1.float16.keep_io=true", keep_going=True)
    assert project.failed() == {"pipeline.assets"}
    assert project.files() == before


def test_a_plugin_that_does_not_load_is_refused_before_anything_runs(project: Project) -> None:
    add_plugin(project, "        return model\nraise RuntimeError('at import')")
    before = project.files()
    with pytest.raises(PluginError, match="at import"):
        project.run()
    assert project.files() == before


def test_a_changed_helper_module_reruns_the_plugin_and_is_named(project: Project) -> None:
    add_plugin(project, "        from helper import same\n        return same(model)")
    helper = project.folder / "plugins" / "helper.py"
    helper.write_text("def same(model):\n    return model\n", encoding="utf-8")
    project.run()
    assert project.executed() == {"text_encoder.bad"}
    helper.write_text("def same(model):\n    # now with a comment\n    return model\n", encoding="utf-8")
    project.run()
    assert project.executed() == {"text_encoder.bad"}
    assert project.reasons()["text_encoder.bad"] == "code changed: helper"


def test_a_plugin_can_write_weights(project: Project) -> None:
    body = """
        import numpy as np
        name = next(iter(model.weights))
        array = context.tensors.read(model.weights[name])
        return model.replace(weights=model.weights.replace({name: context.tensors.write(np.zeros_like(array))}))
"""
    head = HEAD.replace('reads = ("graph",)', 'reads = ("weights",)').replace(
        'writes = ("graph",)', 'writes = ("weights",)'
    )
    add_plugin(project, "        return model")
    (project.folder / "plugins" / "bad.py").write_text(head + body, encoding="utf-8")
    before = project.files()
    project.run()
    assert project.executed() == {"text_encoder.bad", "text_encoder.materialize"}
    after = project.files()
    assert after["text_encoder/weights.pb"] != before["text_encoder/weights.pb"]
    assert len(after["text_encoder/weights.pb"]) == len(before["text_encoder/weights.pb"])


def test_a_pass_that_never_ends_is_ended_after_the_time_that_a_step_may_take(project: Project) -> None:
    add_plugin(project, "        import time\n        while True:\n            time.sleep(0.1)")
    project.executor = ProcessExecutor
    with pytest.raises(
        PassError, match=r"text_encoder\.bad failed: took more than 0\.5 s, which --step-timeout allows"
    ):
        project.run(step_timeout=0.5, only=("text_encoder",))
    assert project.failed() == {"text_encoder.bad"}
    assert project.leftovers() == []


TENSOR_CASES = {
    "another shape": (
        "{name: context.tensors.write(array[:3])}",
        r"bad failed: pass bad returned 'final_layer_norm\.weight' with the shape \(3,\), and the network has \(32,\)",
    ),
    "whole numbers": ("{name: context.tensors.write(array.astype('int8'))}", "as int8, and the network has floats"),
    "fewer bytes than it says": (
        "{name: dataclasses.replace(context.tensors.write(array[:3]), shape=array.shape)}",
        r"pass bad returned 'final_layer_norm\.weight' as F32 of shape \(32,\), which ends at byte 128 of a file of 12",
    ),
    "another type than it wrote": (
        "{name: dataclasses.replace(context.tensors.write(array.astype('float16')), dtype='F32')}",
        "which ends at byte 128 of a file of 64",
    ),
    "half of what it wrote": (
        "{name: dataclasses.replace(context.tensors.write(array), dtype='F16')}",
        "which ends at byte 64 of a file of 128",
    ),
    "a file that is nowhere": (
        "{name: dataclasses.replace(model.weights[name], file='0' * 64)}",
        "in a file that nobody has, '000000000000'",
    ),
}


@pytest.mark.parametrize(
    ("place", "case"),
    [
        *(("behind", one) for one in (*TENSOR_CASES, "a parameter less")), ("before", "another shape"),
        ("before", "a parameter less"),
        *(pytest.param("before", one, marks=pytest.mark.slow) for one in TENSOR_CASES if one != "another shape"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_the_network_name_the_pass_that_wrote_them(
    project: Project, case: str, place: str
) -> None:
    changed, message = TENSOR_CASES.get(case, (None, "pass bad returned no parameter 'final_layer_norm.weight'"))
    head = HEAD.replace('("graph",)', '("weights",)').replace("\nfrom", "\nimport dataclasses\nfrom", 1)
    body = [
        "name = 'final_layer_norm.weight'",
        "array = context.tensors.read(model.weights[name])",
        f"weights = model.weights.replace({changed})"
        if changed
        else "weights = type(model.weights)({k: v for k, v in model.weights.items() if k != name})",
        "return model.replace(weights=weights)",
    ]
    add_plugin(project, "        return model")
    (project.folder / "plugins" / "bad.py").write_text(head + "".join(f"        {line}\n" for line in body))
    if place == "before":
        project.edit("[convert, bad, float16]", "[bad, convert, float16]")
    with pytest.raises(PassError, match=message) as caught:
        project.run()
    assert caught.value.exit_code == 4
    assert project.failed() == {"text_encoder.bad"}


def test_a_graph_that_takes_a_parameter_in_another_shape_names_the_pass(project: Project) -> None:
    add_plugin(
        project,
        "        import onnx\n"
        "        from olivelike.model import Graph\n"
        "        proto = onnx.load_model_from_string(model.graph.data)\n"
        "        (value,) = (v for v in proto.graph.input if any(\n"
        "            m.value == 'final_layer_norm.weight' for m in v.metadata_props))\n"
        "        value.type.tensor_type.shape.dim[0].dim_value = 3\n"
        "        return model.replace(graph=Graph(proto.SerializeToString()))",
    )
    with pytest.raises(
        PassError, match=r"pass bad returned a graph that takes 'final_layer_norm\.weight' with the shape"
    ):
        project.run()
