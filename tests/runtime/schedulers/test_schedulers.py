from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

from olivelike.runtime.schedulers.make_scheduler import make_scheduler, seed_noise, taken_in_steps
from olivelike.runtime.schedulers.scheduler_names import (
    CLASSES,
    DEFAULT_SCHEDULES,
    SAMPLERS,
    SCHEDULES,
    find_scheduler,
    sampler_of,
    scheduler_names,
    written_schedule,
)

# Several classes hand tensors to numpy in a way that it is about to change; users are not shown such warnings.
pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")

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


def needs(name):
    return [package for package in find_scheduler(name).needs if find_spec(package) is None]


def usable(names):
    return [pytest.param(name, marks=pytest.mark.skipif(bool(needs(name)), reason="package")) for name in names]


def denoise(scheduler, steps=24, half=False, batch=1):
    """Run the loop with the network that predicts the noise of one known picture exactly."""
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    target = torch.randn((batch, 4, 4, 4), generator=generator)
    scheduler.set_timesteps(steps)
    taken = taken_in_steps(scheduler)
    seed_noise(scheduler, range(batch), target)
    noise = torch.randn(target.shape, generator=generator)
    latents = noise * scheduler.init_noise_sigma
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, 0)
    levels = ((1 - kept) / kept).sqrt().log()
    for timestep in scheduler.timesteps:
        position = float(timestep)
        low = min(int(position), 998)
        sigma = (levels[low] + (levels[low + 1] - levels[low]) * (position - low)).exp()
        alpha = 1 / (1 + sigma**2).sqrt()
        given = scheduler.scale_model_input(latents, timestep)
        predicted = ((given - alpha * target) / (alpha * sigma)).float()
        if half:
            predicted = predicted.half().float()
        more = {"generator": generator} if "generator" in taken else {}
        latents = scheduler.step(predicted, timestep, latents, **more).prev_sample
        assert latents.dtype == torch.float32
    return float((latents - target).abs().max()), len(scheduler.timesteps)


WITHOUT_SAMPLER = sorted(set(CLASSES) - {class_name for class_name, _ in SAMPLERS.values()})


@pytest.mark.parametrize("name", usable([*SAMPLERS, *WITHOUT_SAMPLER]))
def test_every_scheduler_denoises(name, filled, caplog):
    distance, calls = denoise(make_scheduler(name, filled))
    assert distance < 0.15
    assert calls >= 24
    assert not caplog.records


@pytest.mark.parametrize("name", usable(["Euler a", "DPM++ 2M Karras", "Heun", "UniPC", "DDIM", "DPM++ SDE"]))
def test_latents_stay_in_single_precision_where_the_network_is_in_half(name, filled):
    assert denoise(make_scheduler(name, filled), half=True)[0] < 0.15


@pytest.mark.parametrize("class_name", usable(CLASSES))
def test_a_class_gets_the_settings_that_diffusers_gives_it(class_name, filled, caplog):
    import diffusers
    import torch

    cls = getattr(diffusers, class_name)
    expected = cls.from_config(diffusers.PNDMScheduler.from_config(PUBLISHED).config)
    # Every other one from the config as hubs have it, which leaves defaults out.
    made = make_scheduler(class_name, PUBLISHED if CLASSES.index(class_name) % 2 else filled)
    assert type(made) is cls
    assert not caplog.records
    for scheduler in (expected, made):
        scheduler.set_timesteps(7)
    assert torch.equal(torch.as_tensor(made.timesteps), torch.as_tensor(expected.timesteps))
    for table in ("sigmas", "alphas_cumprod"):
        if hasattr(expected, table):
            assert torch.equal(getattr(made, table), getattr(expected, table))
    ours, theirs = dict(made.config), dict(expected.config)
    different = {key for key in theirs if key[0] != "_" and key in ours and ours[key] != theirs[key]}
    assert not different


