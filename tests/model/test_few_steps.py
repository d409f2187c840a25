"""What tells a few-step model, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivelike.model.few_steps import few_steps_of_configs, few_steps_of_metadata, few_steps_of_path, few_steps_of_text


@pytest.mark.parametrize(
    ("title", "kind", "steps"),
    [
        ("sdxl_lightning_4step_lora", "lightning", 4),
        ("sdxl_lightning_1step_x0", "lightning", 1),
        ("juggernautXL_v9Rdphoto2Lightning", "lightning", None),
        ("dreamshaperXL_lightningDPMSDE", "lightning", None),
        ("Hyper-SD15-1step-lora", "hyper", 1),
        ("Hyper-SDXL-8steps-lora", "hyper", 8),
        ("dmd2_sdxl_4step_lora_fp16", "dmd2", 4),
        ("sd_xl_turbo_1.0_fp16", "turbo", None),
        ("sd_turbo", "turbo", None),
        ("DreamShaperXLTurbo", "turbo", None),
        ("LCM_Dreamshaper_v7_4k", "lcm", None),
        ("Latent Consistency LoRA", "lcm", None),
        ("TCD-SDXL-LoRA", "tcd", None),
    ],
)
def test_titles_of_published_files_say_what_they_are(title, kind, steps):
    found = few_steps_of_text(title)
    assert found is not None
    assert (found.kind, found.steps, found.guided) == (kind, steps, False)


@pytest.mark.parametrize("title", ["painter", "hyperrealistic_v1", "turbocharged cars", "welcome", "footsteps 4", ""])
def test_other_titles_say_nothing(title):
    assert few_steps_of_text(title) is None


def test_some_keep_the_guidance_or_take_one_step_alone():
    guided, unified, one = map(
        few_steps_of_text, ("Hyper-SDXL-8steps-CFG-lora", "Hyper-SDXL-1step-lora", "sdxl_lightning_1step_x0")
    )
    assert guided.recipe.guidance == 5.0
    assert (unified.recipe.class_name, unified.recipe.eta) == ("TCDScheduler", 1.0)
    assert one.scheduler_config({"beta_start": 0.00085, "use_karras_sigmas": True}) == {
        "_class_name": "EulerDiscreteScheduler", "beta_start": 0.00085, "clip_sample": False,
        "prediction_type": "sample", "timestep_spacing": "trailing",
    }  # fmt: skip


def test_a_header_s_title_says_more_than_a_name_and_a_name_without_meaning_leaves_it_to_the_folder():
    found = few_steps_of_metadata({"modelspec.title": "Painter", "ss_output_name": "tcd 8 steps"})
    assert str(found) == "TCD for 8 steps (ss_output_name is 'tcd 8 steps')"
    repository = Path("hub/models--latent-consistency--lcm-lora-sdxl/snapshots/0123")
    for path in (repository / "pytorch_lora_weights.safetensors", Path("lcm-lora/adapter_model.safetensors")):
        assert few_steps_of_path(path).kind == "lcm"
    assert "the name 'latent-consistency/lcm-lora-sdxl' says so" in str(few_steps_of_path(repository / "model.bin"))
    assert few_steps_of_path(Path("lcm/style.safetensors")) is None


TRAILING = {"timestep_spacing": "trailing"}


@pytest.mark.parametrize(
    ("unet", "scheduler", "kind"),
    [
        ({"time_cond_proj_dim": 256}, {"_class_name": "LCMScheduler"}, "lcm"),
        ({}, {"_class_name": "LCMScheduler"}, "lcm"),
        ({}, {"_class_name": "LCMScheduler", "original_inference_steps": 1000}, "dmd2"),
        ({}, {"_class_name": "TCDScheduler"}, "tcd"),
        ({"cross_attention_dim": 2048}, {"_class_name": "EulerAncestralDiscreteScheduler", **TRAILING}, "turbo"),
        ({"cross_attention_dim": 1024}, {"_class_name": "EulerDiscreteScheduler", **TRAILING}, "turbo"),
        ({}, {"_class_name": "EulerDiscreteScheduler", "prediction_type": "sample", **TRAILING}, "lightning"),
        ({"cross_attention_dim": 2048}, {"_class_name": "EulerDiscreteScheduler", **TRAILING}, None),
        ({"cross_attention_dim": 2048}, {"_class_name": "EulerDiscreteScheduler"}, None),
        (
            {"cross_attention_dim": 1024},
            {"_class_name": "EulerDiscreteScheduler", "rescale_betas_zero_snr": True, **TRAILING},
            None,
        ),
    ],
)
def test_configs_of_published_pipelines_say_what_they_are(unet, scheduler, kind):
    found = few_steps_of_configs(unet, scheduler)
    assert (found and found.kind) == kind
