"""What passes say of their place in a chain."""

from __future__ import annotations

import re

import pytest

from olivelike.errors import WorkflowError
from olivelike.pass_api import PrecisionPlan
from olivelike.workflow import load_workflow

PLUGIN = """
from olivelike.pass_api import Pass, PrecisionPlan


class Calibrate(Pass):
    def run(self, model, context):
        return model


class Quantise(Calibrate):
    requires_before = ("calibrate",)
    requires_after = ("finish",)
    comes_before = ("fuse",)
    conflicts = ("bfloat16",)
    once = True

    def converts_to(self):
        return PrecisionPlan("fp16", ("Softmax",))


class Finish(Calibrate):
    reads = ("precision",)
"""


@pytest.fixture
def chain(write, project):
    (project / "workflows" / "order.py").write_text(PLUGIN)

    def load(*steps):
        text = f"source: a/b\ntarget: cuda\nplugins: [order.py]\noutput: o\ncomponents:\n  unet: [{', '.join(steps)}]\n"
        return load_workflow(write(text), allow_plugins=True).steps["unet"]

    return load


@pytest.mark.parametrize(
    ("steps", "column", "told"),
    [
        (("convert", "quantise", "finish"), 19, "'quantise' of unet needs `calibrate` before it; add it"),
        (("quantise", "calibrate", "finish"), 10, "needs `calibrate` before it; move it there"),
        (("calibrate", "quantise"), 21, "needs `finish` behind it; add it"),
        (("finish", "calibrate", "quantise"), 29, "needs `finish` behind it; move it there"),
        (("calibrate", "fuse", "quantise", "finish"), 27, "must come before `fuse`; move it there"),
        (("calibrate", "quantise", "bfloat16", "finish"), 31, "'bfloat16' of unet can't be in one chain"),
        (("calibrate", "bfloat16", "quantise", "finish"), 31, "'quantise' of unet can't be in one chain"),
        (("calibrate", "quantise", "quantise", "finish"), 31, "'quantise' of unet stands in the chain twice"),
        (("convert", "float16", "fuse"), 28, "'fuse' of unet must come before `float16`"),
        (("convert", "float16", "bfloat16"), 28, "'bfloat16' of unet can't be in one chain with `float16`"),
        (("merge_lora", "convert", "merge_lora"), 31, "'merge_lora' of unet stands in the chain twice"),
    ],
)  # fmt: skip
def test_a_chain_out_of_order_is_refused_at_its_place(chain, steps, column, told):
    with pytest.raises(WorkflowError, match=rf"mine\.yaml:6:{column}: pass .*{re.escape(told)}") as caught:
        chain(*steps)
    assert str(caught.value).count("mine.yaml:") == 1


def test_a_step_that_is_wrong_itself_is_not_missed_by_others(chain):
    with pytest.raises(WorkflowError, match="unknown key 'x'") as caught:
        chain("calibrate: {x: 1}", "quantise", "finish")
    assert "needs" not in str(caught.value)


def test_a_chain_in_order_is_taken(chain):
    assert len(chain("convert", "calibrate", "quantise", "fuse", "finish", "calibrate")) == 6


def test_a_step_that_reads_it_knows_what_the_nearest_step_behind_makes_of_the_graph(chain):
    def precision(*steps):
        return {step.pass_name: step.precision for step in chain(*steps)}

    assert precision("convert", "fuse") == {"convert": None, "fuse": PrecisionPlan()}
    assert precision("fuse", "float16: {force_fp32: [Softmax]}")["fuse"] == PrecisionPlan("fp16", ("Softmax",), True)
    assert precision("fuse", "float16: {auto: true}", "finish")["fuse"].precision == "fp16"
    assert precision("finish", "fuse", "bfloat16")["finish"] == PrecisionPlan("bf16")
    found = precision("calibrate", "quantise", "fuse", "finish", "float16")
    assert (found["fuse"], found["quantise"]) == (PrecisionPlan("fp16", (), True), None)
