"""Recipes of other programs, as the page's form takes them."""

from __future__ import annotations

import pytest

from olivelike.serve.recipe_views import RecipeQuestion, for_the_form, read_question


@pytest.mark.parametrize(
    ("written", "taken", "left_out"),
    [
        ("Euler a, Schedule type: Karras", "Euler a Karras", None),
        ("dpmpp_2m_karras", "DPM++ 2M Karras", None),
        ("DPM++ 2M, Schedule type: Polyexponential", "DPM++ 2M Exponential", None),
        ("DPM++ 2M, Schedule type: KL Optimal", "DPM++ 2M KL Optimal", None),
        ("DPM++ 2M, Schedule type: Golden", "DPM++ 2M", "Schedule type Golden"),
        ("DPM++ 2S a Karras", "DPM++ 2S a Karras", None),
        ("LCM, Schedule type: Karras", "LCM", "Schedule type Karras"),
        ("DPM adaptive", None, "Sampler DPM adaptive"),
        ("DPM fast, Schedule type: Karras", None, "Sampler DPM fast Karras"),
    ],
)
def test_a_sampler_is_taken_as_far_as_it_is_here_and_the_rest_is_told(written, taken, left_out):
    asked = RecipeQuestion(text=f"a star\nSteps: 3, Sampler: {written}, CFG scale: 7, Seed: 1, Size: 64x64")
    found = for_the_form(read_question(asked), [])
    assert (found.record or {}).get("scheduler") == taken
    assert found.left_out == (f"not taken over, so that the picture may be another: {left_out}" if left_out else None)


CANNY = (
    '"Module: canny, Model: control_v11p_sd15_canny [d14c016b], Weight: 0.8, Resize Mode: Crop and Resize, '
    'Threshold A: 90, Threshold B: 180, Guidance Start: 0, Guidance End: 0.5, Control Mode: Balanced"'
)
DEPTH = (
    '"preprocessor: depth_midas, model: depth [cfd03158], weight: 1, starting/ending: (0.1, 1), resize mode: Crop, '
    'control mode: My prompt is more important, preprocessor params: (512, -1, -1)"'
)


def with_units(*units):
    told = "".join(f", ControlNet {number}: {unit}" for number, unit in enumerate(units))
    question = RecipeQuestion(text=f"a cat\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1{told}")
    return for_the_form(read_question(question), [])


def test_units_of_a1111_are_control_pictures_without_an_image():
    view = with_units(CANNY, DEPTH, '"Module: ip-adapter_clip_h, Model: ip-adapter [00], Weight: 0.6"')
    assert view.record["controls"] == [
        {
            "image": None, "net": "control_v11p_sd15_canny", "strength": 0.8, "start": 0.0, "end": 0.5,
            "preprocessor": "canny", "thresholds": [90.0, 180.0],
        },
        {
            "image": None, "net": "depth", "strength": 1.0, "start": 0.1, "end": 1.0, "preprocessor": "none",
            "thresholds": [],
        },
    ]  # fmt: skip
    assert view.record["control_guess"]
    assert (view.record["ip_adapter_images"], view.record["ip_adapter_scale"]) == ([None], 0.6)
    assert view.left_out == "not taken over, so that the picture may be another: ControlNet 1 preprocessor depth_midas"


@pytest.mark.parametrize("unit", ['"Module: canny, Weight: 1"', '"Module: canny, Model: a, Weight: strong"', "?", "{}"])
def test_a_unit_that_can_not_be_read_is_left_out(unit):
    view = with_units(unit)
    assert "controls" not in view.record
    assert view.left_out.endswith(unit.strip('"'))
