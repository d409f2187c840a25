from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from olivelike.errors import UsageError
from olivelike.runtime.pictures.picture_record import PictureRecord, a1111_text
from olivelike.serve.drawing.plot_texts import script_fields
from olivelike.serve.drawing.plots import cells, count_cells, heads
from olivelike.serve.form import form
from olivelike.serve.orders import Axis, Order, PromptMatrix, axis_label
from olivelike.serve.recipe_views import RecipeQuestion, for_the_form, read_question


def asked(x=None, y=None, z=None, **order):
    sides = (("x", x), ("y", y), ("z", z))
    axes = {name: Axis(field=axis[0], values=axis[1:]) for name, axis in sides if axis}
    return Order(**{"prompt": "a red circle", **order, **axes})


def plot(*axes, **order):
    return cells(asked(*axes, **order))


def test_cells_come_row_by_row_with_their_labels():
    sides = ("steps", 10, "20"), ("guidance_scale", 1, 7.5)
    found = plot(*sides)
    assert [(cell.order.steps, cell.order.guidance_scale) for cell in found] == [(10, 1), (20, 1), (10, 7.5), (20, 7.5)]
    assert [cell.place for cell in found] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    told = heads(asked(*sides, seed=5))
    steps, guidance = axis_label("steps"), axis_label("guidance_scale")
    assert (told.title, told.across) == ("a red circle\nSeed 5", [f"{steps} 10", f"{steps} 20"])
    assert (told.down, told.layers) == ([f"{guidance} 1", f"{guidance} 7.5"], ("",))
    assert all(not cell.order.axes for cell in found)


def test_a_third_axis_repeats_the_table():
    assert [cell.order.hires for cell in plot(("hires", 1, 2), hires=4)] == [None, 2]
    assert [cell.order.upscaler for cell in plot(("upscaler", "Latent", "Nearest"))] == [None, "Nearest"]
    found = plot(("steps", 1, 2), None, ("hires", "2:0.4", 1.5), hires_strength=0.9)
    assert [cell.place for cell in found] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [(cell.order.hires, cell.order.hires_strength) for cell in found][1:3] == [(2.0, 0.4), (1.5, 0.9)]


def test_control_pictures_change_their_strength_together():
    led = [{"image": "0" * 64, "end": 0.5}, {"image": "1" * 64}]
    found = plot(("control_strength", 0.5, "1.2"), controls=led)
    strengths = [[(one.strength, one.end) for one in cell.order.controls] for cell in found]
    assert strengths == [[(0.5, 0.5), (0.5, 1.0)], [(1.2, 0.5), (1.2, 1.0)]]


def test_one_control_picture_changes_its_strength_alone():
    led = [{"image": "0" * 64}, {"image": "1" * 64, "end": 0.5}]
    found = plot(("control_strength_2", "0.4", 0), ("control_strength_1", 2), controls=led)
    strengths = [[(one.strength, one.end) for one in cell.order.controls] for cell in found]
    assert strengths == [[(2, 1.0), (0.4, 0.5)], [(2, 1.0), (0, 0.5)]]
    for one, all_of_them in (("y", "x"), ("x", "y")):  # Whichever side it is.
        axes = {one: ("control_strength_2", 0.4), all_of_them: ("control_strength", 0.9)}
        (cell,) = cells(asked(**axes, controls=led))
        assert [one.strength for one in cell.order.controls] == [0.9, 0.4]
    assert axis_label("control_strength_2") == "ControlNet weight (2)"
    with pytest.raises(UsageError, match="of 1 control pictures none is number 2"):
        plot(("control_strength_2", 1), controls=led[:1])


def test_each_field_that_can_be_an_axis_takes_a_value_as_text():
    texts = {
        "size": "64x32", "guidance_interval": "0.2:0.6", "prompt_sr": "red", "hires": "2", "scheduler": "Euler",
        "schedule": "Karras", "masked_content": "fill",
    }  # fmt: skip
    controls = [{"image": "0" * 64}]
    for one in form()["axes"]:
        (cell,) = plot((one["name"], texts.get(one["name"], "1")), controls=controls, scheduler="DPM++ 2M")
        assert not cell.order.axes


def test_a_schedule_type_is_that_of_the_sampler_beside_it():
    found = plot(("schedule", "Karras", "uniform", "Automatic"), ("scheduler", "DPM++ 2M", "Euler Beta"))
    names = ["DPM++ 2M Karras", "DPM++ 2M", "DPM++ 2M Karras", "Euler Karras", "Euler", "Euler"]
    assert [cell.order.scheduler for cell in found] == names
    assert heads(asked(("schedule", "Karras"))).across == ["Karras"]
    with pytest.raises(UsageError, match="sampler 'LCM Karras': LCM has no schedule type Karras"):
        plot(("schedule", "Karras"), scheduler="LCM")


def test_a_prompt_matrix_has_each_choice_of_parts_in_a1111s_order():
    order = Order(prompt="a cat|red|big,| {x|y}", seed=5, prompt_matrix=PromptMatrix(different_seeds=True))
    found = cells(order)
    assert [cell.order.prompt for cell in found] == [
        "a cat", "a cat, red", "a cat, big", "a cat, red, big",
        "a cat, {x|y}", "a cat, red, {x|y}", "a cat, big, {x|y}", "a cat, red, big, {x|y}",
    ]  # fmt: skip
    assert [cell.order.seed for cell in found] == list(range(5, 13))
    assert [cell.place for cell in found] == [(0, row, column) for row in range(2) for column in range(4)]
    assert count_cells(order) == 8
    told = heads(order)
    assert (told.across, told.down) == (["\u2013", "red", "big", "red, big"], ["\u2013", "{x|y}"])
    turned = PromptMatrix(negative=True, at_start=True, delimiter="space")
    found = cells(Order(prompt="a", negative_prompt="bad|dark", prompt_matrix=turned))
    assert [(cell.order.prompt, cell.order.negative_prompt) for cell in found] == [("a", "bad"), ("a", "dark bad")]


