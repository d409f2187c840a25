"""Tables of schedules against diffusers' classes in 64 bits: latents call by call, on outputs that are no noise."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.runtime.schedulers.class_settings import SchedulerSettings, scheduler_settings
from olivelike.runtime.schedulers.formulas import FORMULAS
from olivelike.runtime.schedulers.schedule import Schedule, make_schedule
from olivelike.runtime.schedulers.scheduler_names import OF_OURS
from olivelike.runtime.schedulers.spacing import alphas_of, beta_quantile
from tests.fixtures.published_schedulers import PUBLISHED_SCHEDULERS
from tests.fixtures.their_schedulers import made_of

SHAPE = (2, 4, 3, 3)
TOLERANCE = 2e-6
"""Most that latents may differ by, as a share of the largest."""
CANCELLED = 1e-4
"""The same for SA-Solver of orders above 2: between noise levels that are close, as Beta's, its sums in 64 bits lose
digits, in diffusers and here."""
SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
BETAS = (
    SD,
    SD,
    {"beta_schedule": "linear", "beta_start": 1e-4, "beta_end": 0.02},
    {"beta_schedule": "squaredcos_cap_v2"},
)
CHOICES: dict[str, list[Any]] = {
    "prediction_type": ["epsilon", "v_prediction", "sample"],
    "timestep_spacing": ["linspace", "leading", "trailing"],
    "steps_offset": [0, 1],
    "set_alpha_to_one": [True, False],
    "rescale_betas_zero_snr": [False, True],
    "final_sigmas_type": ["zero", "sigma_min"],
    "lower_order_final": [True, False],
    "euler_at_final": [False, True],
    "use_lu_lambdas": [False, True],
    "solver_order": [1, 2, 3],
    "variance_type": ["fixed_small", "fixed_small_log", "fixed_large"],
    "clip_sample": [False, True],
    "clip_sample_range": [1.0, 0.8],
    "thresholding": [False, True],
    "sample_max_value": [1.0, 1.5],
    "dynamic_thresholding_ratio": [0.995, 0.9],
    "interpolation_type": ["linear", "log_linear"],
    "timestep_type": ["discrete", "continuous"],
    "skip_prk_steps": [True, False],
    "predict_x0": [True, False],
    "predictor_order": [1, 2, 3, 4],
    "corrector_order": [1, 2, 3, 4],
    "disable_corrector": [[], [0], [1, 3]],
    "lambda_min_clipped": [-float("inf"), -5.1, -2.0],
    "original_inference_steps": [50, 100, 1000],
    "sigma_schedule": ["karras", "exponential"],
    "rho": [7.0, 5.0],
    "shift": [1.0, 3.0],
    "use_dynamic_shifting": [False, True],
    "invert_sigmas": [False, True],
    "shift_terminal": [None, 0.02],
    "time_shift_type": ["exponential", "linear"],
    "stochastic_sampling": [False, True],
}
ALGORITHMS = {
    "DPMSolverMultistepScheduler": ["dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"],
    "DPMSolverSinglestepScheduler": ["dpmsolver++", "sde-dpmsolver++", "dpmsolver"],
    "EDMDPMSolverMultistepScheduler": ["dpmsolver++", "sde-dpmsolver++"],
    "SASolverScheduler": ["data_prediction", "noise_prediction"],
}
SA_ORDERS = ("predictor_order", "corrector_order")
SIGMAS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


def config_of(name: str, chance: random.Random) -> dict[str, Any]:
    """Return a config of a class, with some of its settings changed."""
    known = scheduler_settings(None, {"_class_name": name, "skip_prk_steps": True}).settings
    config = {key: chance.choice(values) for key, values in CHOICES.items() if key in known and chance.random() < 0.5}
    config["_class_name"] = name
    if name in ALGORITHMS:
        config["algorithm_type"] = chance.choice(ALGORITHMS[name])
    if "solver_type" in known and not name.startswith("DEIS"):
        config["solver_type"] = chance.choice(["bh1", "bh2"] if name.startswith("UniPC") else ["midpoint", "heun"])
    if (bent := chance.choice([None, *SIGMAS])) in known:
        config[bent] = True
    if name.startswith("EDM"):
        config["prediction_type"] = chance.choice(["epsilon", "v_prediction"])
    elif "sigma_min" in known and chance.random() < 0.2:
        config |= {"sigma_min": 0.05, "sigma_max": 10.0}
    return config | (chance.choice(BETAS) if "beta_start" in known else {})


class DiffusersError(Exception):
    """Raised where diffusers itself can't draw what the table can: see `excused`."""


