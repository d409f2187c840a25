"""What has no meaning for a family is absent on the page, and refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from olivelike.errors import UsageError
from olivelike.families import FAMILIES
from olivelike.runtime import Request
from olivelike.runtime.jobs.fast import few_steps_of, sped_up
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
from olivelike.runtime.pipeline.request import Control
from olivelike.runtime.pipeline.resolve_defaults import absent_fields, refused_fields, resolve_defaults

PICTURE = Image.new("RGB", (64, 64))
GIVEN = {
    "negative_prompt": "a dog", "clip_layer": 2, "guidance_rescale": 0.7, "guidance_interval": (0.2, 0.8),
    "guidance_calls": "two", "eta": 0.5, "cache_interval": 2, "controls": (Control(PICTURE),), "control_guess": True,
    "ip_adapter_images": (PICTURE,), "ip_adapter_scale": 0.5, "references": (PICTURE,),
}  # fmt: skip
ABOUT = {"control_guess": "controls", "ip_adapter_scale": "ip_adapter_images"}


def folder_of(family, **denoiser):
    index = {"_class_name": family.pipelines[0]}
    return PipelineFolder(Path("made"), index, denoiser, {}, {"_class_name": family.published.scheduler})


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_each_absent_field_is_one_of_an_order_and_refused_by_name(family):
    folder = folder_of(family)
    assert {*absent_fields(folder)} - {*Request.__dataclass_fields__} <= {"fast"}
    for name in refused_fields(folder):
        given = {one: GIVEN[one] for one in (name, ABOUT.get(name)) if one}
        said = f"({'|'.join(given)}) has no meaning for {folder.family.title}: .*; leave it out$"
        with pytest.raises(UsageError, match=said):
            resolve_defaults(Request(("",), steps=4, **given), folder)


def test_a_unet_has_all_but_references_and_a_transformer_what_its_denoiser_takes():
    assert absent_fields(folder_of(FAMILIES["sdxl"])) == ("references", "cache_interval")
    shared = {"eta", "cache_interval", "controls", "control_guess", "ip_adapter_images", "ip_adapter_scale", "fast"}
    unweighed = shared | {"clip_layer", "prompt_weights"}
    assert {*absent_fields(folder_of(FAMILIES["sd3"]))} == shared | {"references"}
    assert {*absent_fields(folder_of(FAMILIES["z_image"]))} == unweighed | {"references"}
    assert {*absent_fields(folder_of(FAMILIES["flux2"]))} == unweighed
    unguided = {"negative_prompt", "guidance_rescale", "guidance_interval", "guidance_calls"}
    dev = folder_of(FAMILIES["flux"], guidance_embeds=True)
    assert {*absent_fields(dev)} == unweighed | unguided | {"references"}
    assert {*absent_fields(folder_of(FAMILIES["flux"]))} == {*absent_fields(dev), "guidance_scale"}


def test_fast_says_what_a_transformer_is_drawn_with_anyway():
    folder, asked = folder_of(FAMILIES["flux"]), Request(("",), steps=4)
    assert few_steps_of(folder, ()) is None
    made, note = sped_up(asked, (), folder, ())
    assert made == asked
    assert note.startswith("fast: made is drawn with 4 steps and guidance 0 where nothing else is asked for")
