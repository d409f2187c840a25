from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from olivelike.runtime.pipeline.latents import generators, step_noise
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule
from olivelike.runtime.schedulers.scheduler_names import (
    BENT_HERE,
    CLASSES,
    DEFAULT_SCHEDULES,
    SAMPLERS,
    SCHEDULES,
    SPACED,
    find_scheduler,
    sampler_of,
    scheduler_names,
    written_schedule,
)

PUBLISHED = {
    "_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0", "beta_end": 0.012,
    "beta_schedule": "scaled_linear", "beta_start": 0.00085, "clip_sample": False, "num_train_timesteps": 1000,
    "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1, "trained_betas": None,
}  # fmt: skip
"""As Stable Diffusion 1.5 has it on the hub."""


@pytest.fixture(scope="module")
def filled():
    """Return the same config as it lies in an output folder: every default of the class is written out."""
    import diffusers

    return json.loads(diffusers.PNDMScheduler.from_config(PUBLISHED).to_json_string())


def schedule_of(name, config, steps=24):
    return make_schedule(scheduler_settings(name, config), steps)


def noise_of(schedule, seeds, shape=(4, 4, 4)):
    return step_noise(SimpleNamespace(schedule=schedule, seeds=tuple(seeds), sources=generators(seeds)), shape)


def denoise(schedule, half=False, batch=1):
    """Run the loop with the network that predicts the noise of one known picture exactly."""
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    target = torch.randn((batch, 4, 4, 4), generator=generator)
    noise = noise_of(schedule, range(batch))
    latents, kept = torch.randn(target.shape, generator=generator) * schedule.first, schedule.kept
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    left = torch.cumprod(1 - betas, 0)
    levels = ((1 - left) / left).sqrt().log()
    for call in schedule.calls:
        position = float(schedule.timesteps[call])
        low = min(int(position), 998)
        sigma = (levels[low] + (levels[low + 1] - levels[low]) * (position - low)).exp()
        alpha = 1 / (1 + sigma**2).sqrt()
        given = schedule.scaled(latents, call)
        predicted = ((given - alpha * target) / (alpha * sigma)).float()
        if half:
            predicted = predicted.half().float()
        latents, kept, _ = schedule.advance(call, latents, kept, predicted, noise(call))
        assert latents.dtype == torch.float32
    return float((latents - target).abs().max()), len(schedule.calls)


OF_ITSELF = ("DPMSolverSinglestepScheduler", "lower_order_final")
WITHOUT_SAMPLER = sorted(set(CLASSES) - {class_name for class_name, _ in SAMPLERS.values()})


@pytest.mark.parametrize("name", [*SAMPLERS, "DEIS Simple", "SA Solver Simple", "SA Solver Normal", *WITHOUT_SAMPLER])
def test_every_scheduler_denoises(name, filled):
    distance, calls = denoise(schedule_of(name, filled))
    assert distance < 0.15
    assert calls >= 24


@pytest.mark.parametrize("name", ["Euler a", "DPM++ 2M Karras", "Heun", "UniPC", "DDIM", "DPM++ SDE"])
def test_latents_stay_in_single_precision_where_the_network_is_in_half(name, filled):
    assert denoise(schedule_of(name, filled), half=True)[0] < 0.15


@pytest.mark.parametrize("class_name", CLASSES)
def test_a_class_gets_the_settings_that_diffusers_gives_it(class_name, filled):
    import diffusers

    expected = getattr(diffusers, class_name).from_config(diffusers.PNDMScheduler.from_config(PUBLISHED).config).config
    # Every other one from the config as hubs have it, which leaves defaults out.
    made = scheduler_settings(class_name, PUBLISHED if CLASSES.index(class_name) % 2 else filled)
    assert made.class_name == class_name
    # A class that sets this for itself does so in `set_timesteps`, with a warning.
    wanted = {key: expected[key] for key in made.settings if (class_name, key) != OF_ITSELF}
    assert wanted == {key: made.settings[key] for key in wanted}
    whole = scheduler_settings(None, {"_class_name": class_name, "final_sigmas_type": "sigma_min"}).settings
    defaults = getattr(diffusers, class_name)().config
    known = {key: defaults[key] for key in whole if key != "final_sigmas_type"}
    assert known == {key: value for key, value in whole.items() if key in known}