def excused(chosen: SchedulerSettings, steps: int) -> str | None:
    """Return what keeps diffusers from a comparison."""
    own, name = chosen.settings, chosen.class_name
    if own.get("prediction_type") == "sample" and name.startswith(("PNDM", "EulerAnc", "KDPM2", "DPMSolverSDE")):
        return "the class has no formulas for it"
    if own.get("solver_type") == "bh1" and own["final_sigmas_type"] == "zero":
        return "its last step multiplies infinity by 0, where the corrector's rest is absent"
    if own.get("thresholding") and (
        own.get("algorithm_type") == "noise_prediction"
        or (name.startswith("DPMSolverS") and own["algorithm_type"] == "dpmsolver")
    ):
        return "it looks up the signal of timestep None"
    if own.get("interpolation_type") == "log_linear" and own["timestep_type"] == "continuous":
        return "it calls the network once more than it was asked to"
    if own.get("timestep_spacing") == "trailing" and len(np.arange(1000, 0, -1000 / steps)) != steps:
        return "it takes one timestep too many, which is -1"
    if name.startswith("Flow") and own["shift_terminal"] and steps == 1:
        return "it divides by 0"
    return None


def compare(config: dict[str, Any], steps: int, strength: float | None, eta: float) -> float:
    """Return how far latents get from those of diffusers, as a share of the largest, and what is absolute below 1.

    Raises:
        DiffusersError: if diffusers fails.
    """
    chosen = scheduler_settings(None, config)
    shift = 0.8 if chosen.settings.get("use_dynamic_shifting") else 0.0
    schedule = make_schedule(chosen, steps, strength=strength, eta=eta, shift=shift)
    if why := excused(chosen, steps):
        raise DiffusersError(why)
    theirs = made_of(chosen, wide=True)
    if hasattr(theirs, "alphas_cumprod"):
        # The same numbers but for the last bit, on which torch's vectorised sums depend.
        alphas = torch.from_numpy(alphas_of(chosen.settings).astype(np.float64))
        torch.testing.assert_close(
            alphas.sqrt(),
            theirs.alphas_cumprod.sqrt(),
            rtol=0,
            atol=1e-3 if chosen.settings.get("rescale_betas_zero_snr") else 1e-6,
        )
        if theirs.alphas_cumprod[-1] == 2**-24:
            alphas[-1] = 2**-24
        theirs.alphas_cumprod = alphas
        theirs.final_alpha_cumprod = torch.tensor(1.0) if chosen.settings.get("set_alpha_to_one") else alphas[0]
    theirs.set_timesteps(steps, **({"mu": shift} if shift else {}))
    assert (len(schedule.timesteps), schedule.order) == (len(theirs.timesteps), theirs.order)
    if strength is None and (theirs.timesteps == theirs.timesteps[0]).sum() > 1:
        raise DiffusersError("its first timestep is there twice; it begins at the second, and runs out of noise levels")
    if strength is not None and hasattr(theirs, "set_begin_index"):
        theirs.set_begin_index(schedule.begin)
    chance = np.random.default_rng(steps)
    begun, picture, wave = (chance.standard_normal(SHAPE) for _ in range(3))
    noises = chance.standard_normal((len(schedule.timesteps), *SHAPE))
    drawn: list[int] = []

    def draw(*spans: torch.Tensor, call: list[int] = [0], **_: Any) -> torch.Tensor:  # noqa: B006
        if schedule.spans is not None:
            np.testing.assert_allclose([float(one) for one in spans], schedule.spans[now[0]], rtol=1e-9)
        drawn.append(now[0])
        return torch.from_numpy(noises[now[0]])

    module = sys.modules[type(theirs).__module__]
    if hasattr(module, "randn_tensor"):
        vars(module)["randn_tensor"] = draw
    if hasattr(theirs, "noise_sampler"):
        theirs.noise_sampler = draw
    now = [schedule.begin]
    if strength is None:
        ours, other = begun * schedule.first, torch.from_numpy(begun) * getattr(theirs, "init_noise_sigma", 1.0)
    else:
        ours = schedule.mix(picture, begun, schedule.begin)
        at = theirs.timesteps[schedule.begin : schedule.begin + 1].repeat(SHAPE[0])
        both = torch.from_numpy(picture), torch.from_numpy(begun)
        other = (
            theirs.add_noise(*both, at) if hasattr(theirs, "add_noise") else theirs.scale_noise(both[0], at, both[1])
        )
    worst, kept = _distance(ours, other), schedule.kept
    taken = {"eta": eta} if "eta" in inspect.signature(theirs.step).parameters else {}
    for call in schedule.calls:
        now[0], moment = call, theirs.timesteps[call]
        seen = theirs.scale_model_input(other, moment) if hasattr(theirs, "scale_model_input") else other

        def predict(values: np.ndarray, call: int = call) -> np.ndarray:
            return np.tanh(values[:, ::-1] * 0.7 + 0.1 * call) + 0.2 * np.sin(wave * (call + 1))

        other = theirs.step(torch.from_numpy(predict(seen.numpy())), moment, other, **taken).prev_sample
        ours, kept, _ = schedule.advance(call, ours, kept, predict(schedule.scaled(ours, call)), noises[call])
        worst = max(worst, _distance(ours, other))
    assert drawn == [call for call in schedule.calls if schedule.draws[call]]
    return worst


