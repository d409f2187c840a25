"""Samplers of recipes that are not drawn here, as the page's form takes them."""

from __future__ import annotations

import pytest

from olivelike.serve.recipe_views import RecipeQuestion, for_the_form, read_question


@pytest.mark.parametrize(
    ("written", "taken", "left_out"),
    [
        ("Euler a, Schedule type: Karras", "Euler a Karras", None),
        ("DPM++ 2M, Schedule type: Polyexponential", "DPM++ 2M Exponential", None),
        ("DPM++ 2M, Schedule type: KL Optimal", "DPM++ 2M", "Schedule type KL Optimal"),
        ("LCM, Schedule type: Karras", "LCM", "Schedule type Karras"),
        ("Restart", None, "Sampler Restart"),
        ("Restart, Schedule type: Karras", None, "Sampler Restart Karras"),
    ],
)
def test_a_sampler_is_taken_as_far_as_it_is_here_and_the_rest_is_told(written, taken, left_out):
    asked = RecipeQuestion(text=f"a star\nSteps: 3, Sampler: {written}, CFG scale: 7, Seed: 1, Size: 64x64")
    found = for_the_form(read_question(asked), [])
    assert (found.record or {}).get("scheduler") == taken
    assert found.left_out == (f"not taken over, so that the picture may be another: {left_out}" if left_out else None)
