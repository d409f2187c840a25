"""`compare_with_torch`: agrees with what agrees, and notices what does not."""

from __future__ import annotations

import numpy as np
import pytest

from olivelike.engine.output.materialize import materialize
from olivelike.errors import UsageError, VerificationError
from olivelike.measure.verify import original
from olivelike.measure.verify.original import relative_error
from olivelike.testing import Case, Comparison, compare_with_torch, parity, run_pass, tiny_model
from olivelike.workflow.passes import Registry

CASE = Case(1, 16, 8, 5)


@pytest.fixture
def model(tiny):
    return tiny("text_encoder")


@pytest.fixture
def forgotten(monkeypatch):
    """Forget what torch has answered to other tests."""
    monkeypatch.setattr(parity, "_originals", {})
    return parity._originals


def test_every_output_is_compared_at_every_case(model):
    comparison = compare_with_torch(model)
    assert [case.batch for case in comparison.errors] == [1, 3]
    for errors in comparison.errors.values():
        assert list(errors) == ["last_hidden_state", "pooler_output", *(f"hidden_states.{i}" for i in range(4))]
    assert 0 < comparison.worst < 1e-5


def test_equal_seeds_give_equal_errors_and_others_others(model, forgotten):
    found = []
    for seed in (1, 1, 2):
        forgotten.clear()
        found.append(compare_with_torch(model, cases=[CASE], seed=seed).errors)
    first, second, third = found
    assert first == second
    assert first != third


def test_torch_runs_once_for_equal_weights_cases_and_seeds(model, forgotten, monkeypatch):
    asked, run = [], original.run_torch
    monkeypatch.setattr(original, "run_torch", lambda *given: asked.append(1) or run(*given))
    assert compare_with_torch(model, cases=[CASE]).errors == compare_with_torch(model, cases=[CASE]).errors
    assert len(asked) == 1
    compare_with_torch(model, cases=[CASE], seed=1)
    name = "final_layer_norm.weight"
    changed = model.replace(weights=model.weights.replace({name: model.tensors.write(model.parameter(name) * 2)}))
    compare_with_torch(model, changed, cases=[CASE])
    assert len(asked) == 3
    monkeypatch.setattr(parity, "_MOST_ORIGINALS", 3)
    compare_with_torch(model, cases=[CASE], seed=2)
    assert len(forgotten) == 3


def test_a_changed_weight_is_noticed_and_the_output_named(model):
    name = "final_layer_norm.weight"
    changed = model.tensors.write(model.parameter(name) * np.float32(1.01))
    other = model.replace(weights=model.weights.replace({name: changed}))
    comparison = compare_with_torch(other, model, cases=[CASE])
    with pytest.raises(VerificationError, match=r"further from torch than 1e-05: last_hidden_state at batch 1"):
        comparison.require(1e-5)
    assert comparison.errors[CASE]["hidden_states.0"] < 1e-5


def test_a_folder_is_compared_with_the_model_that_it_was_made_from(model, tmp_path):
    materialize(model.graph, model.weights, model.tensors.files, tmp_path, lambda done, total: None)
    before = {path.name for path in tmp_path.iterdir()}
    compare_with_torch(tmp_path, model, cases=[CASE]).require(1e-5)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_folder_needs_its_original(tmp_path):
    with pytest.raises(UsageError, match="name the original of the folder"):
        compare_with_torch(tmp_path)


def test_a_model_needs_a_graph():
    with pytest.raises(UsageError, match="run `convert` on it first"):
        compare_with_torch(tiny_model("text_encoder"))


def test_a_graph_for_another_device_is_checked_by_what_its_operators_mean(model):
    fused = run_pass(Registry.built_in().get("fuse").cls, model, target="cuda")
    assert "com.microsoft" in fused.graph.to_ir().graph.opset_imports
    compare_with_torch(fused, cases=[CASE]).require(1e-5)


def test_another_shape_is_infinitely_wrong():
    assert relative_error(np.zeros(2), np.zeros(3)) == np.inf


def test_zeros_agree_with_zeros_alone():
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.ones(2), np.zeros(2)) == np.inf
    assert relative_error(np.zeros(2), np.ones(2)) == 1


def test_nan_is_never_close_enough():
    with pytest.raises(VerificationError, match="nan"):
        Comparison({CASE: {"sample": float("nan")}}).require(1.0)
    assert np.isnan(Comparison({CASE: {"a": 0.0, "b": float("nan")}}).worst)
