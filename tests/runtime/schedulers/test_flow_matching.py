"""Schedules of flow matching: those of diffusers, with Euler alone, and shifted by the picture's size if it says so."""

from __future__ import annotations

import diffusers
import pytest
import torch

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.schedulers.flow_matching import shift_by_size
from olivelike.runtime.schedulers.make_scheduler import check_scheduler_config, make_scheduler
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
    ours, theirs = make_scheduler(name, CONFIG), diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, **more)
    for one in (ours, theirs):
        one.set_timesteps(5)
    assert type(ours).__name__ == OWN
    assert torch.equal(ours.timesteps, theirs.timesteps)
    assert torch.equal(ours.sigmas, theirs.sigmas)
    schedule = name.removeprefix("Euler ") if more else None
    assert sampler_of(OWN, ours.config) == ("Euler", schedule)


@pytest.mark.parametrize("name", ["Euler a", "DPM++ 2M Karras", "DDIM", "Euler SGM Uniform", "EDMEuler"])
def test_samplers_of_noise_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"scheduler '{name}'.*".replace("+", r"\+")) as caught:
        make_scheduler(name, CONFIG)
    assert "\n" not in str(caught.value)


def test_flow_matching_is_for_folders_that_come_with_it():
    with pytest.raises(UsageError, match="is for networks of flow matching"):
        find_for(OWN, "EulerDiscreteScheduler")
    assert find_for("Euler", None).class_name == "EulerDiscreteScheduler"


def test_latents_are_mixed_with_noise_and_taken_as_they_are():
    scheduler = make_scheduler(None, CONFIG)
    scheduler.set_timesteps(4)
    picture, noise = torch.ones(1, 2, 3, 3), torch.full((1, 2, 3, 3), 5.0)
    sigma = scheduler.sigmas[2]
    mixed = scheduler.add_noise(picture, noise, scheduler.timesteps[2:3])
    torch.testing.assert_close(mixed, sigma * noise + (1 - sigma) * picture)
    assert scheduler.scale_model_input(picture, scheduler.timesteps[0]) is picture
    assert scheduler.init_noise_sigma == 1


def test_the_shift_grows_with_the_picture_where_the_config_says_so():
    # The two ends of the line, and its middle.
    assert shift_by_size(CONFIG, 256) == {}
    assert shift_by_size(DYNAMIC, 256) == {"mu": 0.5}
    assert shift_by_size(DYNAMIC, 4096)["mu"] == pytest.approx(1.15)
    assert shift_by_size(DYNAMIC, 2176)["mu"] == pytest.approx(0.825)
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