def _distance(ours: np.ndarray, theirs: torch.Tensor) -> float:
    assert ours.dtype == np.float64
    return float(np.abs(ours - theirs.numpy()).max() / max(1.0, np.abs(ours).max()))


def check_some(name: str, tries: int) -> None:
    chance = random.Random(f"{name} {tries}")
    compared = 0
    for _ in range(tries):
        config, steps = config_of(name, chance), chance.randint(1, 60)
        strength = chance.choice([None, None, round(chance.uniform(0.1, 1), 2)])
        if strength is not None and steps * strength < 1:
            continue
        told = (config, steps, strength)
        torch.set_default_dtype(torch.float32 if name.startswith("TCD") else torch.float64)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bound = CANCELLED if max(config.get(key, 2) for key in SA_ORDERS) > 2 else TOLERANCE
                assert compare(config, steps, strength, chance.choice([0.0, 0.3, 1.0])) < bound, told
        except (DiffusersError, OlivelikeError):
            continue
        finally:
            torch.set_default_dtype(torch.float32)
        compared += 1
    assert compared >= max(1, tries // 6), f"only {compared} of {tries} could be compared"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "diffusers")


COSTLY = ("KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler", "LMSDiscreteScheduler")
"""Classes whose schedules diffusers makes by loops over all moments."""


@pytest.mark.parametrize("name", sorted(FORMULAS.keys() - OF_OURS))
def test_latents_are_those_of_diffusers(name: str) -> None:
    check_some(name, 2 if name in COSTLY else 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FORMULAS.keys() - OF_OURS))
def test_latents_are_those_of_diffusers_whatever_is_asked_for(name: str) -> None:
    check_some(name, 400)


@pytest.mark.parametrize("kind", PUBLISHED_SCHEDULERS)
@pytest.mark.parametrize("steps", [4, 20])
def test_latents_of_published_configs_are_those_of_diffusers(kind: str, steps: int) -> None:
    class_name, config = PUBLISHED_SCHEDULERS[kind]
    torch.set_default_dtype(torch.float32 if class_name.startswith("TCD") else torch.float64)
    try:
        for strength in (None, 0.5):
            assert (
                compare({"prediction_type": "epsilon", **config, "_class_name": class_name}, steps, strength, 0.0)
                < TOLERANCE
            )
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "name", ["DDIM", "DPM++ 2M Karras", "DPM++ 2M SDE Exponential", "UniPC Beta", "Heun", "PLMS", "LMS Karras"]
)
def test_the_loop_of_torch_in_32_bits_is_not_far_off(name: str) -> None:
    chosen = scheduler_settings(name, {"_class_name": "PNDMScheduler", **SD})
    theirs = made_of(chosen)
    theirs.set_timesteps(20)
    check_in_32_bits(make_schedule(chosen, 20), theirs, theirs.init_noise_sigma)


@pytest.mark.parametrize("kind", ["Karras", "Exponential", "Beta", "SGM Uniform"])
def test_ancestral_steps_are_those_of_diffusers_between_noise_levels_that_its_class_has_no_setting_for(
    kind: str,
) -> None:
    config = {"_class_name": "PNDMScheduler", **SD}
    levels, theirs = (made_of(scheduler_settings(name, config)) for name in (f"Euler {kind}", "Euler a"))
    for one in (levels, theirs):
        one.set_timesteps(12)
    theirs.sigmas, theirs.timesteps = levels.sigmas, levels.timesteps
    chosen = scheduler_settings(f"Euler a {kind}", config)
    check_in_32_bits(make_schedule(chosen, 12), theirs, levels.init_noise_sigma)