def test_without_a_name_the_folder_s_own_settings_hold(filled):
    own = scheduler_settings(None, {**filled, "timestep_spacing": "trailing", "a_key_of_tomorrow": 1})
    assert (own.class_name, own.settings["timestep_spacing"]) == ("PNDMScheduler", "trailing")


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_what_the_network_predicts_carries_over(prediction, filled):
    config = {**filled, "prediction_type": prediction, "timestep_spacing": "trailing"}
    for name in ("Euler a", "DPM++ 2M Karras", "LCM", "UniPC"):
        made = scheduler_settings(name, config).settings
        assert made["prediction_type"] == prediction
        assert made["timestep_spacing"] == "trailing"


def test_a_name_of_a1111_fixes_the_schedule_and_a_class_keeps_the_folder_s(filled):
    karras = {**filled, "_class_name": "DPMSolverMultistepScheduler", "use_karras_sigmas": True}
    assert scheduler_settings("EulerDiscrete", karras).settings["use_karras_sigmas"] is True
    assert scheduler_settings("Euler", karras).settings["use_karras_sigmas"] is False
    assert scheduler_settings("euler karras", filled).settings["use_karras_sigmas"] is True


def test_latents_are_never_clipped_for_want_of_a_setting():
    config = {"_class_name": "EulerDiscreteScheduler", "beta_schedule": "scaled_linear"}
    assert scheduler_settings("DDIM", config).settings["clip_sample"] is False


@pytest.mark.parametrize(
    ("written", "class_name"),
    [
        ("euler a", "EulerAncestralDiscreteScheduler"),
        ("Euler_A", "EulerAncestralDiscreteScheduler"),
        ("dpm++ 2m karras", "DPMSolverMultistepScheduler"),
        ("DPMPP-2M-SDE", "DPMSolverMultistepScheduler"),
        ("ddimscheduler", "DDIMScheduler"),
        ("UniPCMultistep", "UniPCMultistepScheduler"),
        ("PLMS", "PNDMScheduler"),
        ("DPM2 a Karras", "KDPM2AncestralDiscreteScheduler"),
    ],
)
def test_names_are_found_however_they_are_written(written, class_name):
    assert find_scheduler(written).class_name == class_name


@pytest.mark.parametrize(
    "name", ["Euler a", "Euler a Beta", "DPM++ 2M SDE Karras", "PLMS", "LMS Beta", "Restart KL Optimal"]
)
def test_a_scheduler_tells_the_name_that_makes_it(name, filled):
    made = scheduler_settings(name, filled)
    sampler, schedule = sampler_of(made.class_name, made.settings)
    assert find_scheduler(sampler, schedule) == find_scheduler(name)


def test_every_name_leads_back_to_itself():
    for name in scheduler_names():
        choice = find_scheduler(name)
        sampler, schedule = sampler_of(choice.class_name, dict(choice.options))
        if name in SAMPLERS or name.endswith(tuple(SCHEDULES)):
            assert find_scheduler(sampler, schedule) == choice, name
        if name in SAMPLERS:
            assert find_scheduler(name, "Uniform") == find_scheduler(name)


@pytest.mark.parametrize(
    ("sampler", "schedule", "meant"),
    [
        ("DPM++ 2M", None, "Karras"),
        ("DPM2 a", "Automatic", "Karras"),
        ("DPM++ 3M SDE", "Automatic", "Exponential"),
        ("DPM++ 2M", "Uniform", None),
        ("DPM++ 2M", "normal", "Normal"),
        ("DPM++ 2S a", None, "Karras"),
        ("LCM", "Simple", None),
        ("Euler", "Turbo", "SGM Uniform"),
        ("Euler", "ddim_uniform", "DDIM"),
        ("DPM++ 2M", "SGM Uniform", "SGM Uniform"),
        ("DPM++ 2M Karras", None, None),
        ("Euler a", "Automatic", None),
        ("Euler a", "Polyexponential", "Exponential"),
    ],
)
def test_a_text_of_a1111_means_the_schedule_that_a1111_takes(sampler, schedule, meant):
    assert written_schedule(sampler, schedule) == meant