@pytest.mark.parametrize(("prompt", "said"), [("a (b|c)", "has 1 parts"), ("|" * 11, "has 12 parts; write 2 to 11")])
def test_a_prompt_matrix_of_one_part_or_of_thousands_is_refused(prompt, said):
    with pytest.raises(UsageError, match=said):
        count_cells(Order(prompt=prompt, prompt_matrix=PromptMatrix()))


def test_seeds_of_several_initial_pictures_are_the_same_or_count_on():
    many = {"prompt": "a", "init_images": ["0" * 64, "1" * 64], "num_images": 3, "seed": 5}
    assert [cell.order.seed for cell in cells(Order(**many))] == [5, 5]
    assert [cell.order.seed for cell in cells(Order(**many, different_seeds=True))] == [5, 8]
    varied = Order(**many, different_seeds=True, variation_seed=2, variation_strength=0.5)
    assert [(cell.order.seed, cell.order.variation_seed) for cell in cells(varied)] == [(5, 2), (5, 5)]


def test_ways_to_many_pictures_are_not_mixed():
    matrix, many = {"prompt_matrix": {}}, {"init_images": ["0" * 64]}
    for mixed in (
        {**matrix, **many},
        {**matrix, "x": {"field": "steps", "values": [1]}},
        {**many, "init_image": "1" * 64},
    ):
        with pytest.raises(ValidationError, match="leave"):
            Order(prompt="a|b", **mixed)


@pytest.mark.parametrize(
    ("order", "told", "script"),
    [
        (
            asked(("guidance_scale", 1.5, 7), ("prompt_sr", "red", "blue, pale"), ("hires", "1", "2")),
            (
                'Script: X/Y/Z plot, X Type: CFG Scale, X Values: "1.5, 7", Y Type: Prompt S/R, '
                'Y Values: "red,\\"blue, pale\\"", Z Type: Hires fix, Z Values: "1, 2"'
            ),
            {
                "x": {"field": "guidance_scale", "text": "1.5, 7"},
                "y": {"field": "prompt_sr", "text": 'red,"blue, pale"'},
                "z": {"field": "hires", "text": "1, 2"},
            },
        ),
        (
            Order(prompt="a|b", prompt_matrix=PromptMatrix()),
            "Script: Prompt matrix",
            {"x": {"field": "prompt_matrix", "text": ""}},
        ),
    ],
    ids=["plot", "matrix"],
)
def test_the_text_of_a_grid_says_its_script_and_is_read_back(order, told, script):
    record = PictureRecord("a", steps=3, sampler="Euler", seed=1, width=64, height=64)
    text = a1111_text(replace(record, **script_fields(order, {})))
    assert told in text
    view = for_the_form(read_question(RecipeQuestion(text=text)), ())
    assert (view.script, view.left_out) == (script, None)
    assert view.record["prompt"] == order.prompt if order.prompt_matrix else "a"


def test_a_script_that_is_not_done_here_is_named_among_what_is_left_out():
    text = "a\nSteps: 3, Sampler: Euler, Seed: 1, Script: X/Y/Z plot, X Type: Sigma Churn, X Values: 1"
    view = for_the_form(read_question(RecipeQuestion(text=text)), ())
    assert view.script is None
    assert "Script X/Y/Z plot, X Type Sigma Churn" in view.left_out


def test_an_order_without_axes_is_one_cell():
    (cell,) = plot(steps=3)
    assert (cell.order.steps, cell.place) == (3, (0, 0, 0))


def test_axes_of_texts_sizes_and_loras():
    words = [cell.order.prompt for cell in plot(("prompt_sr", "red", "blue", "green"))]
    assert words == ["a red circle", "a blue circle", "a green circle"]
    sizes = [(cell.order.width, cell.order.height) for cell in plot(("size", "64x32", "32x64"))]
    assert sizes == [(64, 32), (32, 64)]
    loras = [[(lora.name, lora.weight) for lora in cell.order.loras] for cell in plot(("lora", "style:0.5", "style"))]
    assert loras == [[("style", 0.5)], [("style", 1.0)]]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (("steps", "many"), "axis steps: 'many'"),
        (("eta", 2), "axis eta: 2: must be less than or equal to 1"),
        (("scheduler", "Eulr"), "axis scheduler: there is no sampler 'Eulr'"),
        (("prompt_sr", "yellow", "blue"), "'yellow' is not in the prompts"),
        (("size", "large"), "is no size"),
        (("strength", 0), "axis strength: 0"),
        (("guidance_interval", "0.2"), "guidance interval '0.2' is none"),
        (("control_strength", 1), "no control picture"),
        (("schedule", "Karras"), "no sampler is named"),
    ],
)
def test_values_that_a_field_can_not_have_are_refused(axis, message):
    with pytest.raises(UsageError, match=message):
        plot(axis)


def test_an_order_of_before_counts_layers_that_are_left_out():
    axis = {"field": "clip_skip", "values": [0, 1]}
    found = Order.model_validate({"prompt": "a", "clip_skip": 1, "y": axis})
    assert (found.clip_layer, found.y) == (2, Axis(field="clip_layer", values=(1, 2)))