def test_without_a_name_the_folder_s_own_settings_hold(filled):
    own = make_scheduler(None, {**filled, "timestep_spacing": "trailing", "a_key_of_tomorrow": 1})
    assert (type(own).__name__, own.config["timestep_spacing"]) == ("PNDMScheduler", "trailing")


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_what_the_network_predicts_carries_over(prediction, filled):
    config = {**filled, "prediction_type": prediction, "timestep_spacing": "trailing"}
    for name in ("Euler a", "DPM++ 2M Karras", "LCM", "UniPC"):
        made = make_scheduler(name, config)
        assert made.config["prediction_type"] == prediction
        assert made.config["timestep_spacing"] == "trailing"


def test_a_name_of_a1111_fixes_the_schedule_and_a_class_keeps_the_folder_s(filled):
    karras = {**filled, "_class_name": "DPMSolverMultistepScheduler", "use_karras_sigmas": True}
    assert make_scheduler("EulerDiscrete", karras).config["use_karras_sigmas"] is True
    assert make_scheduler("Euler", karras).config["use_karras_sigmas"] is False
    assert make_scheduler("euler karras", filled).config["use_karras_sigmas"] is True


def test_latents_are_never_clipped_for_want_of_a_setting():
    config = {"_class_name": "EulerDiscreteScheduler", "beta_schedule": "scaled_linear"}
    assert make_scheduler("DDIM", config).config["clip_sample"] is False


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


@pytest.mark.parametrize("name", usable(["Euler a", "DPM++ 2M SDE Karras", "PLMS", "DEISMultistep", "LMS Beta"]))
def test_a_scheduler_tells_the_name_that_makes_it(name, filled):
    made = make_scheduler(name, filled)
    sampler, schedule = sampler_of(type(made).__name__, made.config)
    assert find_scheduler(sampler, schedule) == find_scheduler(name)


def test_every_name_leads_back_to_itself():
    for name in scheduler_names():
        choice = find_scheduler(name)
        sampler, schedule = sampler_of(choice.class_name, dict(choice.options))
        if name in SAMPLERS or name.endswith(tuple(SCHEDULES)):
            assert find_scheduler(sampler, schedule) == choice, name
        if name in SAMPLERS:
            assert find_scheduler(name, "Uniform") == find_scheduler(f"{name} simple") == find_scheduler(name)