def test_every_default_of_a1111_is_a_name():
    for sampler, schedule in DEFAULT_SCHEDULES.items():
        assert find_scheduler(sampler, schedule) != find_scheduler(sampler)


def test_the_lists_agree_with_the_installed_library():
    import inspect

    import diffusers

    for name in CLASSES:
        taken = inspect.signature(getattr(diffusers, name).__init__).parameters
        assert ("use_karras_sigmas" in taken) == (name in SPACED - BENT_HERE), name


def test_a_schedule_says_how_often_the_network_is_called_and_when_noise_is_drawn(filled):
    made = {name: schedule_of(name, filled, 5) for name in ("DDIM", "Heun", "Euler a", "LCM", "DPM++ SDE", "DPM2 a")}
    assert {name: (one.order, len(one.calls)) for name, one in made.items()} == {
        "DDIM": (1, 5), "Heun": (2, 9), "Euler a": (1, 5), "LCM": (1, 5), "DPM++ SDE": (2, 9), "DPM2 a": (2, 9),
    }  # fmt: skip
    assert {name: int(one.draws.sum()) for name, one in made.items()} == {
        "DDIM": 0, "Heun": 0, "Euler a": 5, "LCM": 4, "DPM++ SDE": 8, "DPM2 a": 4,
    }  # fmt: skip
    assert {name for name, one in made.items() if one.spans is not None} == {"DPM++ SDE"}


def test_noise_from_seeds_is_that_of_each_picture_alone(filled):
    schedule = schedule_of("DPM++ SDE", filled, 3)
    draw = {seeds: noise_of(schedule, seeds) for seeds in ((5, 7), (7,), (5,))}
    for call in schedule.calls[:-1]:
        both, seven, five = (noise(call) for noise in draw.values())
        assert np.array_equal(both[1], seven[0])
        assert not np.array_equal(five[0], seven[0])


@pytest.mark.parametrize("class_name", CLASSES)
def test_what_diffusers_writes_for_a_class_passes_the_check(class_name):
    import diffusers

    written = json.loads(getattr(diffusers, class_name)().to_json_string())
    assert scheduler_settings(None, written).class_name == class_name


def test_deis_is_a_name():
    assert find_scheduler("DEIS").class_name == "DEISMultistepScheduler"


def test_schedules_are_made_without_torch_and_diffusers():
    code = (
        "import sys\n"
        "from olivelike.runtime.schedulers.class_settings import scheduler_settings as chosen\n"
        "from olivelike.runtime.schedulers.schedule import make_schedule as make\n"
        "for name in ('DDIM', 'DPM++ 2M Karras', 'Euler Beta', 'UniPC', 'DPM++ SDE'): make(chosen(name, {}), 5)\n"
        "print(*({'torch', 'diffusers', 'scipy', 'torchsde'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_names_are_found_without_importing_a_library():
    module = "olivelike.runtime.schedulers.class_settings"
    code = f"import sys, {module} as s; s.find_for('ddim', None); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "False"


def test_the_guide_has_every_sampler_and_class():
    guide = (Path(__file__).parents[3] / "docs" / "pictures.md").read_text(encoding="utf-8")
    assert not [name for name in (*SAMPLERS, *CLASSES) if f"`{name}`" not in guide]
    for sampler, (class_name, _) in SAMPLERS.items():
        (row,) = [line for line in guide.splitlines() if line.startswith("|") and f"`{sampler}`" in line]
        assert f"`{class_name}`" in row
        assert ("yes" in row) == (f"{sampler} Karras" in scheduler_names())