def check_in_32_bits(schedule: Schedule, theirs: Any, first: float) -> None:
    """Draw with a schedule and with diffusers' class of it, from one seed; `first` is the factor of the first noise."""
    np.testing.assert_allclose(schedule.timesteps, theirs.timesteps, atol=1e-3)
    source, again = (torch.Generator().manual_seed(1) for _ in range(2))
    latents = torch.randn(SHAPE, generator=source)
    torch.randn(SHAPE, generator=again)
    ours, other = latents * schedule.first, latents * first
    kept = schedule.kept
    more = {"generator": again} if "generator" in inspect.signature(theirs.step).parameters else {}
    for call in schedule.calls:
        moment = theirs.timesteps[call]
        seen = theirs.scale_model_input(other, moment)
        other = theirs.step(torch.tanh(seen.flip(1)), moment, other, **more).prev_sample
        noise = torch.randn(SHAPE, generator=source) if schedule.draws[call] else 0.0
        ours, kept, _ = schedule.advance(call, ours, kept, torch.tanh(schedule.scaled(ours, call).flip(1)), noise)
        assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", "laplace", "exp"])
def test_alphas_are_those_of_diffusers(kind: str) -> None:
    name = {"exp": "HeunDiscreteScheduler", "sigmoid": "DDPMScheduler", "laplace": "DDPMScheduler"}.get(
        kind, "DDIMScheduler"
    )
    chosen = scheduler_settings(None, {"_class_name": name, **SD, "beta_schedule": kind})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = made_of(chosen).alphas_cumprod
    torch.testing.assert_close(torch.from_numpy(alphas_of(chosen.settings)), wanted, rtol=2e-6, atol=1e-7)


def test_quantiles_of_the_beta_distribution_are_scipy_s() -> None:
    from scipy import stats

    shares = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(beta_quantile(np, shares), stats.beta.ppf(shares, 0.6, 0.6), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("Euler", 0, r"EulerDiscreteScheduler refuses 0 steps: it takes 1 to 10000; take another number"),
        ("DPM++ 2M", -1, "refuses -1 steps"),
        ("UniPC", 10**6, "refuses 1000000 steps: it takes 1 to 10000"),
        ("DDIM", 1001, "it takes 1 to 1000, as many as the network was trained on"),
        ("LCM", 51, "it takes 1 to 50, as many as the network was distilled on"),
        ("PNDM", 3, "it takes 4 to 10000 with skip_prk_steps false"),
    ],
)
def test_steps_that_a_scheduler_has_not_are_refused_with_those_that_it_has(name: str, steps: int, message: str) -> None:
    chosen = scheduler_settings(name, {"_class_name": "PNDMScheduler", **SD})
    with pytest.raises(UsageError, match=message):
        make_schedule(chosen, steps)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_flow_sigmas": True}, "no formulas for use_flow_sigmas true; write false, or name another scheduler"),
        ({"algorithm_type": "fast"}, 'no formulas for algorithm_type "fast"; write "dpmsolver\\+\\+"'),
        (
            {"algorithm_type": "dpmsolver"},
            'no formulas for final_sigmas_type "zero" with algorithm_type dpmsolver; write "sigma_min"',
        ),
        ({"solver_type": "simpson"}, 'no formulas for solver_type "simpson"; write "midpoint"'),
        ({"use_karras_sigmas": True, "use_beta_sigmas": True}, "use_karras_sigmas true beside another schedule"),
        (
            {"algorithm_type": "sde-dpmsolver", "final_sigmas_type": "sigma_min", "solver_order": 3},
            "no formulas for solver_order 3 with algorithm_type sde-dpmsolver; write 2",
        ),
    ],
)
def test_settings_without_formulas_are_named_with_the_nearest(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        scheduler_settings(None, {"_class_name": "DPMSolverMultistepScheduler", **SD, **config})


@pytest.mark.parametrize(
    "config",
    [
        {"_class_name": "DDIMScheduler", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing", **SD},
        {"_class_name": "EulerDiscreteScheduler", "trained_betas": [1e-30, 1e-30, 1e-30], "num_train_timesteps": 3},
        {"_class_name": "DDIMScheduler", "beta_schedule": "upside down"},
        {"_class_name": "EDMEulerScheduler", "sigma_min": None},
    ],
)
def test_a_config_that_leads_to_no_numbers_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"scheduler_config\.json makes no .*Scheduler: "):
        make_schedule(scheduler_settings(None, config), 4)
