"""Weights that an output can't have as they were: told once per component, recorded, and shown by `info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from olivelike.engine.output.folder_info import describe_folder
from olivelike.engine.output.lost_values import lost_values
from olivelike.model.records.output import OutputRecord
from olivelike.store import Store

if TYPE_CHECKING:
    from .conftest import Project

NORM = "post_quant_conv.weight"
PLUGIN = """
import numpy as np
from olivelike.pass_api import Pass

class Spoil(Pass):
    "Writes values that are no numbers."
    reads = ("weights",)
    writes = ("weights",)

    def run(self, model, context):
        name = "final_layer_norm.weight"
        array = context.tensors.read(model.weights[name]).astype(np.float32)
        array[:3] = np.nan, np.inf, -1e6
        return model.replace(weights=model.weights.replace({name: context.tensors.write(array)}))
"""


def vae_file(project: Project) -> Path:
    return project.folder / "checkpoint" / "vae" / "diffusion_pytorch_model.safetensors"


def spoil(path: Path, name: str, *values: float) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    changed = tensors[name].astype(np.float32)
    changed.reshape(-1)[: len(values)] = values
    save_file({**tensors, name: changed}, path)


def warnings(project: Project) -> list[str]:
    return [event.data["message"] for event in project.events if event.name == "warning"]


def test_values_of_a_checkpoint_that_are_no_numbers_are_told_with_tensor_and_file(project: Project) -> None:
    path = vae_file(project)
    spoil(path, NORM, np.nan, -np.inf)
    project.run()
    (told,) = warnings(project)
    assert told == (
        "vae_decoder: 2 values of its weights are infinite or NaN, and so is what it computes: "
        f"{NORM} (2, from {path}); mend what made them, or get the file again"
    )
    assert OutputRecord.require(project.output).components["vae_decoder"].not_finite == {NORM: 2}
    (node,) = (
        node for node in next(Store.open(project.folder / "cache").runs())["nodes"] if node["facts"].get("not_finite")
    )
    assert (node["id"], node["facts"]["not_finite"]) == ("vae_decoder.materialize", {NORM: 2})
    (problem,) = describe_folder(project.output).problems
    assert problem.startswith("vae_decoder: 2 values")
    assert NORM in problem


def test_values_that_half_precision_clamps_are_told(project: Project) -> None:
    spoil(vae_file(project), NORM, 1e6)
    project.run()
    (told,) = warnings(project)
    assert told.startswith("vae_decoder: 1 value of its weights is too large for half precision, and became its")
    assert f"{NORM} (1, from {vae_file(project)})" in told
    assert describe_folder(project.output).facts["clamped"] == [told.replace(f", from {vae_file(project)}", "")]
    project.run("target=cpu", "components.vae_decoder=[convert]")
    assert warnings(project) == []


def test_a_pass_that_wrote_them_is_named(project: Project) -> None:
    (project.folder / "spoil.py").write_text(PLUGIN, encoding="utf-8")
    project.run("components.text_encoder=[spoil, convert, float16]", plugins=(str(project.folder / "spoil.py"),))
    name = "final_layer_norm.weight"
    infinite, clamped = warnings(project)
    assert "text_encoder: 2 values of its weights are infinite or NaN" in infinite
    assert f"{name} (2, pass spoil)" in infinite
    assert f"{name} (1, pass spoil)" in clamped


def test_what_is_copied_from_an_earlier_run_is_told_again(project: Project) -> None:
    spoil(vae_file(project), NORM, np.nan)
    project.run()
    spoil(vae_file(project), "decoder.conv_in.bias", 0.5)
    project.run()
    (told,) = warnings(project)
    assert f"{NORM} (1, from {vae_file(project)})" in told


def test_the_worst_tensors_are_named_and_the_operators_that_compute_them() -> None:
    parameter = {"parameter": "conv_in.weight", "shape": [4]}
    zero = {"constant": [0.0], "dtype": "FLOAT", "shape": []}
    facts = {
        "derivations": {
            "worst": {"op": "Cast", "inputs": [{"op": "Div", "inputs": [parameter, zero]}]},
            **{str(place): parameter for place in range(4)},
        },
        "not_finite": {**{str(place): 1 for place in range(4)}, "worst": 5000},
    }
    assert lost_values("unet", "not_finite", facts, lambda _: "from x.safetensors") == (
        "unet: 5,004 values of its weights are infinite or NaN, and so is what it computes: worst (5,000, from "
        "x.safetensors, by Div of the graph), 0 (1, from x.safetensors), 1 (1, from x.safetensors) and 2 more; mend "
        "what made them, or get the file again"
    )


def test_healthy_weights_are_not_remarked(project: Project) -> None:
    info = describe_folder(project.output)
    assert (list(info.problems), info.facts.get("clamped")) == ([], None)
