"""`run_pass`: what an author's test sees is what a run would do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

import olivelike.testing
from olivelike.errors import PassError, UsageError
from olivelike.model import Architecture, Graph, Model
from olivelike.model.targets import find_target
from olivelike.pass_api import Pass
from olivelike.testing import LocalModel, LocalTensors, run_pass
from olivelike.workflow.passes import new_pass

TEXT = '<ir_version: 10, opset_import: ["": 23]> before (float[N] x) => (float[N] y) { y = Relu(x) }'
MODEL = Model("unet", graph=Graph(onnx.parser.parse_model(TEXT).SerializeToString()))


class Rename(Pass):
    reads = ("graph",)
    writes = ("graph",)

    label: str = "after"
    marks: tuple[int, ...] = ()
    folder: Path = Path("nowhere")
    mode: Literal["a", "b"] = "a"

    def run(self, model, context):
        onnx_model = model.graph.to_ir()
        onnx_model.graph.name = self.label
        context.report(marks=self.marks, types=[type(self.marks).__name__, type(self.folder).__name__])
        return model.replace(graph=Graph.from_ir(onnx_model))


SEEN = []


class Look(Pass):
    """Returns the model, and the context to whoever looks."""

    reads = ("target",)

    def run(self, model, context):
        assert list(context.scratch.iterdir()) == []
        (context.scratch / "file").write_text("x")
        context.progress(1, 2)
        context.logger.info("working")
        SEEN.append(context)
        return model


class LookAway(Look):
    reads = ()


class Double(Pass):
    reads = ("weights",)
    writes = ("weights",)

    def run(self, model, context):
        doubled = {name: context.tensors.write(context.tensors.read(t) * 2) for name, t in model.weights.items()}
        return model.replace(weights=model.weights.replace(doubled))


def returning(value, *, writes=()):
    """Return a pass that returns `value`."""
    declared = writes

    class Odd(Pass):
        writes = declared

        def run(self, model, context):
            return value(model)

    return Odd()


@pytest.mark.parametrize(("tested", "options"), [(Rename(label="x"), {}), (Rename, {"label": "x"})])
def test_a_pass_is_given_as_an_instance_or_as_a_class_with_options(tested, options):
    assert run_pass(tested, MODEL, **options).graph.to_ir().graph.name == "x"


def test_the_result_is_a_model_with_the_facts_of_the_run_record():
    result = run_pass(Rename(marks=(1, 2)), MODEL)
    assert isinstance(result, Model)
    assert result.facts == {"marks": [1, 2], "types": ["tuple", type(Path()).__name__]}
    assert result.component == "unet"


def test_the_result_can_be_the_next_model_and_facts_start_anew():
    result = run_pass(Rename(label="second"), run_pass(Rename(label="first", marks=(1,)), MODEL))
    assert result.graph.to_ir().graph.name == "second"
    assert result.facts["marks"] == []


def test_options_beside_an_instance_are_refused():
    with pytest.raises(UsageError, match="give the options to Rename itself: label"):
        run_pass(Rename(), MODEL, label="x")


def test_a_wrong_option_is_refused():
    with pytest.raises(ValueError, match="mode"):
        run_pass(Rename, MODEL, mode="c")


@pytest.mark.parametrize("target", ["cuda", find_target("cuda")])
def test_a_pass_that_reads_the_target_gets_it(target):
    run_pass(Look(), MODEL, target=target)
    assert SEEN[-1].target == find_target("cuda")


def test_a_pass_that_does_not_read_the_target_gets_none():
    run_pass(LookAway(), MODEL, target="cuda")
    assert SEEN[-1].target is None


def test_a_target_that_is_needed_must_be_given():
    with pytest.raises(UsageError, match="pass look reads the target; give one"):
        run_pass(Look(), MODEL)


def test_the_scratch_folder_is_gone_afterwards():
    run_pass(LookAway(), MODEL)
    assert not SEEN[-1].scratch.exists()


def test_weights_are_read_and_written_through_the_tensors_of_the_model():
    tensors = LocalTensors()
    table = tensors.table({"bias": np.arange(3, dtype=np.float32), "scale": np.float16(2).reshape(())})
    model = LocalModel("unet", weights=table, tensors=tensors)
    result = run_pass(Double(), run_pass(Double(), model))
    assert result.parameter("bias").tolist() == [0, 4, 8]
    assert (result.parameter("scale").shape, result.parameter("scale")) == ((), 8)
    assert model.parameter("bias").tolist() == [0, 1, 2]


def test_tensors_of_equal_bytes_are_one_file_and_their_folder_goes_with_the_last_user():
    tensors = LocalTensors()
    first, second = (tensors.write(np.ones(3, np.float32)) for _ in range(2))
    folder = tensors.files[first.file].parent
    assert first == second
    assert len(list(folder.iterdir())) == 1
    del tensors
    assert not folder.exists()


def test_a_tensor_of_a_dtype_that_weights_cannot_have_is_refused():
    with pytest.raises(PassError, match="dtype complex64 can't be stored"):
        LocalTensors().write(np.zeros(2, np.complex64))


OTHER = Graph(onnx.parser.parse_model(TEXT.replace("before", "other")).SerializeToString())
INVALID = Graph(onnx.parser.parse_model(TEXT.replace("Relu(x)", "Relu(z)")).SerializeToString())


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (returning(lambda model: None), "pass odd returned NoneType, not olivelike's Model"),
        (returning(lambda model: model.graph.to_ir()), r"returned onnx_ir\S*\.Model, not olivelike's Model; return"),
        (returning(lambda model: model.replace(component="vae")), "renamed component 'unet' to 'vae'"),
        (returning(lambda model: model.replace(graph=OTHER)), "changed the graph without declaring it"),
        (returning(lambda model: model.replace(graph=None)), "changed the graph without declaring it"),
        (returning(lambda model: model.replace(graph=b"x"), writes=("graph",)), "put bytes in place of the graph"),
        (returning(lambda model: model.replace(graph=INVALID), writes=("graph",)), "not valid ONNX"),
        (
            returning(lambda model: model.replace(architecture=Architecture("unet", "diffusers", "A", {}))),
            "changed the architecture without declaring it",
        ),
    ],
)
def test_a_pass_that_breaks_its_promise_fails(odd, message):
    with pytest.raises(PassError, match=message):
        run_pass(odd, MODEL)


def test_facts_that_json_cannot_hold_are_refused():
    class Chatty(Pass):
        def run(self, model, context):
            context.report(what=object())
            return model

    with pytest.raises(PassError, match="pass chatty left facts that JSON can't hold"):
        run_pass(Chatty(), MODEL)


def test_the_test_that_new_pass_writes_passes(tmp_path):
    new_pass("prune_heads", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_every_public_name_is_there_and_none_is_imported_before_it_is_used():
    assert {name: getattr(olivelike.testing, name).__name__ for name in olivelike.testing.__all__} == {
        name: name for name in olivelike.testing.__all__
    }
    with pytest.raises(AttributeError, match="has no attribute 'make_coffee'"):
        _ = olivelike.testing.make_coffee
    code = "import sys, olivelike.testing; sys.exit(any(name in sys.modules for name in ('numpy', 'onnx', 'torch')))"
    subprocess.run([sys.executable, "-c", code], check=True)
