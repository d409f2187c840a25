"""Schedulers that can't be had, and configs that none could work with: each is refused with the reason."""

from __future__ import annotations

import inspect

import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.schedulers.class_settings import check_scheduler_config, scheduler_settings
from olivelike.runtime.schedulers.scheduler_names import CLASSES, EDM, FLOW, find_scheduler

CONFIG = {"_class_name": "PNDMScheduler", "beta_schedule": "scaled_linear"}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("Euler b", "Euler a"), ("DPM++ 2M Kerras", "DPM++ 2M Karras"), ("DDIMSchedular", "DDIMScheduler")],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(UsageError, match=right.replace("+", r"\+")):
        find_scheduler(wrong)
    with pytest.raises(UsageError, match="samplers: DPM"):
        find_scheduler("☃")
    with pytest.raises(UsageError, match="there is no schedule type 'Kerras'; did you mean 'Karras'"):
        find_scheduler("DPM++ 2M", "Kerras")


@pytest.mark.parametrize(
    ("sampler", "schedule"), [("LCM", "Karras"), ("k_lcm", "karras"), ("LCM Karras", None), ("LCM Exponential", None)]
)
def test_a_schedule_type_that_a_sampler_has_not_is_named(sampler, schedule):
    kind = "Exponential" if sampler.endswith("Exponential") else "Karras"
    with pytest.raises(UsageError, match=f"has no schedule type {kind} here; take .*, or {kind} with another sampler"):
        find_scheduler(sampler, schedule)
    with pytest.raises(UsageError, match="DDIM has no schedule type Karras here; take 'DDIM'"):
        find_scheduler("DDIM", "Karras")


def test_names_of_k_diffusion_are_those_of_a1111():
    for theirs, ours in (
        ("euler_ancestral", "Euler a"), ("k_euler_ancestral", "Euler a"), ("dpm_2_ancestral karras", "DPM2 a Karras"),
        ("dpmpp_2m_sde karras", "DPM++ 2M SDE Karras"), ("uni_pc normal", "UniPC Normal"), ("k_lms", "LMS"),
        ("dpmpp_2s_ancestral", "DPM++ 2S a"), ("k_dpmpp_2s_a_karras", "DPM++ 2S a Karras"), ("lcm simple", "LCM"),
    ):  # fmt: skip
        assert find_scheduler(theirs) == find_scheduler(ours)
    assert find_scheduler("dpmpp_2m", "karras") == find_scheduler("DPM++ 2M Karras")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"_class_name": 3},
        {"_class_name": "ConfigMixin"},
        {"_class_name": "NoSuchScheduler"},
        {"_class_name": "DDIMScheduler", "num_train_timesteps": "many"},
    ],
)
def test_a_config_that_is_no_scheduler_s_is_refused(config):
    with pytest.raises(SourceError, match=r"scheduler_config\.json"):
        scheduler_settings(None, config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta_start": float("nan")}, "beta_start is NaN, but must be a number between 0 and 1"),
        ({"beta_end": 0}, "beta_end is 0"),
        ({"beta_start": "small"}, 'beta_start is "small"'),
        ({"solver_order": 99}, "solver_order is 99, but must be a whole number from 1 to 3"),
        ({"num_train_timesteps": 0}, "num_train_timesteps is 0"),
        ({"num_train_timesteps": True}, "num_train_timesteps is true"),
        ({"timestep_spacing": "wide"}, "timestep_spacing is .*one of linspace, leading, trailing"),
        ({"prediction_type": "flow_prediction"}, "prediction_type is .*one of epsilon, v_prediction, sample"),
        ({"trained_betas": [0.1, float("inf")]}, r"trained_betas is \[0.1, Infinity\]"),
        ({"steps_offset": -1}, "steps_offset is -1"),
        ({"lambda_min_clipped": "none"}, 'lambda_min_clipped is "none", but must be a number, or -Infinity'),
        ({"use_karras_sigmas": "no"}, 'use_karras_sigmas is "no", but must be true or false'),
    ],
)
@pytest.mark.parametrize("name", [None, "DPM++ 2M"])
def test_a_setting_that_no_scheduler_works_with_is_named_with_its_file(name, settings, message):
    with pytest.raises(SourceError, match=rf"scheduler/scheduler_config\.json: {message}"):
        scheduler_settings(name, CONFIG | settings)


OF_VARIANCE = ("DDPMParallel", "DDPM", "DPMSolverMultistep", "DPMSolverSinglestep", "SASolver")


@pytest.mark.parametrize("class_name", OF_VARIANCE)
@pytest.mark.parametrize("kind", ["learned", "learned_range"])
def test_a_variance_that_no_unet_predicts_is_refused(class_name, kind):
    settings = {"_class_name": f"{class_name}Scheduler", "variance_type": kind}
    with pytest.raises(SourceError, match=rf'variance_type is "{kind}", which needs a UNet that predicts'):
        check_scheduler_config(CONFIG | settings)
    check_scheduler_config(CONFIG | settings | {"variance_type": "fixed_small"})


def test_those_that_take_a_variance_are_all_known():
    import diffusers

    taking = {
        name.removesuffix("Scheduler")
        for name in CLASSES
        if "variance_type" in inspect.signature(getattr(diffusers, name).__init__).parameters
    }
    assert taking <= set(OF_VARIANCE)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("FlowMatchEulerDiscrete", "is for networks of flow matching"),
        ("CMStochasticIterative", "is for consistency models"),
        ("RePaintScheduler", "paints inside masks in a way of its own"),
        ("CogVideoXDDIM", "is for networks of video"),
        ("DDIMInverse", "goes from a picture back to noise"),
        ("IPNDM", "is for networks of sound"),
        ("EDMEuler", "is for networks trained as EDM"),
        ("EDMDPMSolverMultistep", "is for networks trained as EDM"),
        ("DPM fast Karras", r"has followed; the nearest is DPM\+\+ 2S$"),
        ("DPM adaptive", r"finds its steps while it draws, .*; the nearest is DPM\+\+ 2S$"),
        ("DDIM CFG++", "guidance makes one sum of both here; the nearest is DDIM$"),
        ("Euler a CFG++", "the nearest is Euler a$"),
    ],
)
def test_a_name_that_can_t_be_had_is_refused_with_the_reason(name, why):
    with pytest.raises(UsageError, match=why):
        find_scheduler(name)


def test_every_other_class_of_diffusers_is_refused_as_a_folder_s_own():
    import diffusers

    others = {name for name in dir(diffusers) if name.endswith("Scheduler")} - {*CLASSES, *EDM, *FLOW}
    assert {"FlowMatchHeunDiscreteScheduler", "IPNDMScheduler", "UnCLIPScheduler"} <= others
    for name in others:
        with pytest.raises(SourceError, match=f"names {name}, which .*; name another"):
            scheduler_settings(None, {"_class_name": name})


@pytest.mark.parametrize("class_name", sorted(EDM))
def test_a_folder_of_networks_trained_as_edm_keeps_its_own(class_name):
    config = {"_class_name": class_name, "sigma_min": 0.002, "sigma_max": 40.0, "sigma_data": 0.5}
    ours = scheduler_settings(None, config)
    assert (ours.class_name, ours.settings["sigma_max"]) == (class_name, 40.0)