@pytest.mark.parametrize(
    ("sampler", "schedule", "meant"),
    [
        ("DPM++ 2M", None, "Karras"),
        ("DPM2 a", "Automatic", "Karras"),
        ("DPM++ 3M SDE", "Automatic", "Exponential"),
        ("DPM++ 2M", "Uniform", None),
        ("DPM++ 2M", "normal", None),
        ("DPM++ 2M", "SGM Uniform", "SGM Uniform"),
        ("DPM++ 2M Karras", None, None),
        ("Euler a", "Automatic", None),
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
        if needs(name):
            continue
        taken = inspect.signature(getattr(diffusers, name).__init__).parameters
        assert ("use_karras_sigmas" in taken) == (find_scheduler(name).class_name in _with_karras()), name


def _with_karras():
    return {find_scheduler(name).class_name for name in scheduler_names() if name.endswith(" Karras")} | {
        "DEISMultistepScheduler", "DPMSolverSinglestepScheduler", "SASolverScheduler",
    }  # fmt: skip


def test_facts_say_how_to_call_step(filled):
    made = {name: make_scheduler(name, filled) for name in ("DDIM", "Heun", "Euler a", "TCD")}
    taken = {name: taken_in_steps(scheduler) for name, scheduler in made.items()}
    assert (taken["DDIM"], made["DDIM"].order) == ({"eta", "generator"}, 1)
    assert (taken["Heun"], made["Heun"].order) == (set(), 2)
    assert taken["Euler a"] == {"generator"}
    assert "eta" in taken["TCD"]
    assert not any(hasattr(scheduler, "noise_sampler") for scheduler in made.values())


@pytest.mark.skipif(find_spec("torchsde") is None, reason="torchsde is not installed")
def test_noise_from_seeds_is_that_of_each_picture_alone(filled):
    import torch

    def run(seeds):
        scheduler = make_scheduler("DPM++ SDE", filled)
        scheduler.set_timesteps(3)
        latents = torch.ones((len(seeds), 4, 2, 2)) * scheduler.init_noise_sigma
        seed_noise(scheduler, seeds, latents)
        for timestep in scheduler.timesteps:
            latents = scheduler.step(latents * 0.01, timestep, latents).prev_sample
        return latents

    assert torch.equal(run([5, 7])[1], run([7])[0])
    assert not torch.equal(run([5])[0], run([7])[0])


@pytest.mark.skipif(find_spec("torchsde") is None, reason="torchsde is not installed")
def test_noise_from_seeds_is_that_of_diffusers_on_the_cpu(filled):
    import torch

    latents = torch.ones((2, 4, 2, 2))
    ours, theirs = (make_scheduler("DPM++ SDE", filled) for _ in range(2))
    for scheduler in (ours, theirs):
        scheduler.set_timesteps(3)
    seed_noise(ours, [5, 7], latents)
    theirs.noise_sampler_seed = [5, 7]
    for timestep in ours.timesteps[:2]:
        stepped = [one.step(latents * 0.01, timestep, latents).prev_sample for one in (ours, theirs)]
        assert torch.equal(*stepped)


@pytest.mark.parametrize("class_name", usable(CLASSES))
def test_what_diffusers_writes_for_a_class_passes_the_check(class_name):
    import diffusers

    written = json.loads(getattr(diffusers, class_name)().to_json_string())
    assert type(make_scheduler(None, written)).__name__ == class_name


def test_deis_is_a_name():
    assert find_scheduler("DEIS").class_name == "DEISMultistepScheduler"


@pytest.mark.skipif(find_spec("torchsde") is None, reason="torchsde is not installed")
def test_warnings_stay_as_the_program_has_set_them(filled):
    import warnings

    import torch

    before = list(warnings.filters)
    scheduler = make_scheduler("DPM++ SDE", filled)
    scheduler.set_timesteps(3)
    latents = torch.ones((1, 4, 2, 2))
    seed_noise(scheduler, [5], latents)
    for timestep in scheduler.timesteps:
        latents = scheduler.step(latents * 0.01, timestep, latents).prev_sample
    assert warnings.filters == before


def in_a_new_process(code):
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_scheduler_is_made_without_what_it_does_not_use():
    code = (
        "import sys; from olivelike.runtime.schedulers.make_scheduler import make_scheduler as make\n"
        "for name in ('DDIM', 'DPM++ 2M Karras', 'Euler', 'UniPC', 'LCM'): make(name, {}).set_timesteps(5)\n"
        "print(*({'torch._dynamo', 'sympy', 'scipy.stats', 'requests', 'transformers', 'torchsde'} & set(sys.modules)))"
    )
    assert in_a_new_process(code) == []


@pytest.mark.slow
def test_what_was_left_out_is_there_as_soon_as_it_is_used():
    code = (
        "import sys; from olivelike.runtime.schedulers.make_scheduler import make_scheduler as make\n"
        "make('Euler', {})\n"
        "make('Euler Beta', {}).set_timesteps(5)\n"
        "from diffusers.utils import loading_utils, torch_utils; import torch, types\n"
        "marked = torch_utils.maybe_allow_in_graph(type('Net', (torch.nn.Module,), {}))\n"
        "import requests, torch._dynamo\n"
        "print(type(sys.modules['torch._dynamo']) is types.ModuleType, sys.modules['scipy.stats'].beta is not None)\n"
        "print(loading_utils.requests.get is requests.get, torch_utils.maybe_allow_in_graph(marked) is marked)"
    )
    assert in_a_new_process(code) == ["True"] * 4


@pytest.fixture(autouse=True)
def heard(caplog):
    """Let the log of diffusers reach the test."""
    logger = logging.getLogger("diffusers")
    before = logger.propagate
    logger.propagate = True
    caplog.set_level(logging.WARNING)
    yield
    logger.propagate = before


def test_names_are_found_without_importing_a_library():
    import subprocess
    import sys

    module = "olivelike.runtime.schedulers.make_scheduler"
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
