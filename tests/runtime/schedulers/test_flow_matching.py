"""Schedules of flow matching: those of diffusers, with Euler alone, and shifted by the picture's size if it says so."""

from __future__ import annotations

import numpy as np
import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.schedulers.class_settings import check_scheduler_config, scheduler_settings
from olivelike.runtime.schedulers.schedule import make_schedule, shift_by_size
from olivelike.runtime.schedulers.scheduler_names import find_for, sampler_of

OWN = "FlowMatchEulerDiscreteScheduler"
CONFIG = {"_class_name": OWN, "num_train_timesteps": 1000, "shift": 3.0}
DYNAMIC = {**CONFIG, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
           "max_image_seq_len": 4096}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (None, {}),
        ("Euler", {}),
        (OWN, {}),
        ("flow_match_euler_discrete", {}),
        ("Euler Karras", {"use_karras_sigmas": True}),
        ("Euler Exponential", {"use_exponential_sigmas": True}),
    ],
)
def test_a_folder_of_flow_matching_has_its_own_class_under_the_name_of_euler(name, more):
    import diffusers

    chosen, theirs = scheduler_settings(name, CONFIG), diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, **more)
    ours = make_schedule(chosen, 5)
    theirs.set_timesteps(5)
    assert ours.name == OWN
    np.testing.assert_allclose(ours.timesteps, theirs.timesteps, rtol=1e-6)
    np.testing.assert_allclose(ours.mixed[:, 1], theirs.sigmas[:-1], rtol=1e-6)
    schedule = name.removeprefix("Euler ") if more else None
    assert sampler_of(OWN, chosen.settings) == ("Euler", schedule)


@pytest.mark.parametrize("name", ["Euler a", "DPM++ 2M Karras", "DDIM", "Euler SGM Uniform", "EDMEuler"])
def test_samplers_of_noise_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"sampler '{name}'.*".replace("+", r"\+")) as caught:
        scheduler_settings(name, CONFIG)
    assert "\n" not in str(caught.value)


def test_flow_matching_is_for_folders_that_come_with_it():
    with pytest.raises(UsageError, match="is for networks of flow matching"):
        find_for(OWN, "EulerDiscreteScheduler")
    assert find_for("Euler", None).class_name == "EulerDiscreteScheduler"


def test_latents_are_mixed_with_noise_and_taken_as_they_are():
    schedule = make_schedule(scheduler_settings(None, CONFIG), 4)
    picture, noise = np.ones((1, 2, 3, 3)), np.full((1, 2, 3, 3), 5.0)
    sigma = schedule.timesteps[2] / 1000
    np.testing.assert_allclose(schedule.mix(picture, noise, 2), sigma * noise + (1 - sigma) * picture)
    assert schedule.scaled(picture, 0) is picture
    assert schedule.first == 1


def test_the_shift_grows_with_the_picture_where_the_config_says_so():
    # The two ends of the line, and its middle.
    assert shift_by_size(CONFIG, 256) == 0
    assert shift_by_size(DYNAMIC, 256) == 0.5
    assert shift_by_size(DYNAMIC, 4096) == pytest.approx(1.15)
    assert shift_by_size(DYNAMIC, 2176) == pytest.approx(0.825)
    with pytest.raises(SourceError, match="are both 256"):
        shift_by_size({**DYNAMIC, "max_image_seq_len": 256}, 100)


@pytest.mark.parametrize(
    "change",
    [{"shift": 0}, {"shift": "3"}, {"max_shift": "1"}, {"base_image_seq_len": 0}, {"shift_terminal": 1.5},
     {"time_shift_type": "cubic"}, {"use_dynamic_shifting": "yes"}],
)  # fmt: skip
def test_settings_that_no_schedule_has_are_refused_by_name(change):
    (name,) = change
    with pytest.raises(SourceError, match=f"scheduler_config.json: {name} is"):
        check_scheduler_config({**CONFIG, **change})
