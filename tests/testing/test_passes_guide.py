"""The examples of `docs/passes.md` do what they say, and its tables are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import ClassVar

import numpy as np

from olivelike.model import Model
from olivelike.pass_api import Context, Pass
from olivelike.testing import LocalModel, LocalTensors, run_pass

GUIDE = (Path(__file__).parents[2] / "docs" / "passes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def example(word: str) -> dict:
    """Run the example that has a word in it, and return what it defines."""
    (text,) = (text for text in EXAMPLES if word in text)
    names: dict = {"Model": Model, "Context": Context, "MyPass": SeesLoras}
    exec(text, names)
    return names


class SeesLoras(Pass):
    reads: ClassVar = ("weights", "loras")

    def run(self, model, context):
        context.report(loras=len(context.loras))
        return model


def test_the_pass_over_weights_halves_biases_and_leaves_the_rest():
    class Halves(Pass):
        reads: ClassVar = ("weights",)
        writes: ClassVar = ("weights",)
        run = example("context.tensors.write")["run"]

    tensors = LocalTensors()
    weights = tensors.table({"a.bias": np.array([2], np.float16), "a.weight": np.array([2], np.float16)})
    result = run_pass(Halves(), LocalModel("unet", weights=weights, tensors=tensors))
    assert result.parameter("a.bias").tolist() == [1]
    assert result.parameter("a.bias").dtype == np.float16
    assert result.weights["a.weight"] == weights["a.weight"]


def test_the_test_with_a_lora_runs(tmp_path):
    names = example("make_lora")
    names["test_my_pass_sees_every_lora"](tmp_path)


def test_every_class_attribute_and_everything_lent_is_described():
    declared = {name for name in Pass.__annotations__ if name != "model_config"}
    lent = {field.name for field in dataclasses.fields(Context)}
    assert {name for name in declared | lent if f"`{name}`" not in GUIDE} == set()
