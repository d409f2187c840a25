"""Tables of schedules that a graph computes, against those of the runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from olivelike.engine.output.scheduler_model import NAMES_KEY, scheduler_choices, scheduler_model
from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.families.family import Family
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule, shift_by_size, steps_taken
from olivelike.runtime.schedulers.scheduler_names import scheduler_names
from olivelike.runtime.schedulers.spacing import TYPES
from tests.fixtures.published_schedulers import PUBLISHED_SCHEDULERS

TOLERANCE = 2e-6
SD = {
    "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
    "num_train_timesteps": 1000, "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1,
}  # fmt: skip
FLOW = {
    "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True, "base_shift": 0.5,
    "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096, "shift": 3.0,
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "v": {"prediction_type": "v_prediction"},
    "no signal at the end": {
        "_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "rescale_betas_zero_snr": True,
        "timestep_spacing": "trailing",
    },
    "Runge-Kutta": {"skip_prk_steps": False},
    "cut": {"_class_name": "DDIMScheduler", "clip_sample": True, "clip_sample_range": 0.9, "thresholding": True},
    "log": {"_class_name": "EulerDiscreteScheduler", "interpolation_type": "log_linear", "sigma_min": 0.05},
    "SA": {"_class_name": "SASolverScheduler", "predictor_order": 4, "corrector_order": 3},
    "few": {"num_train_timesteps": 300, "original_inference_steps": 100},
    "EDM": {"_class_name": "EDMDPMSolverMultistepScheduler", "prediction_type": "epsilon", "solver_order": 3},
    "UniPC": {
        "_class_name": "UniPCMultistepScheduler", "solver_type": "bh1", "disable_corrector": [0], "solver_order": 3,
        "final_sigmas_type": "sigma_min", "predict_x0": False,
    },
}  # fmt: skip


class Tables:
    """The graph of a config's tables, open."""

    def __init__(self, config: dict[str, Any], family: Family = FAMILIES["sd1"]) -> None:
        self.data, self.family = scheduler_model(config, family), family
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(self.data, options, providers=["CPUExecutionProvider"])
        self.names: list[str] = json.loads(self.session.get_modelmeta().custom_metadata_map[NAMES_KEY])
        self.config, self.choices = config, scheduler_choices(config, family)

    def __call__(self, name: str, steps: int, strength: float = 1.0, tokens: int = 0) -> dict[str, np.ndarray]:
        given = {
            "scheduler": np.array([name], object), "steps": np.array([steps]), "strength": np.array([strength]),
            "image_tokens": np.array([tokens]),
        }  # fmt: skip
        names = [one.name for one in self.session.get_outputs()]
        taken = {one.name: given[one.name] for one in self.session.get_inputs()}
        return dict(zip(names, self.session.run(None, taken), strict=True))

    def compare(self, name: str, steps: int, strength: float = 1.0, tokens: int = 0) -> None:
        chosen = scheduler_settings(name or None, self.config)
        part = None if strength == 1 else strength
        shift = shift_by_size(chosen.settings, tokens, steps, self.family.flow_shift)
        wanted = make_schedule(chosen, steps, strength=part, shift=shift, even=self.family.even_sigmas)
        found, begin = self(name, steps, strength, tokens), wanted.begin
        values = wanted.following.shape[1]
        assert found["following"].shape[1:] == (6, 9)
        assert not found["following"][:, values + (wanted.spans is not None) :].any()
        if wanted.spans is None:
            np.testing.assert_array_equal(found["draws"], wanted.draws[begin:])
        else:  # Normals in place of Brownian motion: of the same size, in two parts.
            drawn = found["following"][:, :, 3]
            both = np.hypot(drawn[:, 0], found["following"][:, 0, 3 + values])
            np.testing.assert_allclose(both, np.abs(wanted.following[begin:, 0, 3]), rtol=TOLERANCE, atol=TOLERANCE)
            found["following"][:, 0, 3] = wanted.following[begin:, 0, 3]
            found["following"][:, :, 3 + values] = found["following"][:, values] = 0
        pairs = {
            "timesteps": wanted.timesteps[begin:], "scale": wanted.scale[begin:], "picture": wanted.picture[begin:],
            "mixed": wanted.mixed[begin], "initial": [wanted.first],
            "clip": [np.inf if wanted.most is None else wanted.most], "threshold": wanted.threshold or (0, 0),
        }  # fmt: skip
        for key, numbers in pairs.items():
            np.testing.assert_allclose(found[key], numbers, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{name}: {key}")
        following = found["following"][:, :values, : 3 + values]
        np.testing.assert_allclose(following, wanted.following[begin:], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(SD)


STEPS = (1, 2, 3, 4, 14, 15, 21, 50)


def compare_all(tables: Tables, steps: range | tuple[int, ...]) -> None:
    of_each = {number: name for name, number in tables.choices.names.items()}
    for number, name in of_each.items():
        _, most, _ = steps_taken(tables.choices.schedulers[number])
        few = steps if not name.endswith(tuple(TYPES)) or name.startswith(("Euler", "Restart", "UniPC")) else steps[::3]
        for one in (one for one in few if one <= most):
            tables.compare(name, one)
        tables.compare(name, 20, strength=0.35)
    for one in (19, 35, 36, 60):
        tables.compare("Restart", one)
        tables.compare("Restart", one, strength=0.6)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_a_family_s_own_levels_are_in_its_tables(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Euler Align Your Steps"
    monkeypatch.setattr("olivelike.engine.output.scheduler_model.scheduler_names", lambda: (name,))
    found = Tables(SD, FAMILIES[family])(name, 11)["timesteps"]
    np.testing.assert_allclose(found[:4], {"sd1": (999, 850, 736, 645), "sdxl": (999, 845, 730, 587)}[family], atol=1)


def test_every_name_of_generate_has_its_table(tables: Tables) -> None:
    assert tables.names == ["", *scheduler_names()]
    for name, number in tables.choices.names.items():
        assert tables.choices.schedulers[number] == scheduler_settings(name or None, SD)
    compare_all(tables, STEPS)
    assert len(tables.data) < 1_000_000
    onnx.checker.check_model(onnx.load_from_string(tables.data), full_check=True)


@pytest.mark.slow
def test_every_table_is_that_of_the_runtime_for_1_to_60_steps(tables: Tables) -> None:
    compare_all(tables, range(1, 61))


@pytest.mark.slow
@pytest.mark.parametrize("config", [*ODD.values(), *(config for _, config in PUBLISHED_SCHEDULERS.values())])
def test_schedulers_of_odd_and_published_folders_have_their_tables(config: dict[str, Any]) -> None:
    tables = Tables({**SD, **config})
    for steps in range(4 if config.get("skip_prk_steps") is False else 1, 51):
        tables.compare("", steps)


@pytest.mark.parametrize("kind", ODD)
def test_odd_configs_have_their_tables(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olivelike.engine.output.scheduler_model.scheduler_names", lambda: ())  # Its own alone.
    tables = Tables({**SD, **ODD[kind]})
    for steps in (5, 20, 31):
        tables.compare("", steps)
    tables.compare("", 20, strength=0.7)


@pytest.mark.parametrize("family", ["sd3", "flux", "flux2"])
def test_a_schedule_of_flow_depends_on_the_pictures_size(family: str) -> None:
    tables = Tables(FLOW, FAMILIES[family])
    assert [one.name for one in tables.session.get_inputs()] == ["scheduler", "steps", "strength", "image_tokens"]
    assert {"", "Euler", "Euler Karras", "Euler Beta"} <= {*tables.names}
    assert "Euler a" not in tables.names
    for tokens in (256, 1024, 4096, 6400):
        tables.compare("", 12, tokens=tokens)
        tables.compare("Euler Karras", 12, strength=0.5, tokens=tokens)
    assert not np.allclose(tables("", 12, tokens=256)["timesteps"], tables("", 12, tokens=4096)["timesteps"])


def test_normals_have_the_law_of_brownian_motion(tables: Tables) -> None:
    wanted = make_schedule(scheduler_settings("DPM++ SDE Karras", SD), 6)
    assert wanted.spans is not None
    found = tables("DPM++ SDE Karras", 6)["following"]
    noise, drawn = found[:, 0, 3], found[:, 0, 5]
    for call, (high, low) in enumerate(wanted.spans[:-1]):
        common = 0.0 if call % 2 == 0 else high - wanted.spans[call - 1][1]
        assert drawn[call] / np.hypot(noise[call], drawn[call]) == pytest.approx(
            np.sqrt(common / (high - low)), abs=1e-6
        )


@pytest.mark.parametrize(
    ("name", "steps", "strength", "message"),
    [
        ("Euler", 0, 1.0, "steps must be 1 to 10000"),
        ("Euler", 1_000_000, 1.0, "steps must be 1 to 10000"),
        ("DDIM", 1001, 1.0, "steps must be 1 to 1000, as many as the network was trained on"),
        ("LCM", 51, 1.0, "steps must be 1 to 50, as many as the network was distilled on"),
        ("Hein", 20, 1.0, f"scheduler is none of {NAMES_KEY} in the metadata"),
        ("Euler", 20, 0.04, "strength must be a share that leaves a step"),
        ("Euler", 20, 1.5, "strength must be a share that leaves a step"),
        ("Euler", 20, np.nan, "strength must be a share that leaves a step"),
    ],
)
def test_what_has_no_table_is_refused_with_words(
    tables: Tables, name: str, steps: int, strength: float, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        tables(name, steps, strength)


def test_the_most_steps_have_a_table(tables: Tables) -> None:
    assert tables("Euler", 10_000)["timesteps"].shape == (10_000,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**SD, "beta_start": "small"}, "beta_start is"),
        ({**SD, "trained_betas": [0.1, "b"]}, "trained_betas is"),
        ({**SD, "num_train_timesteps": 10**9}, "num_train_timesteps is"),
    ],
)
def test_a_config_that_leads_to_no_scheduler_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        scheduler_model(config)


@pytest.mark.parametrize(
    "own", [{"_class_name": "SASolverScheduler", "algorithm_type": "mine"}, {"_class_name": "CogVideoXDDIMScheduler"}]
)
def test_a_scheduler_without_formulas_is_left_out_and_the_others_stay(own: dict[str, Any]) -> None:
    config = {**SD, **own}
    choices = scheduler_choices(config)
    assert "" not in choices.names
    assert "Euler" in choices.names
