"""Tables of coefficients that a graph computes, against diffusers' schedulers, step by step."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from olivelike.errors import PassError, SourceError
from olivelike.extras.one_file.arithmetic import Number, Writer
from olivelike.extras.one_file.pipeline_facts import pipeline_facts
from olivelike.extras.one_file.schedules import COLUMNS, NOISE, SCHEDULERS, check_schedules, coefficients
from olivelike.runtime.schedulers.spacing import SCHEDULER_FILE
from tests.fixtures.their_schedulers import their_scheduler

PUBLISHED = {
    "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
    "num_train_timesteps": 1000, "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1,
    "trained_betas": None, "clip_sample": False,
}  # fmt: skip
"""Of SD 1.5."""
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "epsilon": {},
    "v": {"prediction_type": "v_prediction"},
    "v without signal at the end": {
        "_class_name": "DDIMScheduler",
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "timestep_spacing": "trailing",
    },
    "Euler's own linspace": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "linspace"},
    "Euler's own leading": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading"},
    "few train steps": {"num_train_timesteps": 300, "original_inference_steps": 100},
}


class Table:
    """The graph of a checkpoint's tables, open."""

    def __init__(self, config: dict[str, Any]) -> None:
        facts = pipeline_facts({}, {SCHEDULER_FILE: json.dumps(config).encode()}, {})
        check_schedules(facts.schedules)
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="tables")
        writer = Writer(graph, "", floats=np.float64)
        asked = []
        for name in ("scheduler", "steps"):
            value = ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
            graph.inputs.append(value)
            asked.append(Number(value, writer))
        for number in coefficients(writer, facts.schedules, facts.alphas, *asked):
            number.value.dtype = ir.DataType.FLOAT
            graph.outputs.append(number.value)
        data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        self._session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def __call__(self, name: str, steps: int) -> tuple[np.ndarray, float]:
        place = np.array([list(SCHEDULERS).index(name)])
        table, factor = self._session.run(None, {"scheduler": place, "steps": np.array([steps])})
        return table, float(factor[0])


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Table]:
    config = {**PUBLISHED, **CHECKPOINTS[request.param]}
    return config, Table(config)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_steps_are_those_of_diffusers(checkpoint: tuple[dict[str, Any], Table], name: str) -> None:
    config, table = checkpoint
    for steps in (1, 7, 48):
        scheduler = their_scheduler(name, config)
        scheduler.set_timesteps(steps)
        rows, factor = table(name, steps)
        assert rows.shape == (steps, len(COLUMNS))
        assert len(scheduler.timesteps) == steps
        noise = torch.Generator().manual_seed(steps)
        draws = [torch.randn((1, 4, 5, 3), generator=noise) for _ in range(steps + 1)]
        expected = draws[0] * scheduler.init_noise_sigma
        found = draws[0].double().numpy() * factor
        before = np.zeros_like(found)
        source = torch.Generator().manual_seed(steps)
        torch.randn((1, 4, 5, 3), generator=source)
        more = {"generator": source} if name in NOISE else {}
        for step, moment in enumerate(scheduler.timesteps):
            t, s, p, q, a, b, c, n = (float(number) for number in rows[step])
            assert t == pytest.approx(float(moment), rel=1e-6)
            taken = scheduler.scale_model_input(expected, moment)
            np.testing.assert_allclose(s * found, taken.numpy(), rtol=2e-4, atol=2e-4)
            predicted = torch.tanh(taken.flip(1) + 0.1 * step)
            expected = scheduler.step(predicted, moment, expected, **more).prev_sample
            foretold = p * found + q * predicted.numpy()
            found = a * found + b * foretold + c * before + n * draws[step + 1].numpy()
            before = foretold
        assert bool(rows[-1, -1] == 0), "the last step adds no noise"
        assert bool((rows[:-1, -1] > 0).all()) == (name in NOISE or steps == 1)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [("Euler", 0, "steps must be 1 to 1000"), ("DDIM", 1001, "steps must be 1"), ("LCM", 51, "LCM takes at most 50")],
)
def test_steps_that_there_are_none_of_fail_with_words(name: str, steps: int, message: str) -> None:
    with pytest.raises(Exception, match=message):
        Table(PUBLISHED)(name, steps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"_class_name": "DDIMScheduler", "clip_sample": True}, "DDIM has clip_sample: True"),
        ({"thresholding": True}, "DDIM has thresholding: True"),
        ({"interpolation_type": "log_linear"}, "Euler has interpolation_type: 'log_linear'"),
    ],
)
def test_a_checkpoint_whose_scheduler_is_beyond_the_arithmetic_is_refused_by_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PassError, match=message):
        Table({**PUBLISHED, **settings})


def test_a_scheduler_without_betas_is_refused() -> None:
    with pytest.raises(SourceError, match="can't be made a schedule for one file"):
        pipeline_facts({}, {SCHEDULER_FILE: b'{"_class_name": "FlowMatchEulerDiscreteScheduler"}'}, {})
